"""The size of the database and of its tables, for operators.

Postgres answers from its catalog and the sizes of files. SQLite has to read the pages of every table, so a large file
is not measured table by table.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import text

from runlane.domain.database_size import DatabaseSize, TableSize
from runlane.store.sql.database import Database
from runlane.store.sql.statement import Dialect, Statement

# Reading the pages of a file of this size takes about a second.
MAX_MEASURED_BYTES: Final = 1_000_000_000
_WHOLE: Final[dict[Dialect, Statement]] = {
    "postgresql": Statement(
        "size_of_database",
        text("select pg_database_size(current_database()) as bytes"),
        purpose="Read the size of the database.",
    ),
    "sqlite": Statement(
        "size_of_database",
        text("select page_count * page_size as bytes from pragma_page_count(), pragma_page_size()"),
        purpose="Read the size of the database.",
    ),
}
_TABLES: Final[dict[Dialect, Statement]] = {
    "postgresql": Statement(
        "sizes_of_tables",
        text(
            "select c.relname::text as name, pg_total_relation_size(c.oid) as bytes, "
            "case when c.reltuples < 0 then null else c.reltuples::bigint end as rows from pg_class c "
            "where c.relnamespace = current_schema()::regnamespace and c.relkind = 'r' order by 2 desc, 1"
        ),
        purpose="Read the size of each table with its indexes, and its estimated number of rows.",
    ),
    "sqlite": Statement(
        "sizes_of_tables",
        text(
            "select s.tbl_name as name, sum(d.pgsize) as bytes, null as rows from dbstat d "
            "join sqlite_schema s on s.name = d.name where d.aggregate = 1 group by 1 order by 2 desc, 1"
        ),
        purpose="Read the size of each table with its indexes.",
    ),
}
_CAN_MEASURE = Statement(
    "can_measure_tables",
    text("select count(*) as count from pragma_module_list where name = 'dbstat'"),
    purpose="Read whether this SQLite measures tables.",
)


async def read_sizes(database: Database) -> DatabaseSize:
    """Return the size of the database and of its tables, the largest first."""
    (whole,) = await database.query(_WHOLE[database.dialect])
    size = int(whole["bytes"])
    if database.dialect == "sqlite":
        if size > MAX_MEASURED_BYTES:
            note = f"Tables are measured in files of up to {MAX_MEASURED_BYTES // 1_000_000_000} GB."
            return DatabaseSize(database.dialect, size, None, note)
        if not (await database.query(_CAN_MEASURE))[0]["count"]:
            return DatabaseSize(database.dialect, size, None, "This build of SQLite does not measure tables (dbstat).")
    rows = await database.query(_TABLES[database.dialect])
    tables = tuple(TableSize(row["name"], int(row["bytes"]), row["rows"]) for row in rows)
    return DatabaseSize(database.dialect, size, tables, None)
