"""Model calls in flight: leases, the use of each second of the last minute, and the waiting processes.

A decision is made under the credential's lock, from rows and never from a counter: a lease that is not renewed is not
counted, so the slots of a dead worker expire. Checking whether there may be room takes no lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Integer,
    Text,
    bindparam,
    case,
    delete,
    func,
    not_,
    select,
    true,
)
from sqlalchemy.sql.base import Executable

from runlane.domain.rate_limit import (
    WINDOW_SECONDS,
    CredentialLoad,
    LimitKind,
    LimitRefusal,
    ProviderLimits,
    counted_tokens,
    default_limits,
    describe_refusal,
    refused_by,
    seconds_until_room,
)
from runlane.store.rate_limits.limits import provider_lock
from runlane.store.sql.compound import CompoundWrite
from runlane.store.sql.database import Database, Session, read
from runlane.store.sql.expressions import lit, member, now_once, upsert
from runlane.store.sql.schema import (
    provider_leases,
    provider_limits,
    provider_seconds,
    provider_states,
    provider_waiters,
)
from runlane.store.sql.statement import Row, Statement, text_list

if TYPE_CHECKING:
    from sqlalchemy.dialects.postgresql import Insert

_SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """A request for slots of a process: (lease id, tokens) of its oldest calls, and the wait of the first one."""

    credential: str
    holder: str
    calls: Sequence[tuple[str, int]]
    waited_seconds: float


@dataclass(frozen=True, slots=True)
class SlotGrant:
    """The first `count` calls may begin. `second` is the second of the database's clock in which they count."""

    count: int
    second: int
    tokens: Sequence[int]


@dataclass(frozen=True, slots=True)
class SlotRelease:
    """The end of a call: `more_tokens` corrects the tokens that were reserved in its second."""

    lease_id: str
    credential: str
    second: int
    more_tokens: int


_credential = bindparam("credential", type_=Text())
_holder = bindparam("holder", type_=Text())
_now = now_once()
_oldest_second = _now // lit(_SECOND_US) - lit(WINDOW_SECONDS)
_fresh = provider_waiters.c.seen_at > _now - bindparam("stale_us", type_=BigInteger())


def _one(column: ColumnElement[Any], *where: ColumnElement[bool]) -> Any:
    return select(column).where(*where).scalar_subquery()


def _of_limits(name: str) -> Any:
    return _one(provider_limits.c[name], provider_limits.c.credential == _credential).label(name)


def _of_states(name: str) -> Any:
    return _one(provider_states.c[name], provider_states.c.credential == _credential).label(name)


def _of_minute(name: str) -> Any:
    return _one(
        func.coalesce(func.sum(provider_seconds.c[name]), lit(0)),
        provider_seconds.c.credential == _credential,
        provider_seconds.c.second >= _oldest_second,
    ).label(name)


_leased = provider_leases.c.credential == _credential
_mine = _one(
    provider_waiters.c.since, provider_waiters.c.credential == _credential, provider_waiters.c.holder == _holder
)
_arrived = _now - bindparam("waited_us", type_=BigInteger())
_others = (provider_waiters.c.credential == _credential, provider_waiters.c.holder != _holder, _fresh)
_ROOM = Statement(
    "provider_room",
    select(
        _now.label("now"),
        *(_of_limits(name) for name in ("in_flight", "requests_per_minute", "tokens_per_minute", "updated_at")),
        _of_states("slow_until"),
        _of_states("slow_reason"),
        # The own lease is excluded, because a request is repeated when its response was lost.
        _one(
            func.count(),
            _leased,
            provider_leases.c.expires_at > _now,
            not_(member(provider_leases.c.id, "lease_ids")),
        ).label("leases"),
        _one(func.count(), _leased, provider_leases.c.expires_at <= _now).label("expired"),
        _of_minute("requests"),
        _of_minute("tokens"),
        # The rows are deleted about once a minute and not in every second.
        _one(
            func.count(),
            provider_seconds.c.credential == _credential,
            provider_seconds.c.second < _oldest_second - lit(WINDOW_SECONDS),
        ).label("old"),
        _one(func.count(), *_others).label("waiting"),
        # A request takes time to arrive, so a stored arrival of the same process counts if it is earlier.
        _one(func.count(), *_others, provider_waiters.c.since < case((_mine < _arrived, _mine), else_=_arrived)).label(
            "ahead"
        ),
    ),
    purpose="Read the limits of a credential, their use and the waiting processes.",
)
_SECONDS = Statement(
    "provider_minute",
    select(
        (_now // lit(_SECOND_US) - provider_seconds.c.second).label("ago"),
        provider_seconds.c.requests,
        provider_seconds.c.tokens,
    ).where(provider_seconds.c.credential == _credential, provider_seconds.c.second >= _oldest_second),
    purpose="Read the use of each second of the last minute.",
)
_SWEEP = Statement(
    "sweep_provider_leases",
    delete(provider_leases).where(_leased, provider_leases.c.expires_at <= _now),
    purpose="Delete expired leases of a credential.",
)
_FORGET_SECONDS = Statement(
    "forget_provider_seconds",
    delete(provider_seconds).where(
        provider_seconds.c.credential == _credential, provider_seconds.c.second < _oldest_second
    ),
    purpose="Delete the use of seconds that no longer count.",
)
_waiting = upsert(provider_waiters).values(
    credential=_credential,
    holder=_holder,
    since=_arrived,
    seen_at=_now,
)
_WAIT = Statement(
    "wait_for_provider",
    _waiting.on_conflict_do_update(
        index_elements=["credential", "holder"],
        set_={
            "since": case(
                (provider_waiters.c.since < _waiting.excluded.since, provider_waiters.c.since),
                else_=_waiting.excluded.since,
            ),
            "seen_at": _waiting.excluded.seen_at,
        },
    ),
    purpose="Store that a process waits for a slot, since its first request.",
)
_WITHDRAW = Statement(
    "withdraw_waiter",
    delete(provider_waiters).where(
        provider_waiters.c.credential == _credential,
        (provider_waiters.c.holder == _holder) | (provider_waiters.c.seen_at < _now - lit(60 * _SECOND_US)),
    ),
    purpose="Delete the entry of a process that no longer waits, and stale entries of others.",
)
_RELEASE = Statement(
    "release_slots",
    delete(provider_leases).where(member(provider_leases.c.id, "ids")),
    purpose="Delete the leases of calls that have ended.",
)


def _lease(batch: FromClause) -> Insert:
    statement = upsert(provider_leases).from_select(
        ["id", "credential", "expires_at"],
        select(batch.c.id, batch.c.credential, _now + batch.c.lease_us).select_from(batch).where(true()),
    )
    return statement.on_conflict_do_update(index_elements=["id"], set_={"expires_at": statement.excluded.expires_at})


_LEASE_COLUMNS = {"id": Text(), "credential": Text(), "lease_us": BigInteger()}
_LEASE = Statement("lease_slots", _lease, _LEASE_COLUMNS, purpose="Renew leases, and store lost ones again.")


def _count_use(statement: Insert) -> Insert:
    tokens = provider_seconds.c.tokens + statement.excluded.tokens
    return statement.on_conflict_do_update(
        index_elements=["credential", "second"],
        set_={
            "requests": provider_seconds.c.requests + statement.excluded.requests,
            "tokens": case((tokens < lit(0), lit(0)), else_=tokens),
        },
    )


def _correct_tokens(batch: FromClause) -> Executable:
    columns = (batch.c.credential, batch.c.second, lit(0), batch.c.more_tokens)
    rows = select(*columns).select_from(batch).where(true())
    return _count_use(upsert(provider_seconds).from_select(["credential", "second", "requests", "tokens"], rows))


_CORRECT_TOKENS = Statement(
    "correct_tokens",
    _correct_tokens,
    {"credential": Text(), "second": BigInteger(), "more_tokens": BigInteger()},
    purpose="Correct the tokens of calls in the seconds in which they began.",
)
_GRANT = CompoundWrite(
    "grant_slots",
    lambda batch: _lease(batch).returning(provider_leases.c.id),
    columns=_LEASE_COLUMNS,
    returns={"id": Text()},
    links=[
        lambda batch, granted: _count_use(
            upsert(provider_seconds).values(
                credential=bindparam("new_credential", type_=Text()),
                second=bindparam("new_second", type_=BigInteger()),
                requests=bindparam("new_requests", type_=Integer()),
                tokens=bindparam("new_tokens", type_=BigInteger()),
            )
        )
    ],
    purpose="Store the leases of admitted calls and count them in the current second.",
)


async def take_slots(
    database: Database, request: SlotRequest, *, lease_seconds: float, stale_seconds: float
) -> SlotGrant | LimitRefusal:
    """Decide about the calls of a request, under the credential's lock. A refused process is stored as waiting."""

    async def transaction(session: Session) -> SlotGrant | LimitRefusal:
        credential = request.credential
        await session.lock(exclusive=[provider_lock(credential)])
        row = (await session.fetch(_ROOM, **_room_params(session, request, stale_seconds)))[0]
        limits, load = _limits(credential, row), _load(row)
        kind = refused_by(limits, load, request.calls[0][1])
        if kind is not None:
            await session.fetch(_WAIT, credential=credential, holder=request.holder, waited_us=_waited_us(request))
            return await _refusal(session, request, limits, load, kind)
        grant = _grant(request, limits, load, int(row["waiting"]), int(row["now"]) // _SECOND_US)
        lease_us = int(lease_seconds * _SECOND_US)
        await session.write(
            _GRANT,
            [(lease_id, credential, lease_us) for lease_id, _ in sorted(request.calls[: grant.count])],
            new_credential=credential,
            new_second=grant.second,
            new_requests=grant.count,
            new_tokens=sum(grant.tokens),
        )
        if request.waited_seconds > 0:
            await session.fetch(_WITHDRAW, credential=credential, holder=request.holder)
        if row["expired"]:
            await session.fetch(_SWEEP, credential=credential)
        if row["old"]:
            await session.fetch(_FORGET_SECONDS, credential=credential)
        return grant

    return await database.transact(transaction)


async def look_for_room(database: Database, request: SlotRequest, *, stale_seconds: float) -> tuple[bool, int]:
    """Return whether a request is worth a transaction and how many processes are ahead, without any lock."""
    row = (await database.query(_ROOM, **_room_params(database, request, stale_seconds)))[0]
    load = _load(row)
    return refused_by(_limits(request.credential, row), load, request.calls[0][1]) is None, load.ahead


async def renew_slots(database: Database, leases: Sequence[tuple[str, str]], lease_seconds: float) -> None:
    """Renew these leases (id, credential) in one statement; a lease that was lost is stored again."""
    lease_us = int(lease_seconds * _SECOND_US)
    await read(database, _LEASE, [(lease_id, credential, lease_us) for lease_id, credential in sorted(leases)])


async def release_slots(database: Database, releases: Sequence[SlotRelease]) -> None:
    """End leases, and correct the tokens of the seconds in which their calls began."""
    corrections: Counter[tuple[str, int]] = Counter()
    for release in releases:
        corrections[release.credential, release.second] += release.more_tokens

    async def transaction(session: Session) -> None:
        await session.fetch(_RELEASE, ids=session.texts(sorted(release.lease_id for release in releases)))
        await session.fetch(_CORRECT_TOKENS, [(*key, more) for key, more in sorted(corrections.items()) if more])

    await database.transact(transaction)


async def withdraw(database: Database, credential: str, holder: str) -> None:
    """Store that this process no longer waits."""
    await read(database, _WITHDRAW, credential=credential, holder=holder)


def _grant(request: SlotRequest, limits: ProviderLimits, load: CredentialLoad, waiting: int, second: int) -> SlotGrant:
    """Admit the first call, and further ones while there is room for them and for every process that waits."""
    granted: list[int] = []
    for _, tokens in request.calls:
        if granted and refused_by(limits, load, tokens) is not None:
            break
        counted = counted_tokens(limits, tokens)
        granted.append(counted)
        load = replace(
            load,
            in_flight=load.in_flight + 1,
            requests=load.requests + 1,
            tokens=load.tokens + counted,
            ahead=waiting,
        )
    return SlotGrant(len(granted), second, granted)


async def _refusal(
    session: Session, request: SlotRequest, limits: ProviderLimits, load: CredentialLoad, kind: LimitKind
) -> LimitRefusal:
    tokens, firm_seconds = request.calls[0][1], None
    if kind in (LimitKind.REQUESTS, LimitKind.TOKENS):
        rows = await session.fetch(_SECONDS, credential=request.credential)
        column, limit, need = (
            ("requests", limits.requests_per_minute, 1)
            if kind is LimitKind.REQUESTS
            else ("tokens", limits.tokens_per_minute, counted_tokens(limits, tokens))
        )
        firm_seconds = seconds_until_room({int(row["ago"]): int(row[column]) for row in rows}, limit or 0, need)
    return describe_refusal(request.credential, limits, load, kind, tokens, firm_seconds)


def _room_params(of: Database | Session, request: SlotRequest, stale_seconds: float) -> dict[str, Any]:
    return {
        "credential": request.credential,
        "lease_ids": text_list(of.dialect, sorted(lease_id for lease_id, _ in request.calls)),
        "holder": request.holder,
        "waited_us": _waited_us(request),
        "stale_us": int(stale_seconds * _SECOND_US),
    }


def _waited_us(request: SlotRequest) -> int:
    return int(request.waited_seconds * _SECOND_US)


def _limits(credential: str, row: Row) -> ProviderLimits:
    if row["updated_at"] is None:
        return default_limits(credential)
    return ProviderLimits(row["in_flight"], row["requests_per_minute"], row["tokens_per_minute"])


def _load(row: Row) -> CredentialLoad:
    return CredentialLoad(
        in_flight=int(row["leases"]),
        requests=int(row["requests"]),
        tokens=int(row["tokens"]),
        ahead=int(row["ahead"]),
        slow_seconds=max(0.0, ((row["slow_until"] or 0) - row["now"]) / _SECOND_US),
        slow_reason=row["slow_reason"] or "",
    )
