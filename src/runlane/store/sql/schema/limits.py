"""Concurrency limits: those that tenants share between targets, the slots of admitted runs, and the waiting runs."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, Table, Text, text

from runlane.store.sql.schema.base import metadata

# A limit with a name. `key` is the tenant and the name, under which its runs are counted.
concurrency_limits = Table(
    "concurrency_limits",
    metadata,
    Column("key", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("max_running", Integer, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("updated_by", Text, nullable=False),
)
Index("concurrency_limits_tenant", concurrency_limits.c.tenant, concurrency_limits.c.name, unique=True)

# One row per admitted run and limit. It is written by the transaction that queues the run, and deleted by the one that
# ends or pauses it or lets it wait for a retry, so it needs no repair after a crash.
limit_slots = Table(
    "limit_slots",
    metadata,
    Column("key", Text, primary_key=True),
    Column("run_id", Text, primary_key=True),
    sqlite_with_rowid=False,
)

# One row per run that is blocked because a limit is full, under the first of its limits that was.
limit_waits = Table(
    "limit_waits",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("key", Text, nullable=False),
    Column("turn", Text, nullable=False),
    Column("place", BigInteger, nullable=False),
    # True if the waiting run cancels the oldest admitted run of the key.
    Column("evicts", Boolean, nullable=False, server_default=text("false")),
    sqlite_with_rowid=False,
)
Index("limit_waits_place", limit_waits.c.key, limit_waits.c.turn, limit_waits.c.place)
Index(
    "limit_waits_evicting",
    limit_waits.c.key,
    postgresql_where=text("evicts"),
    sqlite_where=text("evicts = 1"),
)

# The turn that was served last under a limit for which several keys compete.
limit_turns = Table(
    "limit_turns",
    metadata,
    Column("key", Text, primary_key=True),
    Column("turn", Text, nullable=False),
    sqlite_with_rowid=False,
)
