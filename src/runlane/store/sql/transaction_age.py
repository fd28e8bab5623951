"""The age of the oldest open transaction. A long one prevents Postgres from removing dead rows and slows down claims.

A role sees the transactions of other roles only as a member of pg_read_all_stats.
"""

from __future__ import annotations

from sqlalchemy import text

from runlane.store.sql.database import Database
from runlane.store.sql.statement import Statement

_OLDEST = Statement(
    "oldest_transaction",
    text(
        "select coalesce(max(extract(epoch from clock_timestamp() - xact_start)), 0)::float8 as seconds "
        "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() "
        # Vacuum takes long on large tables, and its transaction keeps no other vacuum from removing rows.
        "and backend_type is distinct from 'autovacuum worker'"
    ),
    purpose="Read the age of the oldest open transaction in this database, for metrics and checks.",
)


async def oldest_transaction_seconds(database: Database) -> float:
    """Return the age of the oldest open transaction; 0 on SQLite, where a transaction is one call of one thread."""
    if database.dialect == "sqlite":
        return 0.0
    (row,) = await database.query(_OLDEST)
    return max(0.0, row["seconds"])
