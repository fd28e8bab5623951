"""Memory: users, vaults, memories with their entries, fragments and operations, and the nodes that own them."""

import sqlalchemy as sa
from alembic import op

revision = "v0017"
down_revision = "v0015"


def upgrade() -> None:
    op.create_table(
        "memory_users",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("email", sa.Text(), nullable=False),
        sa.Column("display_name", sa.Text(), nullable=False),
        sa.Column("time_zone", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "memory_vaults",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "memories",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("vault_id", sa.Text(), nullable=False),
        sa.Column("memory_type", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("used_at", sa.BigInteger(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("applied_seq", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.Text()),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("parked", sa.Boolean(), nullable=False),
        sa.Column("stale", sa.Boolean(), nullable=False),
    )
    op.create_table(
        "memory_entries",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("memory_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("changed_seq", sa.BigInteger(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger()),
        sa.Column("corrects", sa.Text()),
        sa.Column("corrected_by", sa.Text()),
        sa.Column("corrected_at", sa.BigInteger()),
        sa.Column("correction_reason", sa.Text()),
        sa.Column("deleted_at", sa.BigInteger()),
    )
    op.create_table(
        "memory_fragments",
        sa.Column("memory_id", sa.Text(), primary_key=True),
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "memory_ops",
        sa.Column("memory_id", sa.Text(), primary_key=True),
        sa.Column("seq", sa.BigInteger(), primary_key=True),
        sa.Column("op_id", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text()),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "memory_nodes",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("lease_until", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
    )
    op.create_index("memory_users_email", "memory_users", ["tenant", "email"], unique=True)
    op.create_index("memory_vaults_title", "memory_vaults", ["tenant", "user_id", "title"], unique=True)
    op.create_index("memory_vaults_id", "memory_vaults", ["tenant", "id"])
    op.create_index("memories_title", "memories", ["vault_id", "title"], unique=True)
    op.create_index("memories_tenant", "memories", ["tenant", "id"])
    op.create_index(
        "memories_owner",
        "memories",
        ["owner"],
        postgresql_where=sa.text("owner IS NOT NULL"),
        sqlite_where=sa.text("owner IS NOT NULL"),
    )
    op.create_index("memory_entries_order", "memory_entries", ["memory_id", "seq"], unique=True)
    op.create_index(
        "memory_entries_expiring",
        "memory_entries",
        ["expires_at"],
        postgresql_where=sa.text("expires_at IS NOT NULL"),
        sqlite_where=sa.text("expires_at IS NOT NULL"),
    )
    op.create_index("memory_ops_id", "memory_ops", ["memory_id", "op_id"], unique=True)
    op.create_index("memory_ops_created", "memory_ops", ["created_at"])
    op.create_index(
        "memory_ops_waiting",
        "memory_ops",
        ["state"],
        postgresql_where=sa.text("state != 'applied'"),
        sqlite_where=sa.text("state != 'applied'"),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE INDEX memory_entries_words ON memory_entries USING gin ((to_tsvector('simple'::regconfig, "
            "regexp_replace((summary || ' '::text) || text, '[^[:alnum:]]+'::text, ' '::text, 'g'::text)) "
            "|| array_to_tsvector(ARRAY['memory:'::text || memory_id])))"
        )
