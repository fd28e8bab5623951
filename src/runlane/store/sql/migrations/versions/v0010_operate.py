"""Lists of runs by the schedule that has started them; headers of webhook endpoints; what webhooks report once;
quotas of stored bytes."""

import sqlalchemy as sa
from alembic import op

revision = "v0010"
down_revision = "v0009"

# Lists find these runs by a row beside their tags. The runs of schedules that were deleted before are not found.
_MARK_RUNS = """
insert into run_tags (tenant, tag, run_id)
select s.tenant, '#schedule:' || s.id, r.id
from schedule_firings f join schedules s on s.uid = f.schedule_uid join runs r on r.id = f.run_id
where true
on conflict do nothing
"""


def upgrade() -> None:
    op.execute(sa.text(_MARK_RUNS))
    op.add_column("webhook_endpoints", sa.Column("headers", sa.Text(), server_default="{}", nullable=False))
    op.add_column("webhook_attempts", sa.Column("request_headers", sa.Text()))
    op.add_column("tenant_quotas", sa.Column("counted_at", sa.BigInteger()))
    op.create_table(
        "webhook_notices",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("subject", sa.Text(), primary_key=True),
        sa.Column("type", sa.Text(), primary_key=True),
        sa.Column("day", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("webhook_notices_created", "webhook_notices", ["created_at"])
