-- Storage settings of the tables that change most. Run it once after `runlane db upgrade`, as their owner.
-- Vacuum starts after 1 percent of dead rows, and new versions of a row find room in its page, so that indexes without
-- changed columns are not touched.
alter table runs set (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.05
);
alter table workers set (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100);
alter table run_attempts set (autovacuum_vacuum_scale_factor = 0.02);
alter table webhook_deliveries set (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01);
-- Rows are only inserted, and deleted in bulk: vacuum is needed for the visibility map.
alter table run_events set (autovacuum_vacuum_insert_scale_factor = 0.05);
