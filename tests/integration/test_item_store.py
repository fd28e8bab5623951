"""The store of graphs answers as LangGraph's own in-memory store does, on both databases."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.store.base import GetOp, ListNamespacesOp, MatchCondition, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from runlane.domain.item_text import item_text, matches_filter, texts_at
from runlane.errors import InvalidRequest
from runlane.graphs.item_store import ItemStore, pack, unpack
from runlane.store.threads.items import (
    NewItem,
    decode_namespace,
    encode_namespace,
    put_items,
    read_item,
    sweep_items,
)
from tests.harness import Store

ITEMS: dict[tuple[tuple[str, ...], str], dict[str, Any]] = {
    (("a",), "k1"): {"x": 1, "name": "ada", "in": {"y": [1, 2]}},
    (("a", "b"), "k1"): {"x": 2, "name": "bob"},
    (("a", "b"), "k2"): {"x": 3, "name": "cleo", "in": {"y": [1]}},
    (("a", "bc"), "k1"): {"x": 4},
    (("ab",), "k1"): {"x": 5, "flag": None},
}
FILTERS: list[dict[str, Any]] = [
    {"x": 2}, {"x": {"$gt": 2}}, {"x": {"$gte": 2, "$lt": 4}}, {"x": {"$lte": 1}}, {"x": {"$ne": 1}},
    {"name": {"$eq": "bob"}}, {"in": {"y": [1]}}, {"flag": None, "x": 5}, {"x": 1, "name": "bob"},
]  # fmt: skip


async def filled(store: Any) -> Any:
    await store.abatch([PutOp(namespace, key, value) for (namespace, key), value in ITEMS.items()])
    return store


def shown(result: Any) -> Any:
    if isinstance(result, list):
        return sorted((shown(item) for item in result), key=repr)  # pyright: ignore[reportUnknownVariableType]
    return (result.namespace, result.key, result.value) if hasattr(result, "key") else result


async def test_answers_are_those_of_the_store_in_memory(store: Store) -> None:
    ours, theirs = await filled(ItemStore(store.database)), await filled(InMemoryStore())
    ops: list[Any] = [GetOp(*place) for place in ITEMS]
    ops += [GetOp(("a",), "no")]
    prefixes = [(), ("a",), ("a", "b"), ("ab",), ("no",)]
    ops += [SearchOp(prefix, limit=100) for prefix in prefixes]
    ops += [SearchOp((), filter=wanted, limit=100) for wanted in FILTERS]
    conditions = [
        (), (MatchCondition("prefix", ("a",)),), (MatchCondition("suffix", ("b",)),),
        (MatchCondition("prefix", ("*", "b")),), (MatchCondition("prefix", ("a",)), MatchCondition("suffix", ("bc",))),
    ]  # fmt: skip
    ops += [ListNamespacesOp(match_conditions=some, max_depth=depth) for some in conditions for depth in (None, 1)]
    ops += [ListNamespacesOp(limit=2, offset=1)]
    found, expected = await ours.abatch(ops), await theirs.abatch(ops)
    for op, ours_shown, theirs_shown in zip(ops, map(shown, found), map(shown, expected), strict=True):
        assert ours_shown == theirs_shown, op


async def test_an_update_keeps_the_time_of_creation(store: Store) -> None:
    items = ItemStore(store.database)
    await items.aput(("a",), "k", {"x": 1})
    first: Any = await items.aget(("a",), "k")
    await items.aput(("a",), "k", {"x": 2})
    second: Any = await items.aget(("a",), "k")
    assert (second.value, second.created_at) == ({"x": 2}, first.created_at)
    assert second.updated_at > first.updated_at
    await items.adelete(("a",), "k")
    assert await items.aget(("a",), "k") is None


async def test_reads_of_a_batch_see_the_items_before_its_writes(store: Store) -> None:
    items = await filled(ItemStore(store.database))
    read, *_ = await items.abatch([GetOp(("a",), "k1"), PutOp(("a",), "k1", {"x": 9}), PutOp(("a",), "k1", {"x": 10})])
    assert read.value["x"] == 1
    assert (await items.aget(("a",), "k1")).value == {"x": 10}


async def test_pages_of_a_search(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runlane.store.threads.items._PAGE", 2)
    items = await filled(ItemStore(store.database))
    whole = [(item.namespace, item.key) for item in await items.asearch((), limit=10)]
    assert whole == sorted(ITEMS)
    paged = [item for offset in range(5) for item in await items.asearch((), limit=1, offset=offset)]
    assert [(item.namespace, item.key) for item in paged] == whole
    assert [item.value["x"] for item in await items.asearch((), filter={"x": {"$gt": 1}}, limit=2, offset=1)] == [3, 4]


async def test_a_search_for_words_ranks_items_that_have_them_first(store: Store) -> None:
    items = ItemStore(store.database)
    texts = ["likes tea", "likes coffee, and rare teas", "hates coffee", "has a dog"]
    for number, text in enumerate(texts):
        await items.aput(("memories",), f"k{number}", {"text": text})
    await items.aput(("memories",), "hidden", {"text": "coffee"}, index=False)
    found = await items.asearch(("memories",), query="who likes Coffee?")
    assert [item.key for item in found] == ["k1", "k0", "k2", "hidden", "k3"]
    assert [item.score is None for item in found] == [False, False, False, True, True]
    await items.aput(("memories",), "k3", {"text": "dog", "tags": [{"label": "coffee"}]}, index=["tags[*].label"])
    found = await items.asearch(("memories",), query="dog")
    assert all(item.score is None for item in found)


def embed(texts: list[str]) -> list[list[float]]:
    """Return vectors in which words with the same meaning are equal."""
    meanings = [("dog", "puppy"), ("tea", "coffee"), ("car", "truck")]
    return [[float(any(word in text for word in words)) for words in meanings] for text in texts]


async def test_a_search_with_embeddings_also_compares_meaning(store: Store) -> None:
    index: Any = {"dims": 3, "embed": embed, "fields": ["text"]}
    items = ItemStore(store.database, index=index)
    for key, text in {"a": "a puppy sleeps", "b": "a cup of tea", "c": "the truck is red"}.items():
        await items.aput(("memories",), key, {"text": text})
    assert [item.key for item in await items.asearch(("memories",), query="dog", limit=1)] == ["a"]
    assert [item.key for item in await items.asearch(("memories",), query="coffee", limit=1)] == ["b"]
    # Both rankings count: the words of `c` and the meaning of `b`.
    found = await items.asearch(("memories",), query="red coffee")
    assert {item.key for item in found[:2]} == {"b", "c"}


async def test_an_expired_item_is_gone_before_it_is_deleted(store: Store) -> None:
    items = ItemStore(store.database, ttl={"refresh_on_read": True, "default_ttl": 60.0})
    await items.aput(("a",), "k", {"x": 1})
    await items.aput(("a",), "forever", {"x": 2}, ttl=None)
    await items.aput(("a",), "short", {"x": 3}, ttl=0.5)

    async def expiries() -> dict[str, int]:
        return {row["key"]: row["expires_at"] for row in await store.sql("select key, expires_at from store_items")}

    before = await expiries()
    assert before["forever"] is None
    assert before["short"] < before["k"]
    await items.aget(("a",), "k", refresh_ttl=False)
    assert await expiries() == before
    await items.aget(("a",), "k")
    assert (await expiries())["k"] > before["k"]
    await items.asearch(("a",))
    assert (await expiries())["short"] > before["short"]
    await store.sql("update store_items set expires_at = 1 where key = 'k'")
    assert await items.aget(("a",), "k") is None
    assert [item.key for item in await items.asearch(("a",))] == ["forever", "short"]
    assert (await expiries())["k"] == 1
    assert await store.database.transact(sweep_items) == 1
    assert set(await expiries()) == {"forever", "short"}
    await store.sql("update store_items set expires_at = 1")
    assert await items.alist_namespaces() == []


async def test_items_of_tenants_are_apart(store: Store) -> None:
    ours, theirs = ItemStore(store.database), ItemStore(store.database, "acme")
    await ours.aput(("a",), "k", {"x": 1})
    assert await theirs.aget(("a",), "k") is None
    assert await theirs.asearch(()) == []
    await theirs.aput(("a",), "k", {"x": 2})
    await theirs.adelete(("a",), "k")
    assert (await read_item(store.database, "default", ("a",), "k")) is not None


async def test_threads_use_the_store_synchronously(store: Store) -> None:
    items = ItemStore(store.database)
    await asyncio.to_thread(items.put, ("a",), "k", {"x": 1})
    found: Any = await asyncio.to_thread(items.get, ("a",), "k")
    assert found.value == {"x": 1}
    with pytest.raises(RuntimeError, match="Use the method with the prefix a"):
        items.get(("a",), "k")


async def test_a_label_with_the_separator_is_rejected(store: Store) -> None:
    with pytest.raises(InvalidRequest, match="control character"):
        await store.database.transact(lambda session: put_items(session, "default", [NewItem(("a\x1fb",), "k", {})]))


@given(st.lists(st.text(st.characters(exclude_characters="\x1f\x00", codec="utf-8"), min_size=1)))
def test_a_namespace_is_restored(labels: list[str]) -> None:
    assert decode_namespace(encode_namespace(labels)) == tuple(labels)


def test_embeddings_are_restored() -> None:
    packed = pack([[1.0, 2.0], [3.0, 0.5]])
    assert packed is not None
    assert [list(vector) for vector in unpack(packed)] == [[1.0, 2.0], [3.0, 0.5]]
    assert pack([]) is None


VALUE: dict[str, Any] = {"a": {"b": "x", "c": ["y", {"d": "z"}]}, "n": 1, "none": None}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.b", ["x"]), ("a.c[0]", ["y"]), ("a.c[-1].d", ["z"]), ("a.c[*].d", ["z"]), ("a.c[5]", []), ("n", ["1"]),
        ("none", []), ("no", []), ("a.c", ['["y", {"d": "z"}]']), ("{n,a.b}", ["1", "x"]), ("*.b", ["x"]),
    ],
)  # fmt: skip
def test_the_texts_at_a_path(path: str, expected: list[str]) -> None:
    assert texts_at(VALUE, path) == expected


def test_the_words_of_a_whole_item_are_its_values() -> None:
    assert item_text(VALUE, ["$"]) == "x\ny\nz\n1"


def test_an_unknown_operator_is_rejected_by_name() -> None:
    with pytest.raises(InvalidRequest, match=r"\$near"):
        matches_filter({"x": 1}, {"x": {"$near": 1}})
    assert not matches_filter({"x": "text"}, {"x": {"$gt": 1}})
