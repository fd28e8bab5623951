#!/bin/sh
# Runs in the container of Postgres when the database is created: sets the password of the role of servers and workers.
set -eu
psql -v ON_ERROR_STOP=1 -v password="$APP_PASSWORD" -U "$POSTGRES_USER" -d "$POSTGRES_DB" <<'SQL'
alter role runlane_app login password :'password';
SQL
