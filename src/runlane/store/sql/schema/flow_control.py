"""Flow control: the state of keys, and the inputs that batches collect."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, Table, Text

from runlane.store.sql.schema.base import metadata

# One row per key of a rule, locked by every start that has the key. `tat` is the theoretical arrival time of a rate, in
# nanoseconds. `run_id` is the debounced run or the batch that further starts join until `due_at`. `used_on` is a day,
# so that its index entry changes once a day.
flow_keys = Table(
    "flow_keys",
    metadata,
    Column("key", Text, primary_key=True),
    Column("used_on", Integer, nullable=False),
    Column("tat", BigInteger),
    Column("run_id", Text),
    Column("opened_at", BigInteger),
    Column("due_at", BigInteger),
    Column("starts", Integer),
    Column("size", Integer),
    Column("most", Integer),
    # Starts that were skipped or dropped.
    Column("skipped", BigInteger, nullable=False, server_default="0"),
)
Index("flow_keys_used", flow_keys.c.used_on)

# The inputs of a batch that is not due yet, as JSON, in the order of acceptance.
batch_items = Table(
    "batch_items",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("no", Integer, primary_key=True),
    Column("item", Text, nullable=False),
    sqlite_with_rowid=False,
)
