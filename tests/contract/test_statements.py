"""Every statement of the store compiles for both dialects, and every one that a worker issues has the fence."""

from __future__ import annotations

import importlib
import pkgutil
import re
from types import ModuleType

import pytest

import runlane.store
from runlane.store import usage
from runlane.store.orchestration import steps
from runlane.store.queue import claim, events, record
from runlane.store.sql import migrations
from runlane.store.sql.compound import CompoundWrite, texts_of
from runlane.store.sql.expressions import lit
from runlane.store.sql.statement import Dialect, Statement

DIALECTS: tuple[Dialect, ...] = ("postgresql", "sqlite")


def modules() -> list[ModuleType]:
    found = pkgutil.walk_packages(runlane.store.__path__, "runlane.store.")
    return [importlib.import_module(item.name) for item in found if not item.name.startswith(migrations.__name__)]


def statements_of(module: ModuleType) -> list[Statement]:
    found: list[Statement] = []
    for value in vars(module).values():
        if isinstance(value, Statement):
            found.append(value)
        elif isinstance(value, list):
            found += [item for item in value if isinstance(item, Statement)]  # pyright: ignore[reportUnknownVariableType]
        elif isinstance(value, dict):
            found += [item for item in value.values() if isinstance(item, Statement)]  # pyright: ignore[reportUnknownVariableType]
    return found


def chains_of(module: ModuleType) -> list[CompoundWrite]:
    return [value for value in vars(module).values() if isinstance(value, CompoundWrite)]


CHAINS = {chain.name: chain for module in modules() for chain in chains_of(module)}
ALL = {
    f"{module.__name__.removeprefix('runlane.store.')}.{statement.name}": statement
    for module in modules()
    for statement in statements_of(module)
}
CLAIMS = {"claim_lane", "claim_limited", "claim_quarantined"}
ONLY_POSTGRES = {
    name for name in ALL if name.startswith("sql.postgres.") or name == "queue.liveness_lock.take_liveness_lock"
}


def test_the_statements_were_found() -> None:
    assert len(ALL) > 50
    assert {"queue.claim_survey.survey_lanes", "queue.retention.delete_runs"} <= set(ALL)
    assert set(CHAINS) == {"accept", "accept_alone", *CLAIMS, "record", "take_back_runs"}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", sorted(set(ALL) - ONLY_POSTGRES))
def test_every_statement_compiles(name: str, dialect: Dialect) -> None:
    compiled = ALL[name].compiled(dialect)
    assert compiled.sql
    assert "__[POSTCOMPILE" not in compiled.sql
    if dialect == "postgresql":
        placeholders = {int(number) for number in re.findall(r"\$(\d+)", compiled.sql)}
        assert placeholders == set(range(1, len(compiled.names) + 1))
    else:
        assert compiled.sql.count("?") == len(compiled.names)


@pytest.mark.parametrize("name", sorted(CHAINS))
def test_every_chain_compiles(name: str) -> None:
    texts = texts_of(CHAINS[name])
    assert len(texts["postgresql"]) in (1, 2)
    assert len(texts["sqlite"]) > 1
    assert not [text for both in texts.values() for text in both if "__[POSTCOMPILE" in text]


# What a worker's attempt writes. Everything else in these modules only reads, or is no worker's.
WORKER_MODULES = (record, steps, events, claim, usage)
FENCED = {
    "save_steps",
    "record_steps",
    "record_calls",
    "append_events_fenced",
    "open_waits",
    "settle_waits",
    "add_usage",
}
# wake_answered touches only runs that paused a statement before, in the same transaction and through the fence.
NOT_A_WORKERS = {"append_events", "copy_way", "wake_answered", "forget_usage"}
OF_WORKERS = {statement.name: statement for module in WORKER_MODULES for statement in statements_of(module)}


def writes(statement: Statement) -> bool:
    sql = statement.compiled("postgresql").sql.lower()
    return bool(re.search(r"\b(insert into|update|delete from)\b(?! skip)", sql.replace("for update", "")))


def test_no_worker_statement_was_added_without_being_listed() -> None:
    assert {name for name, statement in OF_WORKERS.items() if writes(statement)} == FENCED | NOT_A_WORKERS
    assert {chain.name for module in WORKER_MODULES for chain in chains_of(module)} == {"record", *CLAIMS}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", sorted(FENCED))
def test_every_statement_of_a_worker_has_the_fence(name: str, dialect: Dialect) -> None:
    statement = OF_WORKERS[name]
    texts = [statement.compiled(dialect).sql, *([statement.single().sql] if dialect == "postgresql" else [])]
    for text in texts:
        sql = " ".join(text.split()).lower()
        condition = re.split(r"\b(?:where|join)\b", sql, maxsplit=1)[1]
        assert re.search(r"runs\.id = batch\.run_id", condition)
        assert re.search(r"runs\.attempt = batch\.attempt", condition)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_head_of_a_record_is_the_fence(dialect: Dialect) -> None:
    texts = texts_of(record.RECORD)[dialect]
    for text in texts if dialect == "postgresql" else texts[:1]:
        head = " ".join(text.split()).lower()
        condition = head[head.index("update runs") :].split(" returning ", 1)[0].split(" where ", 1)[1]
        assert "runs.id = batch.id" in condition
        assert "runs.attempt = batch.attempt" in condition
        assert "'running'" in condition


@pytest.mark.parametrize("name", ["record", "take_back_runs", "claim_lane"])
def test_the_links_of_a_chain_write_only_what_its_head_won(name: str) -> None:
    """On Postgres they read the head's rows, on SQLite these rows as a parameter; never the batch or the tables."""
    inserts = [text.lower() for text in texts_of(CHAINS[name])["sqlite"][1:] if "insert into" in text.lower()]
    assert inserts
    for insert in inserts:
        assert insert.count(" from ") + insert.count("\nfrom ") == 2  # the rows, unpacked from their parameter
        assert "as changed" in insert


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_claim_makes_the_fence(dialect: Dialect) -> None:
    head = " ".join(texts_of(claim.CLAIM)[dialect][0].split()).lower()
    assert "attempt=(runs.attempt + 1)" in head
    assert "runs.status = 'queued'" in head


def test_a_constant_that_could_carry_sql_is_refused() -> None:
    with pytest.raises(ValueError, match="no constant"):
        lit("x' or '1'='1")
    assert str(lit(5)) == "5"
