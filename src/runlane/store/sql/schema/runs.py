"""Runs, and everything that belongs to one: input, result, attempts, steps, calls, waits, events, children."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, SmallInteger, Table, Text, text

from runlane.store.sql.schema.base import metadata

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
    # The workers that were lost with this run (`losses`) and executed no other run beside it.
    Column("lone_losses", Integer, nullable=False, server_default="0"),
    # For a quarantined run: how many other runs its worker may execute beside it. Null for all other runs.
    Column("max_neighbors", Integer),
    # The bits of RunHook: further work at the end of this run.
    Column("hooks", SmallInteger, nullable=False, server_default="0"),
    # In a lane that tenants share: the virtual start time of the run, from which its rank was computed. Null in other
    # lanes.
    Column("start_tag", BigInteger),
    # The caller's group for fair shares inside its tenant.
    Column("fairness_key", Text),
    # The last time at which its worker stored something about it.
    Column("recorded_at", BigInteger),
    # The tags as a JSON list, for readers; null without tags. Lists by tag use `run_tags`, which changes with it.
    Column("tags", Text),
    # A run that has not started by then is cancelled.
    Column("expires_at", BigInteger),
    # Keys of flow control, each with tenant, rule and target: of the open run that is unique, of the backlog that it
    # counts for, and of the rule that has set its due time.
    Column("unique_key", Text),
    Column("backlog_key", Text),
    Column("flow_key", Text),
)

# Each ready run is in one of three indexes: those of tenants without limits, those of tenants with limits, and
# quarantined ones. A claim reads the head of each queue, so a long queue costs no more than a short one.
Index(
    "runs_ready",
    runs.c.lane,
    runs.c.rank,
    postgresql_where=text("status = 'queued' and not limited and max_neighbors is null"),
    sqlite_where=text("status = 'queued' and limited = 0 and max_neighbors is null"),
)
Index(
    "runs_ready_limited",
    runs.c.lane,
    runs.c.tenant,
    runs.c.rank,
    postgresql_where=text("status = 'queued' and limited and max_neighbors is null"),
    sqlite_where=text("status = 'queued' and limited = 1 and max_neighbors is null"),
)
Index(
    "runs_ready_quarantined",
    runs.c.rank,
    postgresql_where=text("status = 'queued' and max_neighbors is not null"),
    sqlite_where=text("status = 'queued' and max_neighbors is not null"),
)
Index(
    "runs_running_limited",
    runs.c.tenant,
    postgresql_where=text("status = 'running' and limited"),
    sqlite_where=text("status = 'running' and limited = 1"),
)
_RUNNING = runs.c.status == "running"
Index("runs_running", runs.c.worker_id, postgresql_where=_RUNNING, sqlite_where=_RUNNING)
Index("runs_running_lane", runs.c.lane, postgresql_where=_RUNNING, sqlite_where=_RUNNING)
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
# At most one holder per ordering key: guaranteed by the database, not by query logic.
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
# Lists, newest first, since ids sort by time. Waiting and ended runs have indexes of their own, running runs have none:
# they are as few as the slots of the workers. So a run is added to one index when it is accepted and to two when it has
# ended; a claim, which on Postgres adds its runs to every index that includes them, adds them to none of these.
Index(
    "runs_waiting",
    runs.c.tenant,
    runs.c.target,
    runs.c.lane,
    runs.c.status,
    runs.c.id,
    postgresql_where=text("ended_at is null and status <> 'running'"),
    sqlite_where=text("ended_at is null and status <> 'running'"),
)
Index(
    "runs_ended_status",
    runs.c.tenant,
    runs.c.status,
    runs.c.id,
    postgresql_where=text("ended_at is not null"),
    sqlite_where=text("ended_at is not null"),
)
Index(
    "runs_ended_target",
    runs.c.tenant,
    runs.c.target,
    runs.c.lane,
    runs.c.status,
    runs.c.id,
    postgresql_where=text("ended_at is not null"),
    sqlite_where=text("ended_at is not null"),
)
# The key has its tenant as a prefix. Most runs have none. An expression, so that only lists use this index: to find the
# holder of a key by it, Postgres would read every run that ever had the key.
Index(
    "runs_by_key",
    text("(ordering_key || '')"),
    runs.c.id,
    postgresql_where=text("ordering_key is not null"),
    sqlite_where=text("ordering_key is not null"),
)
# The open runs of a tenant with limits. Runs of tenants without limits are not in it and cost nothing.
Index(
    "runs_limited",
    runs.c.tenant,
    postgresql_where=text("limited and ended_at is null"),
    sqlite_where=text("limited = 1 and ended_at is null"),
)

# Flow control is derived from live rows, so that the end or the start of a run needs no further write. Runs without its
# rules are in none of these.
_OPEN_UNIQUE = "unique_key is not null and ended_at is null"
Index(
    "runs_unique",
    runs.c.unique_key,
    unique=True,
    postgresql_where=text(_OPEN_UNIQUE),
    sqlite_where=text(_OPEN_UNIQUE),
)
_IN_BACKLOG = "backlog_key is not null and attempt = 0 and ended_at is null"
Index("runs_backlog", runs.c.backlog_key, postgresql_where=text(_IN_BACKLOG), sqlite_where=text(_IN_BACKLOG))
_EXPIRES = "expires_at is not null and attempt = 0 and ended_at is null"
Index("runs_expiring", runs.c.expires_at, postgresql_where=text(_EXPIRES), sqlite_where=text(_EXPIRES))

run_inputs = Table(
    "run_inputs",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("input", Text, nullable=False),
    Column("trace", Text),
    # Only for orchestrations: the versions they are pinned to, and the run they were forked from.
    Column("plan", Text),
    # The origin of a run that no caller started: a schedule and its slot, or an event and its trigger.
    Column("origin", Text),
    # Its concurrency limits as a JSON list; null without any.
    Column("limits", Text),
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

# One row per ended attempt. The running attempt is described by the row of its run.
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

_LOST = "outcome = 'lost'"
# The losses of a worker, newest first.
Index(
    "run_attempts_lost",
    run_attempts.c.worker_id,
    run_attempts.c.ended_at,
    postgresql_where=text(_LOST),
    sqlite_where=text(_LOST),
)

_FIRST = "attempt = 1 and outcome <> 'completed'"
# The starts of runs whose first attempt was suspended, retried or lost. Those that completed at once are found by the
# end of their run, so that the common case adds nothing to this index.
Index("run_attempts_first", run_attempts.c.started_at, postgresql_where=text(_FIRST), sqlite_where=text(_FIRST))

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

# The journal of steps that call models and tools. `key` identifies a call within its step and is stored data.
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

# The waits of a run: for a person, a time, or an event. The answer is stored with the wait.
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
    # For a wait for an event of the tenant: the values that the event must have, and its maximum age. `looked_at` is
    # null until the events before the wait were searched.
    Column("match", Text),
    Column("lookback_us", BigInteger),
    Column("looked_at", BigInteger),
    # The note of the person who answered, and the caller that reads the question at the moment.
    Column("note", Text),
    Column("claimed_by", Text),
    Column("claimed_until", BigInteger),
)
_open_match = "match is not null and answered_at is null and settled_at is null"
Index(
    "run_waits_match",
    run_waits.c.tenant,
    run_waits.c.name,
    run_waits.c.run_id,
    run_waits.c.path,
    postgresql_where=text(_open_match),
    sqlite_where=text(_open_match),
)
Index(
    "run_waits_unsearched",
    run_waits.c.opened_at,
    postgresql_where=text(f"{_open_match} and looked_at is null"),
    sqlite_where=text(f"{_open_match} and looked_at is null"),
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
    # The end of the key's window; null for a key that is kept as long as its run.
    Column("expires_at", BigInteger),
    # For a start that a batch has collected: its part of the run.
    Column("start_id", Text),
)
Index("idempotency_keys_run", idempotency_keys.c.run_id)

# The tags of runs, for lists. Most runs have none.
run_tags = Table(
    "run_tags",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("tag", Text, primary_key=True),
    Column("run_id", Text, primary_key=True),
    sqlite_with_rowid=False,
)
Index("run_tags_run", run_tags.c.run_id)

# Runs that a run has started as tools, by their idempotency keys. `seen_at`: the parent has read that the run ended;
# `cancel_at`: the parent was cancelled, and this child was not checked yet.
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
