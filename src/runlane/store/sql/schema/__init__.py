"""The tables, declared once for Postgres and SQLite.

`runs` is narrow and has one full index, its primary key: every other index is partial, so that a claim touches
the same few pages whether ten or a million runs wait, and a finished run leaves them all. There are no foreign
keys on the hot tables: each would cost a lookup and a row lock per insert, and retention deletes children first.
Times are microseconds since the epoch, by the database's clock.
"""

from __future__ import annotations

from runlane.store.sql.schema.access import api_answers, api_keys, audit, roles, tenants
from runlane.store.sql.schema.base import metadata
from runlane.store.sql.schema.chat import chat_sessions, chat_turns
from runlane.store.sql.schema.definitions import definition_versions, definitions, secrets
from runlane.store.sql.schema.providers import (
    provider_leases,
    provider_limits,
    provider_seconds,
    provider_states,
    provider_waiters,
    usage_daily,
)
from runlane.store.sql.schema.runs import (
    dead_letters,
    idempotency_keys,
    run_attempts,
    run_calls,
    run_children,
    run_events,
    run_inputs,
    run_results,
    run_steps,
    run_waits,
    runs,
)
from runlane.store.sql.schema.workers import lane_kinds, lanes, workers

__all__ = [
    "api_answers",
    "api_keys",
    "audit",
    "chat_sessions",
    "chat_turns",
    "dead_letters",
    "definition_versions",
    "definitions",
    "idempotency_keys",
    "lane_kinds",
    "lanes",
    "metadata",
    "provider_leases",
    "provider_limits",
    "provider_seconds",
    "provider_states",
    "provider_waiters",
    "roles",
    "run_attempts",
    "run_calls",
    "run_children",
    "run_events",
    "run_inputs",
    "run_results",
    "run_steps",
    "run_waits",
    "runs",
    "secrets",
    "tenants",
    "usage_daily",
    "workers",
]
