"""The dashboard: browser sessions, action links, saved views, heartbeats of servers, and figures of runs over time."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Index, Integer, Table, Text

from runlane.store.sql.schema.base import metadata

# The token itself is not stored: `hash` is its SHA-256. The key of the row decides what the session may do.
browser_sessions = Table(
    "browser_sessions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("hash", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("last_seen_at", BigInteger, nullable=False),
    Column("address", Text, nullable=False),
    Column("agent", Text, nullable=False),
)
Index("browser_sessions_hash", browser_sessions.c.hash, unique=True)

# Links that answer one question for one person. `hash` is the SHA-256 of the token; `opened_at` names the question.
action_links = Table(
    "action_links",
    metadata,
    Column("id", Text, primary_key=True),
    Column("hash", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("opened_at", BigInteger, nullable=False),
    Column("response", Text, nullable=False),
    Column("person", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)
Index("action_links_hash", action_links.c.hash, unique=True)
Index("action_links_expiry", action_links.c.expires_at)

# `query` is the part of a page's address after the question mark.
saved_views = Table(
    "saved_views",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("page", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("query", Text, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# One row per start of a serving process, renewed while it runs.
servers = Table(
    "servers",
    metadata,
    Column("id", Text, primary_key=True),
    Column("hostname", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("heartbeat_at", BigInteger, nullable=False),
    Column("figures", Text, nullable=False),
)

# Figures of the runs of a tenant, a lane and a target within a minute or an hour (`seconds`) that began at `bucket`, in
# seconds since the epoch. Waits and durations are JSON lists of counts.
run_series = Table(
    "run_series",
    metadata,
    Column("seconds", Integer, primary_key=True, autoincrement=False),
    Column("tenant", Text, primary_key=True),
    Column("bucket", BigInteger, primary_key=True, autoincrement=False),
    Column("lane", Text, primary_key=True),
    Column("target", Text, primary_key=True),
    Column("accepted", Integer, nullable=False),
    Column("completed", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("cancelled", Integer, nullable=False),
    Column("retried", Integer, nullable=False),
    Column("cost_usd", Float, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("waits", Text, nullable=False),
    Column("durations", Text, nullable=False),
    Column("started", Integer, nullable=False, server_default="0"),
    sqlite_with_rowid=False,
)
