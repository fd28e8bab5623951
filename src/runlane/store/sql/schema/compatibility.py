"""The versions of the code that can run on the schema."""

from __future__ import annotations

from sqlalchemy import Column, Table, Text

from runlane.store.sql.schema.base import metadata

# One row for each migration that was applied. `compatible_from` is the oldest revision whose code runs on the schema
# that the migration leaves.
schema_compatibility = Table(
    "schema_compatibility",
    metadata,
    Column("revision", Text, primary_key=True),
    Column("compatible_from", Text, nullable=False),
)
