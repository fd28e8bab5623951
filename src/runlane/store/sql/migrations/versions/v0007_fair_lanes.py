"""Fair shares of tenants in lanes, holds and progress limits of lanes, and the health address of workers."""

import sqlalchemy as sa
from alembic import op

revision = "v0007"
down_revision = "v0005"


def upgrade() -> None:
    op.add_column("runs", sa.Column("start_tag", sa.BigInteger()))
    op.add_column("runs", sa.Column("fairness_key", sa.Text()))
    op.add_column("runs", sa.Column("recorded_at", sa.BigInteger()))
    op.add_column("tenants", sa.Column("weight", sa.Float(), server_default="1", nullable=False))
    op.add_column("tenants", sa.Column("shares_lanes", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column("lanes", sa.Column("fair", sa.Boolean(), server_default=sa.text("true"), nullable=False))
    op.add_column("lanes", sa.Column("priority_seconds", sa.Integer(), server_default="600", nullable=False))
    op.add_column("lanes", sa.Column("stale_timeout_minutes", sa.Integer()))
    op.add_column("lanes", sa.Column("held_until", sa.BigInteger()))
    op.create_index(
        "lanes_stale_timeout",
        "lanes",
        ["stale_timeout_minutes"],
        postgresql_where=sa.text("stale_timeout_minutes is not null"),
        sqlite_where=sa.text("stale_timeout_minutes is not null"),
    )
    op.add_column("workers", sa.Column("health_address", sa.Text()))
    op.create_table(
        "lane_holds",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger()),
    )
    op.create_index("lane_holds_lane", "lane_holds", ["lane"])
    op.create_table(
        "lane_shares",
        sa.Column("lane", sa.Text(), primary_key=True),
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("fairness_key", sa.Text(), primary_key=True),
        sa.Column("finish_tag", sa.BigInteger(), nullable=False),
        sa.Column("charge", sa.BigInteger(), nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "lane_clocks",
        sa.Column("lane", sa.Text(), primary_key=True),
        sa.Column("read_at", sa.BigInteger(), nullable=False),
        sa.Column("virtual", sa.BigInteger(), nullable=False),
        sa.Column("earlier_at", sa.BigInteger(), nullable=False),
        sa.Column("earlier_virtual", sa.BigInteger(), nullable=False),
        sqlite_with_rowid=False,
    )
    op.execute(sa.text("update tenants set shares_lanes = true where (select count(*) from tenants) > 1"))
    op.execute(sa.text(_scaling_view(op.get_bind().dialect.name)))


def _scaling_view(dialect: str) -> str:
    """Return the view from which autoscalers read the demand of each lane, with names that later versions keep."""
    words = {
        "now": "cast((julianday('now') - 2440587.5) * 86400000000 as integer)",
        "limited": "limited = 1",
        "free": "limited = 0",
        "enabled": "l.enabled = 1",
    }
    if dialect == "postgresql":
        words = {
            "now": "(extract(epoch from clock_timestamp()) * 1000000)::bigint",
            "limited": "limited",
            "free": "not limited",
            "enabled": "l.enabled",
        }
    return _SCALING_VIEW.format(**words)


_SCALING_VIEW = """
create view runlane_scaling as
with ready as (
    select lane, tenant, 0 as bounded, count(*) as n, min(coalesce(due_at, accepted_at)) as since
    from runs where status = 'queued' and {free} and max_neighbors is null group by lane, tenant
    union all
    select lane, tenant, 1, count(*), min(coalesce(due_at, accepted_at))
    from runs where status = 'queued' and {limited} and max_neighbors is null group by lane, tenant
    union all
    select lane, tenant, case when {limited} then 1 else 0 end, count(*), min(coalesce(due_at, accepted_at))
    from runs where status = 'queued' and max_neighbors is not null group by lane, tenant, limited
),
rooms as (
    select id, max_running
        - (select count(*) from runs where runs.tenant = tenants.id and runs.status = 'running' and {limited}) as room
    from tenants where max_running is not null
),
queues as (
    select ready.lane, sum(ready.n) as queued, min(ready.since) as since,
        sum(case
            when ready.bounded = 0 or rooms.id is null or rooms.room >= ready.n then ready.n
            when rooms.room < 0 then 0
            else rooms.room
        end) as admitted
    from ready left join rooms on rooms.id = ready.tenant
    group by ready.lane
),
demand as (
    select l.name as lane,
        coalesce(queues.queued, 0) as queued,
        (select count(*) from runs where runs.lane = l.name and runs.status = 'running') as running,
        case when {enabled} and coalesce(l.held_until, 0) <= {now} then coalesce(queues.admitted, 0) else 0 end
            as admitted,
        l.max_slots,
        case when queues.since is null then 0 else {now} - queues.since end as waited_us
    from lanes l left join queues on queues.lane = l.name
),
bounded as (
    select lane, queued, running, waited_us,
        case
            when max_slots is null or max_slots - running >= admitted then admitted
            when max_slots < running then 0
            else max_slots - running
        end as startable
    from demand
)
select lane, queued, running, startable, running + startable as wanted_slots,
    case when waited_us < 0 then 0 else waited_us / 1000000 end as oldest_seconds
from bounded
"""
