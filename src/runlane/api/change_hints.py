"""Hints to open pages about changes that a request has made. Changes of runs are published separately."""

from __future__ import annotations

from typing import Final

from fastapi import Request

from runlane.api.services import parts_of
from runlane.domain.access import Principal
from runlane.domain.hints import Topic

# The keys are the first part of the path after /api/v2. Answers to questions have paths below those of runs.
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
    """Publish a hint for the change that a successful request has made."""
    parts = request.url.path.split("/")
    topic = _TOPICS.get(parts[3]) if len(parts) > 3 else None
    if topic is not None:
        # A platform admin may have changed data of any tenant.
        parts_of(request).connection.bus.hint(topic, None if principal.everywhere else principal.tenant)
