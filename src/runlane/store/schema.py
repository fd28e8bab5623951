"""The tables, declared once for Postgres and SQLite.

`runs` is narrow and has one full index, its primary key: every other index is partial, so that a claim touches
the same few pages whether ten or a million runs wait, and a finished run leaves them all. There are no foreign
keys on the hot tables: each would cost a look-up and a row lock per insert, and retention deletes children first.
Times are microseconds since the epoch, by the database's clock.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    Table,
    Text,
    text,
)

metadata = MetaData()

runs = Table(
    "runs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("target", Text, nullable=False),
    Column("lane", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("rank", BigInteger, nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("attempt", Integer, nullable=False, server_default="0"),
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("losses", Integer, nullable=False, server_default="0"),
    Column("max_attempts", Integer, nullable=False),
    Column("max_losses", Integer, nullable=False),
    Column("last_seq", Integer, nullable=False, server_default="0"),
    Column("accepted_at", BigInteger, nullable=False),
    Column("due_at", BigInteger),
    Column("claimed_at", BigInteger),
    Column("ended_at", BigInteger),
    Column("cancel_requested_at", BigInteger),
    Column("worker_id", Text),
    Column("hold", Boolean, nullable=False, server_default=text("false")),
    Column("ordering_key", Text),
    Column("key_no", BigInteger),
    Column("holds_key", Boolean, nullable=False, server_default=text("false")),
    Column("on_dead", Text, nullable=False, server_default="skip"),
    Column("progress", Float),
    Column("progress_note", Text),
    Column("tenant", Text, nullable=False, server_default="default"),
    Column("limited", Boolean, nullable=False, server_default=text("false")),
    Column("first_seq", Integer, nullable=False, server_default="1"),
)

Index(
    "runs_ready",
    runs.c.lane,
    runs.c.rank,
    postgresql_where=runs.c.status == "queued",
    sqlite_where=runs.c.status == "queued",
)
Index(
    "runs_running",
    runs.c.worker_id,
    postgresql_where=runs.c.status == "running",
    sqlite_where=runs.c.status == "running",
)
Index(
    "runs_running_lane",
    runs.c.lane,
    postgresql_where=runs.c.status == "running",
    sqlite_where=runs.c.status == "running",
)
Index(
    "runs_due",
    runs.c.due_at,
    postgresql_where=runs.c.status == "scheduled",
    sqlite_where=runs.c.status == "scheduled",
)
Index(
    "runs_paused_due",
    runs.c.due_at,
    postgresql_where=text("status = 'paused' and due_at is not null"),
    sqlite_where=text("status = 'paused' and due_at is not null"),
)
# At most one holder per ordering key is a fact of the database, not of query logic.
Index(
    "runs_key_holder",
    runs.c.ordering_key,
    unique=True,
    postgresql_where=text("holds_key"),
    sqlite_where=text("holds_key = 1"),
)
Index(
    "runs_key_waiting",
    runs.c.ordering_key,
    runs.c.key_no,
    postgresql_where=runs.c.status == "blocked",
    sqlite_where=runs.c.status == "blocked",
)
Index(
    "runs_ended",
    runs.c.ended_at,
    postgresql_where=runs.c.ended_at.is_not(None),
    sqlite_where=runs.c.ended_at.is_not(None),
)
# What a tenant with limits has open. Runs of tenants without limits are not in it and pay nothing for it.
Index(
    "runs_limited",
    runs.c.tenant,
    postgresql_where=text("limited and ended_at is null"),
    sqlite_where=text("limited = 1 and ended_at is null"),
)

run_inputs = Table(
    "run_inputs",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("input", Text, nullable=False),
    Column("trace", Text),
    # What only orchestrations have: the versions they are pinned to, where they were forked from.
    Column("plan", Text),
    sqlite_with_rowid=False,
)

run_results = Table(
    "run_results",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("result", Text),
    Column("error", Text),
    Column("state", Text),
    sqlite_with_rowid=False,
)

# One row per ended attempt. The attempt that is running is told by its run's own row.
run_attempts = Table(
    "run_attempts",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("worker_id", Text),
    Column("started_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("error", Text),
    sqlite_with_rowid=False,
)

run_steps = Table(
    "run_steps",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("path", Text, primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("output", Text),
    Column("ended_at", BigInteger, nullable=False),
    # Steps of an orchestration have the rest too; `no` is the order in which a run's steps were recorded.
    Column("no", Integer),
    Column("step_id", Text),
    Column("outcome", Text),
    Column("route", Text),
    Column("error", Text),
    Column("tries", Integer),
    Column("input", Text),
    Column("duration_us", BigInteger),
    Column("cost_usd", Float),
    Column("tokens", Integer),
    sqlite_with_rowid=False,
)

# The journal of steps that ask models and call tools. `key` names a call within its step and is stored data.
run_calls = Table(
    "run_calls",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("path", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("model", Text),
    Column("agent", Text),
    Column("tokens_in", Integer),
    Column("tokens_out", Integer),
    Column("cost_usd", Float),
    Column("at", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# What a run waits for: a person, a time, or an event that somebody sends. The answer is kept with the question.
run_waits = Table(
    "run_waits",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("path", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("step_id", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("request", Text, nullable=False),
    Column("opened_at", BigInteger, nullable=False),
    Column("due_at", BigInteger),
    Column("answer", Text),
    Column("answered_at", BigInteger),
    Column("answered_by", Text),
    Column("settled_at", BigInteger),
)
# The inbox, oldest question first.
Index(
    "run_waits_open",
    run_waits.c.tenant,
    run_waits.c.opened_at,
    run_waits.c.run_id,
    postgresql_where=text("kind = 'human' and answered_at is null and settled_at is null"),
    sqlite_where=text("kind = 'human' and answered_at is null and settled_at is null"),
)

run_events = Table(
    "run_events",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("type", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("data", Text, nullable=False),
    sqlite_with_rowid=False,
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("key", Text, primary_key=True),
    Column("fingerprint", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)
Index("idempotency_keys_run", idempotency_keys.c.run_id)

# Runs that a run has started as tools, by their idempotency keys. `seen_at`: the parent knows that the run has ended;
# `cancel_at`: the parent was to be cancelled, and nobody has looked yet what that means for this one.
run_children = Table(
    "run_children",
    metadata,
    Column("key", Text, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("begun_at", BigInteger, nullable=False),
    Column("seen_at", BigInteger),
    Column("cancel_at", BigInteger),
)
Index("run_children_run", run_children.c.run_id, run_children.c.begun_at)
Index(
    "run_children_marked",
    run_children.c.cancel_at,
    postgresql_where=run_children.c.cancel_at.is_not(None),
    sqlite_where=run_children.c.cancel_at.is_not(None),
)

# A dead letter is complete in itself: it outlives the run it tells about.
dead_letters = Table(
    "dead_letters",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("target", Text, nullable=False),
    Column("lane", Text, nullable=False),
    Column("input", Text, nullable=False),
    Column("error", Text, nullable=False),
    Column("attempts", Text, nullable=False),
    Column("died_at", BigInteger, nullable=False),
)
Index("dead_letters_died", dead_letters.c.died_at)

# `targets` are the tasks that a worker can execute, as JSON; null for a worker of a release that did not tell.
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
)

# An operator's choice of lane for a kind of run; it wins over the one declared in code.
lane_kinds = Table(
    "lane_kinds",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("lane", Text, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)

# `rate_paid_until` is the rate limit's only state: up to when the accepted runs have used up the rate. Nanoseconds.
tenants = Table(
    "tenants",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("max_queued", Integer),
    Column("max_running", Integer),
    Column("rate_per_second", Float),
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("rate_paid_until", BigInteger, nullable=False, server_default="0"),
    # What models may cost on one day, and what happens then. Nothing that accepting a run looks at.
    Column("max_cost_usd_per_day", Float),
    Column("on_cap", Text, nullable=False, server_default="fail"),
)

# The key itself is nowhere: `hash` is its SHA-256, `prefix` what people recognise it by.
api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("prefix", Text, nullable=False),
    Column("hash", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
    Column("last_used_at", BigInteger),
    Column("created_by", Text, nullable=False),
)
Index("api_keys_hash", api_keys.c.hash, unique=True)

roles = Table(
    "roles",
    metadata,
    Column("name", Text, primary_key=True),
    Column("permissions", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)

# Ids sort by time, so pages are walked by id.
audit = Table(
    "audit",
    metadata,
    Column("id", Text, primary_key=True),
    Column("at", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("old", Text),
    Column("new", Text),
)
Index("audit_tenant", audit.c.tenant, audit.c.id)

# What callers were told under an Idempotency-Key; without a status the request is under way.
api_answers = Table(
    "api_answers",
    metadata,
    Column("key", Text, primary_key=True),
    Column("fingerprint", Text, nullable=False),
    Column("status", Integer),
    Column("body", Text),
    Column("created_at", BigInteger, nullable=False),
)
Index("api_answers_created", api_answers.c.created_at)

# What is current of each definition; a removed one keeps its row. `pins` is, for orchestrations and agents, the version
# of everything that a run of it may use, worked out when definitions change so that accepting a run reads one row.
definitions = Table(
    "definitions",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("version", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("description", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("pins", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("removed_at", BigInteger),
)

# Rows are never changed: `version` is the SHA-256 of `body`.
definition_versions = Table(
    "definition_versions",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("version", Text, primary_key=True),
    Column("body", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

# `value` is encrypted with the key that `key_id` names, for this tenant and name only; see access.keyring.
secrets = Table(
    "secrets",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("key_id", Text, nullable=False),
    Column("value", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("updated_by", Text, nullable=False),
)

# What an operator set for a credential of a model provider; without a row its defaults hold.
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

# One row per credential that was used or changed: until when everybody on it slows down, and how often in a row.
provider_states = Table(
    "provider_states",
    metadata,
    Column("credential", Text, primary_key=True),
    Column("slow_until", BigInteger, nullable=False, server_default="0"),
    Column("slowed_at", BigInteger, nullable=False, server_default="0"),
    Column("slow_reason", Text),
    Column("streak", Integer, nullable=False, server_default="0"),
)

# The calls that are in flight, while the database counts them. A lease that nobody renews is a call that nobody makes.
provider_leases = Table(
    "provider_leases",
    metadata,
    Column("id", Text, primary_key=True),
    Column("credential", Text, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)
Index("provider_leases_credential", provider_leases.c.credential)

# What was used in each second of the last minute; `second` is since the epoch.
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

# One row, once a process has Redis: who counts, Redis or the database, and since when. Each change is a new epoch.
provider_desk = Table(
    "provider_desk",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("since", BigInteger, nullable=False),
    Column("hold_seconds", Integer, nullable=False),
    Column("reason", Text, nullable=False),
)

# What model calls took. `day` is counted since the epoch, in UTC. Workers write to different shards, so that their
# transactions do not wait for each other at one row; whoever reads adds them up.
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

# A conversation with one agent. `ordering_key` is that of its runs; `last_at` is when its last message came.
chat_sessions = Table(
    "chat_sessions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("ordering_key", Text, nullable=False),
    Column("last_turn", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("last_at", BigInteger, nullable=False),
)
Index("chat_sessions_tenant", chat_sessions.c.tenant, chat_sessions.c.id)
Index("chat_sessions_last", chat_sessions.c.last_at)

# What became of a turn is told by its run. When retention takes the run, it is copied here.
chat_turns = Table(
    "chat_turns",
    metadata,
    Column("session_id", Text, primary_key=True),
    Column("turn", Integer, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("status", Text),
    Column("answer", Text),
    Column("error", Text),
    Column("ended_at", BigInteger),
)
Index("chat_turns_run", chat_turns.c.run_id, unique=True)
