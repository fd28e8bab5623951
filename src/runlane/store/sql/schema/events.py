"""Runs that start after others, stored events, the outcomes of triggers, and sources of incoming webhooks."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, Table, Text, text

from runlane.store.sql.schema.base import metadata

# One row per run and run that it starts after. `parent_status` is the status with which that run ended first.
run_dependencies = Table(
    "run_dependencies",
    metadata,
    Column("parent_id", Text, primary_key=True),
    Column("run_id", Text, primary_key=True),
    Column("after_on", Text, nullable=False),
    Column("parent_status", Text),
    sqlite_with_rowid=False,
)
Index("run_dependencies_run", run_dependencies.c.run_id)

# Work that the end of a run has left to a maintenance service: a run to cancel (`impossible`), or an ended run with
# more dependents than one transaction settles (`ended`). The table is nearly always empty.
dependency_work = Table(
    "dependency_work",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("created_at", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# Events for a whole tenant. `depth` counts the triggers between it and a caller; `matched_at` is null until triggers
# and waiting runs were looked up.
stored_events = Table(
    "stored_events",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("sent_id", Text),
    Column("key", Text),
    Column("data", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("depth", Integer, nullable=False, server_default="0"),
    Column("received_at", BigInteger, nullable=False),
    Column("matched_at", BigInteger),
)
Index("stored_events_tenant", stored_events.c.tenant, stored_events.c.id)
Index("stored_events_name", stored_events.c.tenant, stored_events.c.name, stored_events.c.id)
Index("stored_events_received", stored_events.c.received_at)
Index(
    "stored_events_open",
    stored_events.c.id,
    postgresql_where=stored_events.c.matched_at.is_(None),
    sqlite_where=stored_events.c.matched_at.is_(None),
)

# The ids of senders, kept for as long as a repetition of an event is detected.
event_ids = Table(
    "event_ids",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("sent_id", Text, primary_key=True),
    Column("event_id", Text, nullable=False),
    Column("received_at", BigInteger, nullable=False),
)
Index("event_ids_received", event_ids.c.received_at)

# The only state of a rate of events: the time up to which the accepted events have used it up.
event_rates = Table(
    "event_rates",
    metadata,
    Column("key", Text, primary_key=True),
    Column("paid_until", BigInteger, nullable=False),
)

# The outcome of an event for a trigger. The primary key makes it one run per pair.
event_outcomes = Table(
    "event_outcomes",
    metadata,
    Column("event_id", Text, primary_key=True),
    Column("trigger", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("run_id", Text),
    Column("reason", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("decided_at", BigInteger),
    # The time until which an evaluator works on the pair or has postponed it.
    Column("claimed_until", BigInteger, nullable=False, server_default="0"),
)
Index("event_outcomes_trigger", event_outcomes.c.tenant, event_outcomes.c.trigger, event_outcomes.c.event_id)
Index(
    "event_outcomes_open",
    event_outcomes.c.claimed_until,
    postgresql_where=event_outcomes.c.outcome == "pending",
    sqlite_where=event_outcomes.c.outcome == "pending",
)

# The triggers that listen to the ends of runs. A tenant without a row has no cost at the end of its runs.
run_listeners = Table(
    "run_listeners",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("trigger", Text, primary_key=True),
    Column("event", Text, nullable=False),
    Column("target", Text),
)

# `token_hash` is the SHA-256 of the token in the URL; `secret` is encrypted with the key that `key_id` names.
webhook_sources = Table(
    "webhook_sources",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("token_hash", Text, nullable=False),
    Column("verifier", Text, nullable=False),
    Column("event", Text, nullable=False),
    Column("options", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("secret", Text, nullable=False),
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    Column("rate_per_minute", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("updated_by", Text, nullable=False),
)
Index("webhook_sources_token", webhook_sources.c.token_hash, unique=True)
