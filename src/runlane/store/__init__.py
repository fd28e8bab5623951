"""Store: all durable data, on Postgres and SQLite: schema, migrations, queue and claims, records, events, access."""
