"""The tables, declared once for Postgres and SQLite.

`runs` is narrow and has one full index, its primary key. The indexes of the queue are partial, so that a claim touches
the same few pages whether ten or a million runs wait; those of lists leave out running runs. There are no foreign
keys on the hot tables: each would cost a lookup and a row lock per insert, and retention deletes children first.
Times are microseconds since the epoch, by the database's clock.
"""

from __future__ import annotations

from runlane.store.sql.schema.access import api_answers, api_keys, audit, roles, tenant_quotas, tenants
from runlane.store.sql.schema.base import metadata
from runlane.store.sql.schema.chat import chat_sessions, chat_turns
from runlane.store.sql.schema.compatibility import schema_compatibility
from runlane.store.sql.schema.dashboard import action_links, browser_sessions, run_series, saved_views, servers
from runlane.store.sql.schema.definitions import definition_versions, definitions, secrets
from runlane.store.sql.schema.events import (
    dependency_work,
    event_ids,
    event_outcomes,
    event_rates,
    run_dependencies,
    run_listeners,
    stored_events,
    webhook_sources,
)
from runlane.store.sql.schema.failures import bulk_items, bulk_jobs, dead_letters
from runlane.store.sql.schema.flow_control import batch_items, flow_keys
from runlane.store.sql.schema.limits import concurrency_limits, limit_slots, limit_turns, limit_waits
from runlane.store.sql.schema.memory import (
    memories,
    memory_entries,
    memory_fragments,
    memory_indexes,
    memory_nodes,
    memory_ops,
    memory_users,
    memory_vaults,
    memory_vectors,
)
from runlane.store.sql.schema.providers import (
    provider_leases,
    provider_limits,
    provider_seconds,
    provider_states,
    provider_waiters,
    usage_daily,
)
from runlane.store.sql.schema.runs import (
    idempotency_keys,
    run_attempts,
    run_calls,
    run_children,
    run_events,
    run_inputs,
    run_results,
    run_steps,
    run_tags,
    run_waits,
    runs,
)
from runlane.store.sql.schema.schedules import schedule_firings, schedules
from runlane.store.sql.schema.threads import (
    assistant_versions,
    assistants,
    checkpoint_values,
    checkpoint_writes,
    checkpoints,
    graphs,
    store_items,
    thread_runs,
    threads,
)
from runlane.store.sql.schema.webhooks import (
    run_webhooks,
    webhook_attempts,
    webhook_deliveries,
    webhook_endpoints,
    webhook_messages,
    webhook_notices,
    webhook_secrets,
)
from runlane.store.sql.schema.workers import lane_clocks, lane_holds, lane_kinds, lane_shares, lanes, workers

__all__ = [
    "action_links",
    "api_answers",
    "api_keys",
    "assistant_versions",
    "assistants",
    "audit",
    "batch_items",
    "browser_sessions",
    "bulk_items",
    "bulk_jobs",
    "chat_sessions",
    "chat_turns",
    "checkpoint_values",
    "checkpoint_writes",
    "checkpoints",
    "concurrency_limits",
    "dead_letters",
    "definition_versions",
    "definitions",
    "dependency_work",
    "event_ids",
    "event_outcomes",
    "event_rates",
    "flow_keys",
    "graphs",
    "idempotency_keys",
    "lane_clocks",
    "lane_holds",
    "lane_kinds",
    "lane_shares",
    "lanes",
    "limit_slots",
    "limit_turns",
    "limit_waits",
    "memories",
    "memory_entries",
    "memory_fragments",
    "memory_indexes",
    "memory_nodes",
    "memory_ops",
    "memory_users",
    "memory_vaults",
    "memory_vectors",
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
    "run_dependencies",
    "run_events",
    "run_inputs",
    "run_listeners",
    "run_results",
    "run_series",
    "run_steps",
    "run_tags",
    "run_waits",
    "run_webhooks",
    "runs",
    "saved_views",
    "schedule_firings",
    "schedules",
    "schema_compatibility",
    "secrets",
    "servers",
    "store_items",
    "stored_events",
    "tenant_quotas",
    "tenants",
    "thread_runs",
    "threads",
    "usage_daily",
    "webhook_attempts",
    "webhook_deliveries",
    "webhook_endpoints",
    "webhook_messages",
    "webhook_notices",
    "webhook_secrets",
    "webhook_sources",
    "workers",
]
