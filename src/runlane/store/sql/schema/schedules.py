"""Schedules, and the decision about each of their slots."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, Table, Text, text

from runlane.store.sql.schema.base import metadata

# `cursor_at` is the last slot that is decided, `next_at` the one after it, and `next_due_at` that slot with the offset
# of the spread. `template` has what a run of a task needs in processes that do not have the task's code. A cron has the
# id of its assistant, its metadata as JSON, the key of its thread, unless each run
# has a thread of its own, and its end.
schedules = Table(
    "schedules",
    metadata,
    Column("uid", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("settings", Text, nullable=False),
    Column("template", Text),
    Column("ordering_key", Text),
    Column("paused_counts", Boolean, nullable=False),
    Column("zone_version", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("anchor_at", BigInteger, nullable=False),
    Column("cursor_at", BigInteger, nullable=False),
    Column("last_slot", BigInteger),
    Column("next_at", BigInteger),
    Column("next_due_at", BigInteger),
    Column("fired", Integer, nullable=False, server_default="0"),
    Column("paused_at", BigInteger),
    Column("paused_by", Text),
    Column("paused_reason", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("updated_by", Text, nullable=False),
    Column("assistant_id", Text),
    Column("thread", Text),
    Column("metadata", Text),
    Column("ends_at", BigInteger),
)
Index("schedules_id", schedules.c.tenant, schedules.c.id, unique=True)
# A paused schedule has no due time, so it is not in this index.
Index(
    "schedules_due",
    schedules.c.next_due_at,
    postgresql_where=text("next_due_at is not null"),
    sqlite_where=text("next_due_at is not null"),
)

Index(
    "schedules_thread",
    schedules.c.thread,
    postgresql_where=text("thread is not null"),
    sqlite_where=text("thread is not null"),
)

# The primary key is the guarantee that a slot is decided once. `open` is true while the run may not have ended.
# `prepared` is the run of a buffered slot. A missed firing stands for `count` slots up to `last_slot`.
schedule_firings = Table(
    "schedule_firings",
    metadata,
    Column("schedule_uid", Text, primary_key=True),
    Column("slot", BigInteger, primary_key=True, autoincrement=False),
    Column("due_at", BigInteger, nullable=False),
    Column("decided_at", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("reason", Text),
    Column("detail", Text),
    Column("run_id", Text),
    Column("open", Boolean, nullable=False, server_default=text("false")),
    Column("prepared", Text),
    Column("last_slot", BigInteger),
    Column("count", Integer, nullable=False, server_default="1"),
)
Index(
    "schedule_firings_open",
    schedule_firings.c.schedule_uid,
    postgresql_where=text("open"),
    sqlite_where=text("open = 1"),
)
Index(
    "schedule_firings_buffered",
    schedule_firings.c.schedule_uid,
    schedule_firings.c.slot,
    postgresql_where=text("outcome = 'buffered'"),
    sqlite_where=text("outcome = 'buffered'"),
)
Index(
    "schedule_firings_run",
    schedule_firings.c.run_id,
    postgresql_where=text("open"),
    sqlite_where=text("open = 1"),
)
Index("schedule_firings_decided", schedule_firings.c.decided_at)
