"""Workers and lanes."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, Table, Text, text

from runlane.store.sql.schema.base import metadata

# `targets` are the tasks that a worker can execute, as JSON; null if it did not report them.
workers = Table(
    "workers",
    metadata,
    Column("id", Text, primary_key=True),
    Column("status", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("lanes", Text, nullable=False),
    Column("capacity", Integer, nullable=False),
    Column("active", Integer, nullable=False, server_default="0"),
    Column("has_lock", Boolean, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("heartbeat_at", BigInteger, nullable=False),
    Column("lease_until", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("targets", Text),
)

lanes = Table(
    "lanes",
    metadata,
    Column("name", Text, primary_key=True),
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    Column("max_slots", Integer),
    Column("poll_interval_ms", Integer, nullable=False, server_default="250"),
    Column("updated_at", BigInteger, nullable=False),
    # The tenant whose definitions named the lane first; null for lanes of the operator and of code.
    Column("tenant", Text),
)
# The shortest poll interval and a tenant's lanes are found without reading every lane.
Index("lanes_poll_interval", lanes.c.poll_interval_ms)
Index(
    "lanes_tenant", lanes.c.tenant, postgresql_where=text("tenant is not null"), sqlite_where=text("tenant is not null")
)

# An operator's lane for a kind of run, which has precedence over the one declared in code.
lane_kinds = Table(
    "lane_kinds",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("lane", Text, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)
