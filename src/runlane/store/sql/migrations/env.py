"""What the migration tool runs: the connection and its transaction are made by store.migrate."""

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
