"""Memory: users, vaults, memories, their entries, fragments and operations, and the nodes that own memories.

The file of a node has the same tables, created by `store.memory.local_file`, so that one set of statements serves the
file and the database.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, LargeBinary, Table, Text, text

from runlane.store.sql.schema.base import metadata

# The words of an entry in Postgres. Punctuation is removed, because Postgres would make one word of an address or a
# path. The word of the memory contains a colon, so it cannot be a word of an entry.
MEMORY_WORDS: Final = (
    "(to_tsvector('simple'::regconfig, regexp_replace(({row}summary || ' '::text) || {row}text, "
    "'[^[:alnum:]]+'::text, ' '::text, 'g'::text)) || array_to_tsvector(ARRAY['memory:'::text || {row}memory_id]))"
)

memory_users = Table(
    "memory_users",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("email", Text, nullable=False),
    Column("display_name", Text, nullable=False),
    Column("time_zone", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)
Index("memory_users_email", memory_users.c.tenant, memory_users.c.email, unique=True)

# `user_id` is empty for a vault of the tenant itself, so that titles are unique there, too.
memory_vaults = Table(
    "memory_vaults",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("description", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)
Index("memory_vaults_title", memory_vaults.c.tenant, memory_vaults.c.user_id, memory_vaults.c.title, unique=True)
Index("memory_vaults_id", memory_vaults.c.tenant, memory_vaults.c.id)

# `last_seq` is the number of the last operation. In the database it is also the replicated one; in the file of a node
# that is `applied_seq`. `owner` is the node that may write, `epoch` grows whenever the owner changes. `parked` and
# `stale` are used in files only: replication has stopped, the local copy has to be read again. `requested_by` is the
# process that needs the memory, `requested_at` when the request was last renewed, or when the memory was released to
# that process; files have neither.
memories = Table(
    "memories",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("vault_id", Text, nullable=False),
    Column("memory_type", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("description", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("used_at", BigInteger, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("applied_seq", BigInteger, nullable=False),
    Column("owner", Text),
    Column("epoch", BigInteger, nullable=False),
    Column("parked", Boolean, nullable=False),
    Column("stale", Boolean, nullable=False),
    Column("requested_by", Text),
    Column("requested_at", BigInteger),
)
REQUEST_COLUMNS: Final = frozenset({"requested_by", "requested_at"})
Index("memories_title", memories.c.vault_id, memories.c.title, unique=True)
Index("memories_tenant", memories.c.tenant, memories.c.id)
Index(
    "memories_owner",
    memories.c.owner,
    postgresql_where=memories.c.owner.is_not(None),
    sqlite_where=memories.c.owner.is_not(None),
)
Index(
    "memories_requested",
    memories.c.owner,
    postgresql_where=memories.c.requested_by.is_not(None),
    sqlite_where=memories.c.requested_by.is_not(None),
)

# A deleted entry keeps its row without its content, so that deleting it again and late changes of it do nothing.
# `changed_seq` is the number of the last operation that changed the entry. `metadata` and `tags` are JSON.
memory_entries = Table(
    "memory_entries",
    metadata,
    Column("id", Text, primary_key=True),
    Column("memory_id", Text, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("changed_seq", BigInteger, nullable=False),
    Column("text", Text, nullable=False),
    Column("summary", Text, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("tags", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("corrects", Text),
    Column("corrected_by", Text),
    Column("corrected_at", BigInteger),
    Column("correction_reason", Text),
    Column("deleted_at", BigInteger),
    # Files have an index of words of their own, and the database has memory on Postgres only.
    Index("memory_entries_words", text(MEMORY_WORDS.format(row="")), postgresql_using="gin").ddl_if("postgresql"),
)
Index("memory_entries_order", memory_entries.c.memory_id, memory_entries.c.seq, unique=True)
Index(
    "memory_entries_expiring",
    memory_entries.c.expires_at,
    postgresql_where=memory_entries.c.expires_at.is_not(None),
    sqlite_where=memory_entries.c.expires_at.is_not(None),
)

memory_fragments = Table(
    "memory_fragments",
    metadata,
    Column("memory_id", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("content", Text, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("size", Integer, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
)

# The log of operations. `op_id` is the idempotency key of the operation, `fingerprint` a hash of the request that used
# it, `subject` the entry or fragment that it changed. `payload` is JSON and is dropped once the operation is applied.
memory_ops = Table(
    "memory_ops",
    metadata,
    Column("memory_id", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("op_id", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("payload", Text),
    Column("state", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("error", Text),
    Column("created_at", BigInteger, nullable=False),
)
Index("memory_ops_id", memory_ops.c.memory_id, memory_ops.c.op_id, unique=True)
Index("memory_ops_created", memory_ops.c.created_at)
Index(
    "memory_ops_waiting",
    memory_ops.c.state,
    postgresql_where=memory_ops.c.state != "applied",
    sqlite_where=memory_ops.c.state != "applied",
)

# The processes that own memories, while their lease lasts.
memory_nodes = Table(
    "memory_nodes",
    metadata,
    Column("id", Text, primary_key=True),
    Column("url", Text, nullable=False),
    Column("lease_until", BigInteger, nullable=False),
    Column("started_at", BigInteger, nullable=False),
)

# The embeddings of entries: unit vectors of 32-bit floats. They are derived from entries and are not operations, so
# they are stored where every process sees them: in the database, or in the file if no other copy exists.
memory_vectors = Table(
    "memory_vectors",
    metadata,
    Column("entry_id", Text, primary_key=True),
    Column("memory_id", Text, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("vector", LargeBinary, nullable=False),
)
Index("memory_vectors_order", memory_vectors.c.memory_id, memory_vectors.c.seq)

# Up to which entry a memory has embeddings, and of which model.
memory_indexes = Table(
    "memory_indexes",
    metadata,
    Column("memory_id", Text, primary_key=True),
    Column("model", Text, nullable=False),
    Column("indexed_seq", BigInteger, nullable=False),
)

MEMORY_TABLES = (
    memory_users,
    memory_vaults,
    memories,
    memory_entries,
    memory_fragments,
    memory_ops,
    memory_nodes,
    memory_vectors,
    memory_indexes,
)
