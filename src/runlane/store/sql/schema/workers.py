"""Workers and lanes."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, Table, Text, text

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
    # Where its health endpoints answer, as host:port; null without a health port.
    Column("health_address", Text),
    # The time at which an operator drained it, so that it claims no more runs.
    Column("drain_requested_at", BigInteger),
    # Figures of its process, as the last heartbeat reported them; null before the first one.
    Column("memory_bytes", BigInteger),
    Column("cpu_percent", Float),
    Column("python", Text),
    # The end of the grace period of a worker that stops. Runs that it still executes then continue elsewhere.
    Column("drain_until", BigInteger),
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
    # Whether tenants share it fairly, and for how long one point of priority may delay other runs.
    Column("fair", Boolean, nullable=False, server_default=text("true")),
    Column("priority_seconds", Integer, nullable=False, server_default="600"),
    # The longest time that a running run may be without progress; null without a bound.
    Column("stale_timeout_minutes", Integer),
    # When the last of its holds ends; null without holds. Kept here, because a claim reads the lane anyway.
    Column("held_until", BigInteger),
)
# The shortest poll interval and a tenant's lanes are found without reading every lane.
Index("lanes_poll_interval", lanes.c.poll_interval_ms)
Index(
    "lanes_tenant", lanes.c.tenant, postgresql_where=text("tenant is not null"), sqlite_where=text("tenant is not null")
)

Index(
    "lanes_stale_timeout",
    lanes.c.stale_timeout_minutes,
    postgresql_where=text("stale_timeout_minutes is not null"),
    sqlite_where=text("stale_timeout_minutes is not null"),
)

# An operator's lane for a kind of run, which has precedence over the one declared in code.
lane_kinds = Table(
    "lane_kinds",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("lane", Text, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)

# The holds of lanes. A lane with an active hold starts no runs, even if it is enabled.
lane_holds = Table(
    "lane_holds",
    metadata,
    Column("id", Text, primary_key=True),
    Column("lane", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
)
Index("lane_holds_lane", lane_holds.c.lane)

# The finish tag of the last accepted run of a tenant (and fairness key, or '') in a lane. Nanoseconds, so that shares
# of any weight stay exact. `charge` is the amount that the latest accepted runs added. There is no second index,
# because a busy tenant updates its row with every batch.
lane_shares = Table(
    "lane_shares",
    metadata,
    Column("lane", Text, primary_key=True),
    Column("tenant", Text, primary_key=True),
    Column("fairness_key", Text, primary_key=True),
    Column("finish_tag", BigInteger, nullable=False),
    Column("charge", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# Two readings of a lane's virtual clock, about a minute apart, which give its pace.
lane_clocks = Table(
    "lane_clocks",
    metadata,
    Column("lane", Text, primary_key=True),
    Column("read_at", BigInteger, nullable=False),
    Column("virtual", BigInteger, nullable=False),
    Column("earlier_at", BigInteger, nullable=False),
    Column("earlier_virtual", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
