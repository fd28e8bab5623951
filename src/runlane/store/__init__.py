"""Store: everything that is durable, behind one seam for Postgres and SQLite."""
