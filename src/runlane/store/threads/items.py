"""Items of the store of graphs: values under a namespace and a key, with search and an optional time to live.

A namespace is stored as its labels, each followed by U+001F, so that a prefix of a namespace is a range of the primary
key. An expired item is not returned, whether or not maintenance has deleted it. A search with a query ranks the items
below its prefix by their words and, where they have embeddings, by similarity; both rankings are merged by reciprocal
rank.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Float,
    FromClause,
    Integer,
    LargeBinary,
    Text,
    bindparam,
    case,
    cast,
    delete,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.sql.base import Executable

from runlane.domain.access_rule import AccessRule, rule_text
from runlane.domain.item_text import matches_filter, score_texts
from runlane.domain.text import dump_json, load_json
from runlane.errors import InvalidRequest
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, now_once, now_us, upsert, visible_by
from runlane.store.sql.schema import store_items
from runlane.store.sql.statement import Row, Statement

_MINUTE_US: Final = 60_000_000.0
_END: Final = "\x1f"
_AFTER_END: Final = "\x20"
# The number is small, because an item may be large.
_PAGE: Final = 100
# The maximum number of characters of values and indexed text that a search reads.
MAX_SCANNED: Final = 128 * 1024 * 1024
SWEPT_AT_ONCE: Final = 500
# The rank constant of reciprocal rank fusion.
_RANK: Final = 60

Namespace = tuple[str, ...]
# Returns the similarity of an item's stored embedding to the query.
Similarity = Callable[[bytes], float]


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item. `score` is set by a search with a query, for items that match it."""

    namespace: Namespace
    key: str
    value: Mapping[str, Any]
    created_at_us: int
    updated_at_us: int
    score: float | None = None


@dataclass(frozen=True, slots=True)
class NewItem:
    """An item to store. `text` is the text that a search for words reads."""

    namespace: Namespace
    key: str
    value: Mapping[str, Any]
    text: str | None = None
    embedding: bytes | None = None
    ttl_minutes: float | None = None


@dataclass(frozen=True, slots=True)
class ItemQuery:
    """A search below a prefix of namespaces. Without a query, items are returned by namespace and key."""

    prefix: Namespace = ()
    filter: Mapping[str, Any] | None = None
    query: str | None = None
    similarity: Similarity | None = None
    limit: int = 10
    offset: int = 0
    refresh_ttl: bool = True
    rule: AccessRule | None = None


@dataclass(frozen=True, slots=True)
class NamespaceQuery:
    """Selects namespaces. A label `*` of a prefix or suffix stands for any label."""

    prefixes: Sequence[Namespace] = ()
    suffixes: Sequence[Namespace] = ()
    max_depth: int | None = None
    limit: int = 100
    offset: int = 0
    rule: AccessRule | None = None


_i = store_items.c
_tenant = bindparam("tenant", type_=Text())
_fresh = or_(_i.expires_at.is_(None), _i.expires_at > now_once())
_KEY: Final = {"tenant": Text(), "namespace": Text(), "key": Text()}


def _expiry(ttl_minutes: ColumnElement[Any]) -> ColumnElement[Any]:
    return case((ttl_minutes.is_not(None), now_us() + cast(ttl_minutes * _MINUTE_US, BigInteger)), else_=None)


def _put(batch: FromClause) -> Executable:
    b = batch.c
    names = ["tenant", "namespace", "key", "value", "text", "embedding", "ttl_minutes"]
    statement = upsert(store_items).from_select(
        [*names, "expires_at", "created_at", "updated_at"],
        select(*(b[name] for name in names), _expiry(b.ttl_minutes), now_us(), now_us())
        .select_from(batch)
        .where(b.key.is_not(None)),
    )
    changed = ("value", "text", "embedding", "ttl_minutes", "expires_at", "updated_at")
    return statement.on_conflict_do_update(
        index_elements=["tenant", "namespace", "key"],
        set_={name: statement.excluded[name] for name in changed},
        # An item that the rule hides is not replaced.
        where=or_(visible_by(_i.value), _i.expires_at <= now_us()),
    ).returning(_i.key)


def _same(batch: FromClause) -> ColumnElement[bool]:
    b = batch.c
    return (_i.tenant == b.tenant) & (_i.namespace == b.namespace) & (_i.key == b.key)


def _get(batch: FromClause) -> Executable:
    return (
        select(_i.namespace, _i.key, _i.value, _i.created_at, _i.updated_at, _i.ttl_minutes)
        .select_from(batch.join(store_items, _same(batch)))
        .where(_fresh, visible_by(_i.value))
    )


def _touch(batch: FromClause) -> Executable:
    return (
        update(store_items)
        .where(_same(batch), _i.ttl_minutes.is_not(None), _fresh)
        .values(expires_at=_expiry(_i.ttl_minutes))
    )


def _delete(batch: FromClause) -> Executable:
    b = batch.c
    keys = select(b.tenant, b.namespace, b.key).select_from(batch)
    return delete(store_items).where(tuple_(_i.tenant, _i.namespace, _i.key).in_(keys), visible_by(_i.value))


_PUT = Statement(
    "put_items",
    _put,
    {**_KEY, "value": Text(), "text": Text(), "embedding": LargeBinary(), "ttl_minutes": Float()},
    purpose="Store items of graphs.",
)
_GET = Statement("get_items", _get, _KEY, purpose="Read items of graphs.")
_TOUCH = Statement("touch_items", _touch, _KEY, purpose="Restart the time to live of items that were read.")
_DELETE = Statement("delete_items", _delete, _KEY, purpose="Delete items of graphs.")
_first, _last = bindparam("first", type_=Text()), bindparam("last", type_=Text())
_below = (_i.tenant == _tenant, _i.namespace >= _first, _i.namespace < _last)
_after = (bindparam("after_namespace", type_=Text()), bindparam("after_key", type_=Text()))
_SCAN = Statement(
    "scan_items",
    select(store_items)
    .where(*_below, _fresh, tuple_(_i.namespace, _i.key) > tuple_(*_after), visible_by(_i.value))
    .order_by(_i.namespace, _i.key)
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read a page of the items below a prefix of namespaces.",
)
_NAMESPACES = Statement(
    "item_namespaces",
    select(_i.namespace).where(*_below, _fresh, visible_by(_i.value)).distinct().order_by(_i.namespace),
    purpose="Read the namespaces below a prefix.",
)
_EXPIRED = select(_i.tenant, _i.namespace, _i.key).where(_i.expires_at <= now_once()).order_by(_i.expires_at)
_SWEEP = Statement(
    "delete_expired_items",
    delete(store_items)
    .where(tuple_(_i.tenant, _i.namespace, _i.key).in_(_EXPIRED.limit(lit(SWEPT_AT_ONCE))), _i.expires_at <= now_once())
    .returning(_i.key),
    purpose="Delete some of the items whose time to live has ended.",
)


def encode_namespace(labels: Sequence[str]) -> str:
    """Return a namespace as it is stored."""
    for label in labels:
        if _END in label or "\x00" in label:
            raise InvalidRequest(f"The label {label!r} of a namespace contains a control character. Remove it.")
    return "".join(f"{label}{_END}" for label in labels)


def decode_namespace(stored: str) -> Namespace:
    """Return the labels of a stored namespace."""
    return tuple(stored.split(_END)[:-1])


async def get_items(
    session: Session,
    tenant: str,
    keys: Sequence[tuple[Namespace, str]],
    *,
    refresh: Sequence[bool] = (),
    rule: AccessRule | None = None,
) -> dict[tuple[Namespace, str], StoredItem]:
    """Return the items that exist. `refresh` determines for each key whether reading restarts its time to live."""
    members = [(tenant, encode_namespace(namespace), key) for namespace, key in keys]
    rows = await session.fetch(_GET, list(dict.fromkeys(members)), rule=rule_text(rule))
    found = {(item.namespace, item.key): item for item in map(_item, rows)}
    wanted = zip(members, keys, refresh, strict=True) if refresh else ()
    touched = [member for member, place, again in wanted if again and place in found]
    await session.fetch(_TOUCH, list(dict.fromkeys(touched)))
    return found


async def put_items(session: Session, tenant: str, items: Sequence[NewItem], rule: AccessRule | None = None) -> bool:
    """Store items; of several with the same key, the last one. Return False if the rule hides one that exists."""
    members = {
        (namespace := encode_namespace(item.namespace), item.key): (
            tenant, namespace, item.key, dump_json(item.value), item.text, item.embedding, item.ttl_minutes,
        )
        for item in items
    }  # fmt: skip
    stored = await session.fetch(_PUT, list(members.values()), rule=rule_text(rule))
    return len(stored) == len(members)


async def delete_items(
    session: Session, tenant: str, keys: Sequence[tuple[Namespace, str]], rule: AccessRule | None = None
) -> None:
    """Delete items, if they exist."""
    members = [(tenant, encode_namespace(namespace), key) for namespace, key in dict.fromkeys(keys)]
    await session.fetch(_DELETE, members, rule=rule_text(rule))


async def search_items(session: Session, tenant: str, query: ItemQuery) -> list[StoredItem]:
    """Return the items that match, best first."""
    wanted = query.offset + query.limit
    # Without a query the first items are the result; with one, any item may be the best.
    enough = wanted if query.query is None else None
    rows = await _scan(session, tenant, query, enough)
    ranked = [_item(row) for row in rows] if query.query is None else await _ranked_aside(rows, query)
    found = ranked[query.offset : wanted]
    if query.refresh_ttl:
        await session.fetch(_TOUCH, [(tenant, encode_namespace(item.namespace), item.key) for item in found])
    return found


async def list_namespaces(session: Session, tenant: str, query: NamespaceQuery) -> list[Namespace]:
    """Return the namespaces that have items, in order."""
    first, last = _range(_literal(query.prefixes[0]) if query.prefixes else ())
    rows = await session.fetch(_NAMESPACES, tenant=tenant, first=first, last=last, rule=rule_text(query.rule))
    found = [decode_namespace(row["namespace"]) for row in rows]
    matching = [
        labels
        for labels in found
        if all(_begins(labels, prefix) for prefix in query.prefixes)
        and all(_begins(labels[::-1], suffix[::-1]) for suffix in query.suffixes)
    ]
    if query.max_depth is not None:
        matching = [labels[: query.max_depth] for labels in matching]
    return sorted(set(matching))[query.offset : query.offset + query.limit]


async def sweep_items(session: Session) -> int:
    """Delete some of the items whose time to live has ended; return how many."""
    return len(await session.fetch(_SWEEP))


async def read_item(
    database: Database,
    tenant: str,
    namespace: Namespace,
    key: str,
    *,
    refresh_ttl: bool = True,
    rule: AccessRule | None = None,
) -> StoredItem | None:
    """Return an item, or None."""
    found = await database.transact(
        lambda session: get_items(session, tenant, [(namespace, key)], refresh=[refresh_ttl], rule=rule)
    )
    return found.get((namespace, key))


async def _scan(session: Session, tenant: str, query: ItemQuery, enough: int | None) -> list[Row]:
    first, last = _range(query.prefix)
    place = ("", "")
    found: list[Row] = []
    scanned = 0
    while True:
        rows = await session.fetch(
            _SCAN,
            tenant=tenant,
            first=first,
            last=last,
            after_namespace=place[0],
            after_key=place[1],
            limit=_PAGE,
            rule=rule_text(query.rule),
        )
        scanned += sum(len(row["value"]) + len(row["text"] or "") for row in rows)
        if scanned > MAX_SCANNED:
            raise InvalidRequest(
                f"The search reads more than {MAX_SCANNED} characters of items. Give a longer namespace prefix, or a "
                "smaller offset."
            )
        wanted = query.filter
        found += rows if not wanted else [row for row in rows if matches_filter(load_json(row["value"]), wanted)]
        if len(rows) < _PAGE or (enough is not None and len(found) >= enough):
            return found
        place = (rows[-1]["namespace"], rows[-1]["key"])


async def _ranked_aside(rows: Sequence[Row], query: ItemQuery) -> list[StoredItem]:
    """Rank items in a thread, because all words below the prefix are compared and the event loop must not wait."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # on SQLite, a thread executes the whole transaction
        return _ranked(rows, query)
    return await asyncio.to_thread(_ranked, rows, query)


def _ranked(rows: Sequence[Row], query: ItemQuery) -> list[StoredItem]:
    """Return the items by the sum of their reciprocal ranks; items without a match come last, without a score."""
    by_words = score_texts(query.query or "", [row["text"] or "" for row in rows])
    rankings = [_ranks({number: score for number, score in enumerate(by_words) if score > 0})]
    if query.similarity is not None:
        near = {
            number: query.similarity(bytes(row["embedding"]))
            for number, row in enumerate(rows)
            if row["embedding"] is not None
        }
        rankings.append(_ranks(near))
    scores: dict[int, float] = {}
    for ranks in rankings:
        for number, rank in ranks.items():
            scores[number] = scores.get(number, 0.0) + 1 / (_RANK + rank)
    best = sorted(scores, key=lambda number: (-scores[number], number))
    rest = [number for number in range(len(rows)) if number not in scores]
    return [replace(_item(rows[number]), score=scores.get(number)) for number in (*best, *rest)]


def _ranks(scores: Mapping[int, float]) -> dict[int, int]:
    """Return the place of each item, from 1; equal scores share a place."""
    ordered = sorted(set(scores.values()), reverse=True)
    places = {score: place for place, score in enumerate(ordered, 1)}
    return {number: places[score] for number, score in scores.items()}


def _range(prefix: Namespace) -> tuple[str, str]:
    """Return the first stored namespace with this prefix, and the first one after the last of them."""
    if not prefix:
        return "", "\U0010ffff"
    stored = encode_namespace(prefix)
    return stored, stored[:-1] + _AFTER_END


def _literal(prefix: Namespace) -> Namespace:
    """Return the labels before the first wildcard."""
    return prefix[: prefix.index("*")] if "*" in prefix else prefix


def _begins(labels: Namespace, pattern: Namespace) -> bool:
    return len(labels) >= len(pattern) and all(
        wanted in ("*", label) for wanted, label in zip(pattern, labels, strict=False)
    )


def _item(row: Row) -> StoredItem:
    return StoredItem(
        decode_namespace(row["namespace"]), row["key"], load_json(row["value"]), row["created_at"], row["updated_at"]
    )
