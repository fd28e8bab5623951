"""Hints to open pages about the changes of a request. Changes of runs have their own notices."""

from __future__ import annotations

from typing import Final

from fastapi import Request

from runlane.api.services import parts_of
from runlane.domain.access import Principal
from runlane.domain.hints import Topic

# By the first part of the path after /api/v2. Questions are answered under the paths of runs.
_TOPICS: Final = {
    "agents": Topic.DEFINITIONS,
    "bulk": Topic.BULK,
    "bundles": Topic.DEFINITIONS,
    "chat": Topic.CHAT,
    "concurrency-limits": Topic.LIMITS,
    "dead-letters": Topic.DEAD_LETTERS,
    "definitions": Topic.DEFINITIONS,
    "inbox": Topic.INBOX,
    "keys": Topic.ACCESS,
    "lanes": Topic.LANES,
    "limits": Topic.LIMITS,
    "mcp_servers": Topic.DEFINITIONS,
    "orchestrations": Topic.DEFINITIONS,
    "roles": Topic.ACCESS,
    "schedules": Topic.SCHEDULES,
    "secrets": Topic.SECRETS,
    "sync": Topic.DEFINITIONS,
    "tenants": Topic.ACCESS,
    "tools": Topic.DEFINITIONS,
    "triggers": Topic.TRIGGERS,
    "views": Topic.VIEWS,
    "webhook-sources": Topic.TRIGGERS,
    "webhooks": Topic.DELIVERIES,
    "workers": Topic.WORKERS,
}


def hint_change(request: Request, principal: Principal) -> None:
    """Report what a successful request has changed."""
    parts = request.url.path.split("/")
    topic = _TOPICS.get(parts[3]) if len(parts) > 3 else None
    if topic is not None:
        # A platform admin may have changed something of any tenant.
        parts_of(request).connection.bus.hint(topic, None if principal.everywhere else principal.tenant)
