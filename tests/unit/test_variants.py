"""Every test is executed on a database, those that depend on it on both, and the choice never varies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.variants import API, API_ON_BOTH, MODULES_FOR_PGBOUNCER, ON_EITHER, Variant, choose

TESTS = Path(__file__).parents[1]
BOTH = ("sqlite", "postgres-redis")
NAMES = tuple(f"test_{number}" for number in range(200))


def variants_of(file: str, *databases: str) -> list[Variant]:
    return [Variant(f"{file}::{name}[{database}-viewer]", database) for name in NAMES for database in databases]


def ids(variants: list[Variant]) -> set[str]:
    return {variant.id for variant in variants}


@pytest.mark.parametrize("file", [f"{API}test_chat.py", *sorted(ON_EITHER)])
def test_each_test_of_an_interface_is_executed_on_one_database(file: str) -> None:
    variants = variants_of(file, *BOTH)
    chosen = choose(variants, one_database=True)
    assert sorted(name.partition("::")[2].partition("[")[0] for name in chosen) == sorted(NAMES)
    assert 60 < sum("[sqlite-viewer]" in name for name in chosen) < 140
    assert choose(variants[::-1], one_database=True) == chosen


@pytest.mark.parametrize("database", BOTH)
def test_a_test_with_one_variant_is_executed(database: str) -> None:
    variants = variants_of(f"{API}test_chat.py", database)
    assert choose(variants, one_database=True) == ids(variants)


def test_a_test_without_a_database_is_executed() -> None:
    variants = [Variant(f"{API}test_chat.py::test_plain", None), Variant(f"{API}test_chat.py::test_other[1]", None)]
    assert choose(variants, one_database=True) == ids(variants)


@pytest.mark.parametrize(
    "file", [f"{API}test_lists.py", "tests/contract/test_chat.py", "tests/integration/test_chat.py"]
)
def test_tests_that_depend_on_the_database_are_executed_on_both(file: str) -> None:
    variants = variants_of(file, *BOTH)
    assert choose(variants, one_database=True) == ids(variants)


def test_chosen_files_are_executed_on_both() -> None:
    variants = variants_of(f"{API}test_chat.py", *BOTH)
    assert choose(variants, one_database=False) == ids(variants)


@pytest.mark.parametrize(("module", "databases"), [("test_claim", 2), ("test_usage", 1)])
def test_the_pgbouncer_variant_is_executed_where_it_differs(module: str, databases: int) -> None:
    variants = variants_of(f"tests/contract/{module}.py", "postgres", "postgres-pgbouncer")
    assert len(choose(variants, one_database=True)) == databases * len(NAMES)


def test_the_named_modules_exist() -> None:
    assert {path.stem for path in (TESTS.parent / API).glob("test_*.py")} >= API_ON_BOTH
    assert [file for file in ON_EITHER if not (TESTS.parent / file).is_file()] == []
    assert {path.stem for path in (TESTS / "contract").glob("test_*.py")} >= MODULES_FOR_PGBOUNCER
