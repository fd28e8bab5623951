"""Dead letters with their handling, and bulk jobs."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "v0005"
down_revision = "v0004"


def upgrade() -> None:
    for column in _letter_columns():
        op.add_column("dead_letters", column)
    _fill_letters()
    op.create_index("dead_letters_tenant", "dead_letters", ["tenant", "died_at"])
    _partial_index("dead_letters_open", "dead_letters", ["tenant", "died_at"], "state = 'open'")
    op.create_index("dead_letters_fingerprint", "dead_letters", ["fingerprint", "died_at"])
    _partial_index("dead_letters_retry", "dead_letters", ["retry_run_id"], "retry_run_id IS NOT NULL")
    op.create_table(
        "bulk_jobs",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("tenant", sa.Text()),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("options", sa.Text(), nullable=False),
        sa.Column("selection", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("changed", sa.Integer()),
        sa.Column("refused", sa.Integer()),
        sa.Column("rate", sa.Float()),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger()),
        sa.Column("stopped_by", sa.Text()),
        sa.Column("next_at", sa.BigInteger(), nullable=False),
        sa.Column("lease_until", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.Text()),
        sa.Column("fence", sa.Integer(), nullable=False),
    )
    _partial_index("bulk_jobs_running", "bulk_jobs", ["next_at"], "state = 'running'")
    op.create_index("bulk_jobs_tenant", "bulk_jobs", ["tenant", "id"])
    op.create_table(
        "bulk_items",
        sa.Column("job_id", sa.Text(), primary_key=True),
        sa.Column("no", sa.Integer(), primary_key=True),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("code", sa.Text()),
        sa.Column("reason", sa.Text()),
        sa.Column("new_run_id", sa.Text()),
        sa.Column("settled_at", sa.BigInteger()),
        sqlite_with_rowid=False,
    )
    op.create_index("bulk_items_state", "bulk_items", ["job_id", "state", "no"])
    op.create_index("bulk_items_run", "bulk_items", ["job_id", "run_id"], unique=True)


def _letter_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("tenant", sa.Text(), server_default="default", nullable=False),
        sa.Column("state", sa.Text(), server_default="open", nullable=False),
        sa.Column("code", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("message", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("fingerprint", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("fingerprint_version", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("last_step", sa.Text()),
        sa.Column("first_failed_at", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("times_died", sa.Integer(), server_default="1", nullable=False),
        sa.Column("handled_by", sa.Text()),
        sa.Column("handled_at", sa.BigInteger()),
        sa.Column("note", sa.Text()),
        sa.Column("assigned_to", sa.Text()),
        sa.Column("retry_run_id", sa.Text()),
    ]


def _fill_letters() -> None:
    """Complete the letters of the previous release. Their fingerprints are of no rule (version 0): target and code."""
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            "update dead_letters set code = coalesce(json_extract(error, '$.type'), 'unknown'),"
            " message = substr(coalesce(json_extract(error, '$.message'), ''), 1, 500)"
        )
    else:
        op.execute(
            "update dead_letters set code = coalesce(error::json ->> 'type', 'unknown'),"
            " message = substr(coalesce(error::json ->> 'message', ''), 1, 500)"
        )
    op.execute(
        "update dead_letters set first_failed_at = died_at, fingerprint = '0:' || target || ':' || code,"
        " tenant = coalesce((select tenant from runs where runs.id = dead_letters.run_id), 'default')"
    )


def _partial_index(name: str, table: str, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, table, columns, postgresql_where=where, sqlite_where=where)
