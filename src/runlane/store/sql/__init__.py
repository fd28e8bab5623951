"""SQL: the seam over Postgres and SQLite, statements, compound writes, tables, migrations."""
