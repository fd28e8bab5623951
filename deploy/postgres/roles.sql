-- Roles of least privilege. Run it once as the owner of the database, before `runlane db upgrade`:
--   psql -f roles.sql "$OWNER_URL"
-- Then set passwords: alter role runlane_app login password '...';
--
--   the owner          runs `runlane db upgrade` (RUNLANE_MIGRATIONS_DATABASE_URL) and owns the tables
--   runlane_app        servers and workers: reads and writes rows, cannot change the schema
--   runlane_scaler     an autoscaler that reads the view runlane_scaling and nothing else
--   runlane_reader     people and dashboards: reads everything, changes nothing
--
-- Other roles lose the right to connect to this database. In a database that other applications share, grant it to them:
-- grant connect on database ... to ...;
do $$
begin
    if not exists (select from pg_roles where rolname = 'runlane_app') then
        create role runlane_app nologin;
    end if;
    if not exists (select from pg_roles where rolname = 'runlane_scaler') then
        create role runlane_scaler nologin connection limit 10;
    end if;
    if not exists (select from pg_roles where rolname = 'runlane_reader') then
        create role runlane_reader nologin connection limit 20;
    end if;
end
$$;

revoke create on schema public from public;
grant usage on schema public to runlane_app, runlane_scaler, runlane_reader;
do $$
begin
    execute format('revoke all on database %I from public', current_database());
    execute format('grant connect on database %I to runlane_app, runlane_scaler, runlane_reader', current_database());
end
$$;

-- Tables that exist, and those that later upgrades create.
grant select, insert, update, delete on all tables in schema public to runlane_app;
grant usage, select on all sequences in schema public to runlane_app;
grant select on all tables in schema public to runlane_reader;
alter default privileges in schema public grant select, insert, update, delete on tables to runlane_app;
alter default privileges in schema public grant usage, select on sequences to runlane_app;
alter default privileges in schema public grant select on tables to runlane_reader;

-- The view exists after the first upgrade; run this file again then, or only this part.
do $$
begin
    if to_regclass('public.runlane_scaling') is not null then
        grant select on runlane_scaling to runlane_scaler;
    end if;
end
$$;

-- For the metric runlane_oldest_transaction_seconds: the ages of transactions of other roles.
do $$
begin
    grant pg_read_all_stats to runlane_app;
exception when insufficient_privilege then
    raise notice 'pg_read_all_stats was not granted: the owner may not grant it. Metrics see their own sessions only.';
end
$$;
