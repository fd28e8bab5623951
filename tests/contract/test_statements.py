"""Every statement of the store compiles for both dialects, and every one that a worker issues has the fence."""

from __future__ import annotations

import importlib
import pkgutil
import re
from types import ModuleType

import pytest

import runlane.store
from runlane.store import claim, events, migrations, record, steps
from runlane.store.statement import Dialect, Statement, lit

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


ALL = {
    f"{module.__name__.removeprefix('runlane.store.')}.{statement.name}": statement
    for module in modules()
    for statement in statements_of(module)
}
ONLY_POSTGRES = {"postgres.lock", "postgres.try_lock", "postgres.status_of_mark"}


def test_the_statements_were_found() -> None:
    assert len(ALL) > 50
    assert {"record.record", "claim.claim_lane", "retention.delete_runs"} <= set(ALL)


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


# What a worker's attempt writes. Everything else in these modules only reads, or is no worker's.
WORKER_MODULES = (record, steps, events, claim)
FENCED = {"record", "end_attempts", "store_results", "save_steps", "append_events_fenced", "claim_lane"}
NOT_A_WORKERS = {"append_events"}
OF_WORKERS = {statement.name: statement for module in WORKER_MODULES for statement in statements_of(module)}


def writes(statement: Statement) -> bool:
    sql = statement.compiled("postgresql").sql.lower()
    return bool(re.search(r"\b(insert into|update|delete from)\b(?! skip)", sql.replace("for update", "")))


def test_no_worker_statement_was_added_without_being_listed() -> None:
    assert {name for name, statement in OF_WORKERS.items() if writes(statement)} == FENCED | NOT_A_WORKERS


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", sorted(FENCED))
def test_every_statement_of_a_worker_has_the_fence(name: str, dialect: Dialect) -> None:
    sql = " ".join(OF_WORKERS[name].compiled(dialect).sql.split()).lower()
    condition = re.split(r"\b(?:where|join)\b", sql, maxsplit=1)[1]
    if name == "claim_lane":
        # It makes the fence: the new attempt, of runs that are queued at this moment.
        assert "attempt=(runs.attempt + 1)" in sql
        assert "runs.status = 'queued'" in sql
        return
    assert re.search(r"runs\.id = batch\.run_id", condition)
    assert re.search(r"runs\.attempt = batch\.attempt", condition)
    if name == "record":
        assert "runs.status = 'running'" in condition


def test_a_constant_that_could_carry_sql_is_refused() -> None:
    with pytest.raises(ValueError, match="no constant"):
        lit("x' or '1'='1")
    assert str(lit(5)) == "5"
