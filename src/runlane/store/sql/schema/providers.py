"""Model providers: limits, what counts against them, and usage."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Index, Integer, Table, Text

from runlane.store.sql.schema.base import metadata

# An operator's settings for a credential of a model provider; without a row its defaults apply.
provider_limits = Table(
    "provider_limits",
    metadata,
    Column("credential", Text, primary_key=True),
    Column("in_flight", Integer),
    Column("requests_per_minute", Integer),
    Column("tokens_per_minute", Integer),
    Column("updated_at", BigInteger, nullable=False),
    Column("updated_by", Text, nullable=False),
)

# One row per credential that was used or changed: the end of its back-off, and the number of back-offs in a row.
provider_states = Table(
    "provider_states",
    metadata,
    Column("credential", Text, primary_key=True),
    Column("slow_until", BigInteger, nullable=False, server_default="0"),
    Column("slowed_at", BigInteger, nullable=False, server_default="0"),
    Column("slow_reason", Text),
    Column("streak", Integer, nullable=False, server_default="0"),
)

# The calls that are in flight. A lease that is not renewed expires and is not counted.
provider_leases = Table(
    "provider_leases",
    metadata,
    Column("id", Text, primary_key=True),
    Column("credential", Text, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)
Index("provider_leases_credential", provider_leases.c.credential)

# The usage in each second of the last minute; `second` is since the epoch.
provider_seconds = Table(
    "provider_seconds",
    metadata,
    Column("credential", Text, primary_key=True),
    Column("second", BigInteger, primary_key=True),
    Column("requests", Integer, nullable=False),
    Column("tokens", BigInteger, nullable=False),
)

# The processes that wait for a credential, each with the arrival of its first waiter.
provider_waiters = Table(
    "provider_waiters",
    metadata,
    Column("credential", Text, primary_key=True),
    Column("holder", Text, primary_key=True),
    Column("since", BigInteger, nullable=False),
    Column("seen_at", BigInteger, nullable=False),
)

# The usage of model calls. `day` is counted since the epoch, in UTC. Workers write to different shards, so that their
# transactions do not wait for each other at one row; readers sum them up.
usage_daily = Table(
    "usage_daily",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("agent", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("calls", BigInteger, nullable=False),
    Column("unpriced_calls", BigInteger, nullable=False),
    Column("tokens_in", BigInteger, nullable=False),
    Column("tokens_out", BigInteger, nullable=False),
    Column("cost_usd", Float, nullable=False),
)
