"""Dead letters with their handling, and bulk jobs with their items."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Index, Integer, SmallInteger, Table, Text, text

from runlane.store.sql.schema.base import metadata

# A dead letter is complete in itself: it outlives its run.
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
    Column("tenant", Text, nullable=False, server_default="default"),
    Column("state", Text, nullable=False, server_default="open"),
    Column("code", Text, nullable=False, server_default=text("''")),
    # The beginning of the error's message, so that lists do not read tracebacks.
    Column("message", Text, nullable=False, server_default=text("''")),
    Column("fingerprint", Text, nullable=False, server_default=text("''")),
    Column("fingerprint_version", SmallInteger, nullable=False, server_default="0"),
    Column("last_step", Text),
    Column("first_failed_at", BigInteger, nullable=False, server_default="0"),
    Column("times_died", Integer, nullable=False, server_default="1"),
    Column("handled_by", Text),
    Column("handled_at", BigInteger),
    Column("note", Text),
    Column("assigned_to", Text),
    # The run that repeats this one: a restart or a fork.
    Column("retry_run_id", Text),
    # The version of the definition that the run was pinned to; null for tasks.
    Column("version", Text),
)
Index("dead_letters_died", dead_letters.c.died_at)
Index("dead_letters_tenant", dead_letters.c.tenant, dead_letters.c.died_at)
# Counts and the usual lists read only the open letters, however many were handled.
Index(
    "dead_letters_open",
    dead_letters.c.tenant,
    dead_letters.c.died_at,
    postgresql_where=dead_letters.c.state == "open",
    sqlite_where=dead_letters.c.state == "open",
)
Index("dead_letters_fingerprint", dead_letters.c.fingerprint, dead_letters.c.died_at)
Index(
    "dead_letters_retry",
    dead_letters.c.retry_run_id,
    postgresql_where=dead_letters.c.retry_run_id.is_not(None),
    sqlite_where=dead_letters.c.retry_run_id.is_not(None),
)

# A change of many runs. Every process that takes the job increases `fence`; `next_at` limits its rate.
bulk_jobs = Table(
    "bulk_jobs",
    metadata,
    Column("id", Text, primary_key=True),
    # Null means all tenants.
    Column("tenant", Text),
    Column("action", Text, nullable=False),
    Column("options", Text, nullable=False),
    # The selection of the runs as the caller gave it: {"filter": {...}} or {"ids": number}.
    Column("selection", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("total", Integer, nullable=False),
    # Counted from the items while the job runs, and stored when it ends.
    Column("changed", Integer),
    Column("refused", Integer),
    Column("rate", Float),
    Column("created_by", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("stopped_by", Text),
    Column("next_at", BigInteger, nullable=False),
    Column("lease_until", BigInteger, nullable=False),
    Column("owner", Text),
    Column("fence", Integer, nullable=False),
)
Index(
    "bulk_jobs_running",
    bulk_jobs.c.next_at,
    postgresql_where=bulk_jobs.c.state == "running",
    sqlite_where=bulk_jobs.c.state == "running",
)
Index("bulk_jobs_tenant", bulk_jobs.c.tenant, bulk_jobs.c.id)

# One row per run of a job. The transaction that changes the run settles the item, so no run is changed twice.
bulk_items = Table(
    "bulk_items",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("no", Integer, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("state", Text, nullable=False),
    # The reason for a refused run, and the run that the change of a run has started, if any.
    Column("code", Text),
    Column("reason", Text),
    Column("new_run_id", Text),
    Column("settled_at", BigInteger),
    sqlite_with_rowid=False,
)
Index("bulk_items_state", bulk_items.c.job_id, bulk_items.c.state, bulk_items.c.no)
Index("bulk_items_run", bulk_items.c.job_id, bulk_items.c.run_id, unique=True)
