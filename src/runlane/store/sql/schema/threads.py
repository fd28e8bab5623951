"""Graphs of workers, assistants, threads with their checkpoints, and the items of the store of graphs."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Index, Integer, LargeBinary, Table, Text

from runlane.store.sql.schema.base import metadata

# Ordered by code point in every database; the collation of a Postgres database may ignore control characters.
_BYTEWISE = Text().with_variant(Text(collation="C"), "postgresql")

# The graphs that workers have loaded. `schemas`, `drawing` and `subgraphs` are JSON and are read by servers, which do
# not load graphs. `error` is why the newest worker could not load it.
graphs = Table(
    "graphs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("description", Text),
    Column("schemas", Text),
    Column("drawing", Text),
    Column("subgraphs", Text),
    Column("error", Text),
    Column("updated_at", BigInteger, nullable=False),
)

# The current version of an assistant. `config`, `context` and `metadata` are JSON.
assistants = Table(
    "assistants",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("graph_id", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("description", Text),
    Column("config", Text, nullable=False),
    Column("context", Text, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)
Index("assistants_created", assistants.c.tenant, assistants.c.created_at, assistants.c.id)

assistant_versions = Table(
    "assistant_versions",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("assistant_id", Text, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("graph_id", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("description", Text),
    Column("config", Text, nullable=False),
    Column("context", Text, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

# A thread. `key` is its id with its tenant and is the key of its checkpoints. `open_runs` is the number of its runs
# that have not ended; a thread with open runs is busy. `run_count` is the ordinal of its newest run. `status` (idle,
# interrupted, error), `state_values`, `interrupts` and `error` are those after the last run; the last three are JSON.
# `native` is the target of the runs of an agent or orchestration, and `session_id` the chat session of an agent.
threads = Table(
    "threads",
    metadata,
    Column("key", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("open_runs", Integer, nullable=False),
    Column("run_count", Integer, nullable=False, server_default="0"),
    Column("metadata", Text, nullable=False),
    Column("config", Text, nullable=False),
    Column("native", Text),
    Column("session_id", Text),
    Column("state_values", Text),
    Column("interrupts", Text),
    Column("error", Text),
    Column("ttl_minutes", Integer),
    Column("ttl_strategy", Text),
    Column("expires_at", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("state_updated_at", BigInteger, nullable=False),
)
Index("threads_created", threads.c.tenant, threads.c.created_at, threads.c.id)
Index("threads_updated", threads.c.tenant, threads.c.updated_at, threads.c.id)
Index(
    "threads_expiring",
    threads.c.expires_at,
    postgresql_where=threads.c.expires_at.is_not(None),
    sqlite_where=threads.c.expires_at.is_not(None),
)

# The runs of threads. `ordinal` counts the runs of a thread, including those that were deleted. `outcome` is how the
# graph ended: `success` or `interrupted`; `on_cancel` is `interrupt` or `rollback`; `on_completion` is `delete` for a
# thread that exists for this run alone. `message_count` is the number of messages after a run of an agent.
thread_runs = Table(
    "thread_runs",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("thread", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("ordinal", Integer, nullable=False, server_default="0"),
    Column("assistant_id", Text, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("multitask_strategy", Text, nullable=False),
    Column("outcome", Text),
    Column("message_count", Integer),
    Column("on_cancel", Text),
    Column("on_completion", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
Index("thread_runs_thread", thread_runs.c.thread, thread_runs.c.created_at, thread_runs.c.run_id)
Index("thread_runs_ordinal", thread_runs.c.thread, thread_runs.c.ordinal)

# Checkpoints of graphs. `checkpoint` has the versions of the channels and not their values, which are in
# `checkpoint_values` once for each version; `versions` has the same versions as JSON, for readers that do not load the
# graph. `snapshot` is JSON: the next nodes, the tasks, the channels of the state.
checkpoints = Table(
    "checkpoints",
    metadata,
    Column("thread", Text, primary_key=True),
    Column("ns", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("parent_id", Text),
    Column("run_id", Text),
    Column("attempt", Integer),
    Column("encoding", Text, nullable=False),
    Column("checkpoint", LargeBinary, nullable=False),
    Column("versions", Text, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("snapshot", Text),
    Column("created_at", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
Index(
    "checkpoints_run",
    checkpoints.c.run_id,
    postgresql_where=checkpoints.c.run_id.is_not(None),
    sqlite_where=checkpoints.c.run_id.is_not(None),
)

checkpoint_values = Table(
    "checkpoint_values",
    metadata,
    Column("thread", Text, primary_key=True),
    Column("ns", Text, primary_key=True),
    Column("channel", Text, primary_key=True),
    Column("version", Text, primary_key=True),
    Column("encoding", Text, nullable=False),
    Column("value", LargeBinary),
    sqlite_with_rowid=False,
)

# Writes of tasks that are not part of a checkpoint yet. The run that wrote them is not always the checkpoint's: a run
# that resumes a graph writes to the last checkpoint of the run before it.
checkpoint_writes = Table(
    "checkpoint_writes",
    metadata,
    Column("thread", Text, primary_key=True),
    Column("ns", Text, primary_key=True),
    Column("checkpoint_id", Text, primary_key=True),
    Column("task_id", Text, primary_key=True),
    Column("index", Integer, primary_key=True),
    Column("task_path", Text, nullable=False),
    Column("channel", Text, nullable=False),
    Column("encoding", Text, nullable=False),
    Column("value", LargeBinary),
    Column("run_id", Text),
    sqlite_with_rowid=False,
)

# Items of the store of graphs. `namespace` has its labels joined by U+001F, and ends with one, so that a prefix is a
# range of the primary key. `embedding` is packed float32.
store_items = Table(
    "store_items",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("namespace", _BYTEWISE, primary_key=True),
    Column("key", _BYTEWISE, primary_key=True),
    Column("value", Text, nullable=False),
    Column("text", Text),
    Column("embedding", LargeBinary),
    Column("ttl_minutes", Float),
    Column("expires_at", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)
Index(
    "store_items_expiring",
    store_items.c.expires_at,
    postgresql_where=store_items.c.expires_at.is_not(None),
    sqlite_where=store_items.c.expires_at.is_not(None),
)
