"""Run by the migration tool on the connection that runlane.store.sql.migrate opened."""

from typing import Any, cast

from alembic import context
from sqlalchemy import delete, insert

from runlane.store.sql.schema import metadata, schema_compatibility


def _record(**applied: Any) -> None:
    """Record which code runs on the schema, in the transaction of the migration."""
    revision = applied["step"].up_revision
    compatible_from = getattr(revision.module, "compatible_from", None)
    if compatible_from is not None:
        row = {"revision": revision.revision, "compatible_from": compatible_from}
        bind = context.get_bind()
        # A migration that stopped half-way is repeated.
        bind.execute(delete(schema_compatibility).where(schema_compatibility.c.revision == revision.revision))
        bind.execute(insert(schema_compatibility).values(row))


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transaction_per_migration=True,
    render_as_batch=True,
    on_version_apply=cast("Any", _record),  # the tool passes keywords, its type names positions
)
with context.begin_transaction():
    context.run_migrations()
