"""Responses stored under an Idempotency-Key, so that a repeated request is not executed again.

A request first claims its key, then is executed, then its response is stored for a day. A claim without a response is
in progress, or its process died. After a minute, a repeated request takes the claim over and is executed again. So a
request has one effect, unless the process dies between the change and the storing of the response.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Integer, Text, bindparam, delete, select, update
from sqlalchemy.dialects.postgresql import insert

from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, now_once, now_us
from runlane.store.sql.schema import api_answers
from runlane.store.sql.statement import Statement

KEEP_SECONDS = 86_400
_UNDER_WAY_SECONDS = 60
_SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """An earlier request with the same key. Without a status it has no response yet."""

    same_request: bool
    status: int | None
    body: str | None


_by_key = api_answers.c.key == bindparam("key")
# Two statements: each finds its rows by an index, where one for both would read all stored rows.
_FORGET_OLD = Statement(
    "delete_old_answers",
    delete(api_answers).where(api_answers.c.created_at < now_once() - lit(KEEP_SECONDS * _SECOND_US)),
    purpose="Delete the stored responses of idempotency keys after a day.",
)
_FORGET_ABANDONED = Statement(
    "delete_abandoned_answer",
    delete(api_answers).where(
        _by_key,
        api_answers.c.status.is_(None),
        api_answers.c.created_at < now_once() - lit(_UNDER_WAY_SECONDS * _SECOND_US),
    ),
    purpose="Free an idempotency key whose request never finished.",
)
_CLAIM = Statement(
    "claim_answer",
    insert(api_answers)
    .values(key=bindparam("key"), fingerprint=bindparam("fingerprint"), created_at=now_us())
    .on_conflict_do_nothing(index_elements=["key"])
    .returning(api_answers.c.key),
    purpose="Reserve an idempotency key for a request.",
)
_TRY_WRITE = Statement(
    "try_write",
    insert(api_answers)
    .values(key=bindparam("key"), fingerprint="", created_at=now_us())
    .on_conflict_do_update(index_elements=["key"], set_={"created_at": now_us()}),
    purpose="Check that the database accepts writes.",
)
_READ = Statement(
    "read_answer",
    select(api_answers).where(_by_key),
    purpose="Read the request and response stored under an idempotency key.",
)
_KEEP = Statement(
    "store_answer",
    update(api_answers)
    .where(_by_key)
    .values(status=bindparam("new_status", type_=Integer()), body=bindparam("new_body", type_=Text())),
    purpose="Store the response of a request under its idempotency key.",
)
_DROP = Statement(
    "release_answer",
    delete(api_answers).where(_by_key, api_answers.c.status.is_(None)),
    purpose="Free the idempotency key of a request that failed.",
)


async def claim_answer(database: Database, key: str, fingerprint: str) -> StoredResponse | None:
    """Return None when the request is to be executed now; otherwise the state of the first request with the key."""

    async def work(session: Session) -> StoredResponse | None:
        await session.fetch(_FORGET_OLD)
        await session.fetch(_FORGET_ABANDONED, key=key)
        if await session.fetch(_CLAIM, key=key, fingerprint=fingerprint):
            return None
        rows = await session.fetch(_READ, key=key)
        if not rows:
            return StoredResponse(same_request=True, status=None, body=None)
        return StoredResponse(rows[0]["fingerprint"] == fingerprint, rows[0]["status"], rows[0]["body"])

    return await database.transact(work)


async def keep_answer(database: Database, key: str, status: int, body: str) -> None:
    """Store the response of an executed request."""

    async def work(session: Session) -> None:
        await session.fetch(_KEEP, key=key, new_status=status, new_body=body)

    await database.transact(work)


async def drop_claim(database: Database, key: str) -> None:
    """Release the key of a rejected request, since repeating it may succeed."""

    async def work(session: Session) -> None:
        await session.fetch(_DROP, key=key)

    await database.transact(work)


async def try_write(database: Database, key: str) -> None:
    """Write a row to check that the database accepts writes. It is deleted a day later."""

    async def work(session: Session) -> None:
        await session.fetch(_TRY_WRITE, key=key)

    await database.transact(work)
