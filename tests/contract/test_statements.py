"""Every statement of the store compiles for both dialects, and every one that a worker issues has the fence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runlane.store import usage
from runlane.store.orchestration import steps
from runlane.store.queue import claim, events, record
from runlane.store.sql.compound import CompoundWrite
from runlane.store.sql.expressions import lit
from runlane.store.sql.golden import find_statements, render, statements_in
from runlane.store.sql.statement import Dialect, Statement
from runlane.store.threads import graph_writes

DIALECTS: tuple[Dialect, ...] = ("postgresql", "sqlite")
GOLDEN = Path(__file__).parents[2] / "docs/reference/sql"

FOUND = {dialect: find_statements(dialect) for dialect in DIALECTS}
STATEMENTS = {
    (dialect, name): statement
    for dialect, found in FOUND.items()
    for name, statement in found.items()
    if isinstance(statement, Statement)
}
COMPOUND_WRITES = {
    name: statement for name, statement in FOUND["postgresql"].items() if isinstance(statement, CompoundWrite)
}
CLAIMS = {"claim_lane", "claim_limited", "claim_quarantined"}


def test_the_statements_were_found() -> None:
    assert len(STATEMENTS) > 400
    assert {"survey_lanes", "delete_runs"} <= set(FOUND["sqlite"])
    assert set(COMPOUND_WRITES) == {
        "accept",
        "accept_alike",
        "accept_alike_limited",
        "accept_alone",
        "accept_counted",
        "accept_limited",
        "accept_ruled",
        "accept_shared",
        *CLAIMS,
        "grant_slots",
        "record",
        "take_back_runs",
        "record_webhook_tries",
    }
    assert {"lock", "take_liveness_lock"} <= set(FOUND["postgresql"]) - set(FOUND["sqlite"])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_statement_has_a_purpose(dialect: Dialect) -> None:
    assert [name for name, statement in FOUND[dialect].items() if not statement.purpose.endswith(".")] == []


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_documented_sql_is_what_is_sent(dialect: Dialect) -> None:
    documented = (GOLDEN / f"{dialect}.sql").read_text("utf-8")
    assert render(dialect) == documented, (
        f"Run: python -m runlane.store.sql.golden {dialect} > docs/reference/sql/{dialect}.sql"
    )


@pytest.mark.parametrize(("dialect", "name"), sorted(STATEMENTS))
def test_every_statement_compiles(dialect: Dialect, name: str) -> None:
    compiled = STATEMENTS[dialect, name].compiled(dialect)
    assert compiled.sql
    assert "__[POSTCOMPILE" not in compiled.sql
    if dialect == "postgresql":
        placeholders = {int(number) for number in re.findall(r"\$(\d+)", compiled.sql)}
        assert placeholders == set(range(1, len(compiled.names) + 1))
    else:
        assert compiled.sql.count("?") == len(compiled.names)


@pytest.mark.parametrize("name", sorted(COMPOUND_WRITES))
def test_every_compound_write_compiles(name: str) -> None:
    texts = {
        dialect: list(COMPOUND_WRITES[name].texts(dialect).values()) for dialect in DIALECTS if name in FOUND[dialect]
    }
    assert len(texts["postgresql"]) in (1, 2)
    assert len(texts.get("sqlite", [""] * 2)) > 1
    assert not [text for found in texts.values() for text in found if "__[POSTCOMPILE" in text]


# What an attempt writes. Every other statement in these modules only reads, or is not sent by workers.
WORKER_MODULES = (record, steps, events, claim, usage, graph_writes)
FENCED = {
    "save_steps",
    "record_steps",
    "record_calls",
    "append_events_fenced",
    "open_waits",
    "close_waits",
    "add_usage",
    "store_checkpoints_fenced",
    "store_checkpoint_values_fenced",
    "keep_replaced_writes",
    "store_checkpoint_writes_fenced",
    "set_thread_results",
    "set_thread_outcomes",
}
# wake_answered changes only runs that were suspended by the statement before, in the same transaction and through the
# fence. add_usage_of_calls counts embeddings, which are billed whichever attempt made them, and those of searches. The
# last three are of savers outside a run.
UNFENCED = {
    "append_events",
    "copy_steps",
    "wake_answered",
    "delete_usage",
    "add_usage_of_calls",
    "store_checkpoints",
    "store_checkpoint_values",
    "store_checkpoint_writes",
}
OF_WORKERS = {
    statement.name: statement
    for module in WORKER_MODULES
    for statement in statements_in(vars(module).values(), "postgresql")
}


def writes(statement: Statement) -> bool:
    sql = statement.compiled("postgresql").sql.lower()
    return bool(re.search(r"\b(insert into|update|delete from)\b(?! skip)", sql.replace("for update", "")))


def test_no_worker_statement_was_added_without_being_listed() -> None:
    plain = {name: statement for name, statement in OF_WORKERS.items() if isinstance(statement, Statement)}
    assert {name for name, statement in plain.items() if writes(statement)} == FENCED | UNFENCED
    assert set(OF_WORKERS) - set(plain) == {"record", *CLAIMS}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", sorted(FENCED))
def test_every_statement_of_a_worker_has_the_fence(name: str, dialect: Dialect) -> None:
    for text in OF_WORKERS[name].texts(dialect).values():
        sql = " ".join(text.split()).lower()
        condition = re.split(r"\b(?:where|join)\b", sql, maxsplit=1)[1]
        assert re.search(r"runs\.id = batch\.run_id", condition)
        assert re.search(r"runs\.attempt = batch\.attempt", condition)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_head_of_a_record_is_the_fence(dialect: Dialect) -> None:
    texts = list(record.RECORD.texts(dialect).values())
    for text in texts if dialect == "postgresql" else texts[:1]:
        head = " ".join(text.split()).lower()
        condition = head[head.index("update runs") :].split(" returning ", 1)[0].split(" where ", 1)[1]
        assert "runs.id = batch.id" in condition
        assert "runs.attempt = batch.attempt" in condition
        assert "'running'" in condition


@pytest.mark.parametrize("name", ["record", "take_back_runs", "claim_lane"])
def test_the_links_of_a_compound_write_write_only_for_rows_that_its_head_changed(name: str) -> None:
    """On Postgres they read the head's rows, on SQLite these rows as a parameter; never the batch or the tables."""
    links = list(COMPOUND_WRITES[name].texts("sqlite").values())[1:]
    inserts = [text.lower() for text in links if "insert into" in text.lower()]
    assert inserts
    for insert in inserts:
        assert insert.count(" from ") + insert.count("\nfrom ") == 2  # the rows, unpacked from their parameter
        assert "as changed" in insert


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_claim_makes_the_fence(dialect: Dialect) -> None:
    head = " ".join(claim.CLAIM.texts(dialect)[""].split()).lower()
    assert "attempt=(runs.attempt + 1)" in head
    assert "runs.status = 'queued'" in head


def test_a_constant_that_could_carry_sql_is_refused() -> None:
    with pytest.raises(ValueError, match="not a constant"):
        lit("x' or '1'='1")
    assert str(lit(5)) == "5"
