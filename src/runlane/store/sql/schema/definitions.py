"""Definitions in their versions, and the secrets that they refer to."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, Table, Text

from runlane.store.sql.schema.base import metadata

# The current version of each definition; a removed one keeps its row. `pins` is, for orchestrations and agents, the
# version of everything that a run of it may use, computed when definitions change, so that an accept reads one row.
# `source` is the project that synced it; null for imported definitions and those older than the column.
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
    Column("source", Text),
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
