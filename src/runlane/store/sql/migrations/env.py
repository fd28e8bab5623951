"""Run by the migration tool on the connection that runlane.store.sql.migrate opened."""

from alembic import context

from runlane.store.sql.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transaction_per_migration=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
