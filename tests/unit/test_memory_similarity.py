"""The nearest vectors: the same with and without numpy."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from runlane.store.memory import similarity
from runlane.store.memory.similarity import Found, better
from runlane.store.memory.vectors import pack_unit
from runlane.store.sql.statement import Row

DIMENSIONS = 96
LIMIT = 20


def row(seq: int, vector: bytes) -> Row:
    return cast("Row", {"entry_id": f"entry_{seq}", "seq": seq, "vector": vector})


def search(pages: list[list[Row]], query: bytes) -> list[Found]:
    best: list[Found] = []
    for page in pages:
        best = better(best, query, page, LIMIT)
    return best


def both(monkeypatch: pytest.MonkeyPatch, pages: list[list[Row]], query: bytes) -> tuple[list[Found], list[Found]]:
    """Return what is found with numpy and without it."""
    assert similarity.find_numpy() is not None
    fast = search(pages, query)
    monkeypatch.setattr(similarity, "find_numpy", lambda: None)
    return fast, search(pages, query)


def test_the_nearest_vectors_are_the_same_with_and_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(3)
    vectors = [pack_unit([chance.gauss(0, 1) for _ in range(DIMENSIONS)]) for _ in range(500)]
    pages = [[row(seq, vectors[seq]) for seq in range(start, start + 100)] for start in range(0, 500, 100)]
    fast, slow = both(monkeypatch, pages, vectors[123])
    assert [found[1:] for found in fast] == [found[1:] for found in slow]
    assert [found[0] for found in fast] == pytest.approx([found[0] for found in slow], abs=1e-5)
    assert fast[0][1:] == (123, "entry_123")
    assert len(fast) == LIMIT


def test_of_equal_vectors_the_latest_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    same = pack_unit([1.0, 0.0, 0.0, 0.0])
    pages: list[list[Any]] = [[row(seq, same) for seq in range(start, start + 50)] for start in (50, 0)]
    fast, slow = both(monkeypatch, pages, same)
    assert fast == slow == [(1.0, seq, f"entry_{seq}") for seq in range(99, 99 - LIMIT, -1)]


def test_vectors_of_another_model_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    query, opposite, longer = pack_unit([1.0, 0.0]), pack_unit([-1.0, 0.0]), pack_unit([1.0, 0.0, 0.0])
    pages = [[row(1, longer), row(2, pack_unit([1.0, 1.0]))], [row(3, longer)], [row(4, longer), row(5, query)]]
    fast, slow = both(monkeypatch, pages, query)
    assert [found[1] for found in fast] == [found[1] for found in slow] == [5, 2, 4, 3, 1]
    assert better([], query, [row(1, opposite), row(2, longer)], 1) == [(-1.0, 2, "entry_2")]
