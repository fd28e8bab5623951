"""The store of LangGraph on the database of Runlane: items that graphs share between threads.

The operations of a batch are one transaction: reads see the items before its writes. Embeddings are computed before it.
"""

from __future__ import annotations

import asyncio
import math
import operator
from array import array
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, cast

from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    ensure_embeddings,
)

from runlane.domain.item_text import WHOLE, item_text, texts_at
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.errors import InvalidRequest
from runlane.graphs.saver import wait_in_thread
from runlane.store.sql.database import Database, Session
from runlane.store.threads.items import (
    ItemQuery,
    Namespace,
    NamespaceQuery,
    NewItem,
    StoredItem,
    delete_items,
    get_items,
    list_namespaces,
    put_items,
    search_items,
)

T = TypeVar("T")

_FLOAT: Final = "f"
_COUNT: Final = "I"

Vector = Sequence[float]


class ItemStore(BaseStore):
    """Stores the items of one tenant. Create it in the event loop that the database uses.

    A search always compares words. With `index`, whose `embed` computes embeddings, it also compares meaning.
    """

    supports_ttl = True

    def __init__(
        self,
        database: Database,
        tenant: str = DEFAULT_TENANT,
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
    ) -> None:
        self._database = database
        self._tenant = tenant
        self._paths: Sequence[str] = (index or {}).get("fields") or [WHOLE]
        embed: Any = None if index is None else index.get("embed")
        self._embeddings: Any = None if embed is None else cast("Any", ensure_embeddings)(embed)
        self.ttl_config = ttl
        self._loop = asyncio.get_running_loop()

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute operations in one transaction."""
        listed = list(ops)
        similar = await self._query_embeddings(listed)
        # If several operations concern one item, the last one counts.
        puts = {(op.namespace, op.key): op for op in listed if isinstance(op, PutOp)}
        stored = await self._new_items([op for op in puts.values() if op.value is not None])
        removed = [place for place, op in puts.items() if op.value is None]

        async def work(session: Session) -> list[Result]:
            results = [await self._read(session, op, similar) for op in listed]
            await delete_items(session, self._tenant, removed)
            await put_items(session, self._tenant, stored)
            return results

        return await self._database.transact(work)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Do as `abatch`, in a thread other than the thread of the event loop."""
        return self._wait(self.abatch(ops))

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return wait_in_thread(self._loop, coroutine)

    async def _read(self, session: Session, op: Op, similar: dict[str, Vector]) -> Result:
        match op:
            case GetOp():
                place = (op.namespace, op.key)
                found = await get_items(session, self._tenant, [place], refresh=[op.refresh_ttl])
                return _item(found[place]) if place in found else None
            case SearchOp():
                query = ItemQuery(
                    prefix=op.namespace_prefix,
                    filter=op.filter,
                    query=op.query or None,
                    similarity=_similarity(similar[op.query]) if op.query in similar else None,
                    limit=op.limit,
                    offset=op.offset,
                    refresh_ttl=op.refresh_ttl,
                )
                return [_search_item(item) for item in await search_items(session, self._tenant, query)]
            case ListNamespacesOp():
                return await list_namespaces(session, self._tenant, _namespace_query(op))
            case PutOp():
                return None
        raise InvalidRequest(f"{type(op).__name__} is not a valid operation of a store.")

    async def _query_embeddings(self, ops: Sequence[Op]) -> dict[str, Vector]:
        if self._embeddings is None:
            return {}
        queries = list(dict.fromkeys(op.query for op in ops if isinstance(op, SearchOp) and op.query))
        vectors = await asyncio.gather(*(self._embeddings.aembed_query(query) for query in queries))
        return dict(zip(queries, vectors, strict=True))

    async def _new_items(self, puts: Sequence[PutOp]) -> list[NewItem]:
        vectors = await self._embed([texts for op in puts for texts in self._texts(op)])
        items: list[NewItem] = []
        for op in puts:
            value = dict(op.value or {})
            paths = self._indexed(op)
            items.append(
                NewItem(
                    namespace=op.namespace,
                    key=op.key,
                    value=value,
                    text=item_text(value, paths) if paths else None,
                    embedding=pack([vectors[text] for text in self._texts(op)]) if vectors else None,
                    ttl_minutes=op.ttl,
                )
            )
        return items

    async def _embed(self, texts: Sequence[str]) -> dict[str, Vector]:
        if self._embeddings is None or not texts:
            return {}
        distinct = list(dict.fromkeys(texts))
        return dict(zip(distinct, await self._embeddings.aembed_documents(distinct), strict=True))

    def _indexed(self, op: PutOp) -> Sequence[str]:
        if op.index is False:
            return ()
        return self._paths if op.index is None else op.index

    def _texts(self, op: PutOp) -> list[str]:
        return [text for path in self._indexed(op) for text in texts_at(dict(op.value or {}), path)]


def pack(vectors: Sequence[Vector]) -> bytes | None:
    """Return the embeddings of an item as bytes: the length of each, then their numbers."""
    if not vectors:
        return None
    numbers = array(_FLOAT, [number for vector in vectors for number in vector])
    return array(_COUNT, [len(vectors[0])]).tobytes() + numbers.tobytes()


def unpack(packed: bytes) -> list[array[float]]:
    """Return the embeddings of an item."""
    head = array(_COUNT)
    head.frombytes(packed[: head.itemsize])
    numbers: array[float] = array(_FLOAT)
    numbers.frombytes(packed[head.itemsize :])
    return [numbers[start : start + head[0]] for start in range(0, len(numbers), head[0])]


def _similarity(query: Vector) -> Callable[[bytes], float]:
    """Return the cosine of the angle between the query and the nearest embedding of an item."""
    length = math.hypot(*query)

    def measure(packed: bytes) -> float:
        return max((_cosine(query, vector, length) for vector in unpack(packed)), default=0.0)

    return measure


def _cosine(query: Vector, vector: Vector, length: float) -> float:
    # An item that was stored with another embedding model is not comparable.
    if len(query) != len(vector):
        return 0.0
    product = length * math.hypot(*vector)
    return sum(map(operator.mul, query, vector)) / product if product else 0.0


def _namespace_query(op: ListNamespacesOp) -> NamespaceQuery:
    prefixes: list[Namespace] = []
    suffixes: list[Namespace] = []
    for condition in op.match_conditions or ():
        (prefixes if condition.match_type == "prefix" else suffixes).append(tuple(map(str, condition.path)))
    return NamespaceQuery(prefixes, suffixes, op.max_depth, op.limit, op.offset)


def _item(item: StoredItem) -> Item:
    return Item(
        value=dict(item.value),
        key=item.key,
        namespace=item.namespace,
        created_at=_time(item.created_at_us),
        updated_at=_time(item.updated_at_us),
    )


def _search_item(item: StoredItem) -> SearchItem:
    return SearchItem(
        item.namespace,
        item.key,
        dict(item.value),
        _time(item.created_at_us),
        _time(item.updated_at_us),
        score=item.score,
    )


def _time(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1_000_000, UTC)
