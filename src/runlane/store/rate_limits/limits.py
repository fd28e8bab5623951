"""Limits of model providers as operators set them, and what every worker reads of them about twice a second.

Also here, because it is read in the same look: until when everybody on a credential slows down, and which desk counts
the calls in flight. These three are always the database's word, whoever counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

from sqlalchemy import BigInteger, Integer, Text, bindparam, case, delete, exists, literal, or_, select, true, update

from runlane.domain.ids import lock_key
from runlane.domain.rate_limit import (
    MAX_RETRY_AFTER_SECONDS,
    LimitChange,
    ProviderLimits,
    back_off_seconds,
    changed_limits,
    check_credential,
    default_credentials,
    default_limits,
)
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.text import clean_text
from runlane.store.access.audit import append_audit
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, now_once, now_us, upsert
from runlane.store.sql.schema import provider_desk, provider_leases, provider_limits, provider_seconds, provider_states
from runlane.store.sql.statement import Row, Statement

DeskKind = Literal["redis", "database"]
MAX_REASON = 300
_SECOND_US = 1_000_000
# How long the database counts before Redis is tried again, at least and at most.
FIRST_HOLD_SECONDS = 15
_LONGEST_HOLD_SECONDS = 600
# A desk that was left sooner than that was no good: the next try comes twice as late.
_GOOD_DESK_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Everybody on a credential slows down. Ages are by the database's clock when it was read."""

    left_seconds: float
    ago_seconds: float
    streak: int
    reason: str


@dataclass(frozen=True, slots=True)
class BackendState:
    """Who counts. Epoch 0 means that nobody ever used Redis."""

    kind: DeskKind = "database"
    epoch: int = 0
    age_seconds: float = 1e9
    hold_seconds: int = 0


@dataclass(frozen=True, slots=True)
class LimitSnapshot:
    """What a worker has to know before a call. Credentials that are not in `limits` have their defaults."""

    limits: Mapping[str, ProviderLimits]
    slow: Mapping[str, Slowdown]
    desk: BackendState


@dataclass(frozen=True, slots=True)
class LimitSetting:
    """What holds for a credential; without `updated_by` nobody has set it."""

    credential: str
    limits: ProviderLimits
    updated_at_us: int | None = None
    updated_by: str | None = None


_one = select(lit(1).label("n")).subquery("one")
_NOTICES = Statement(
    "provider_notices",
    select(
        now_us().label("now"),
        provider_states.c.credential,
        provider_states.c.slow_until,
        provider_states.c.slowed_at,
        provider_states.c.slow_reason,
        provider_states.c.streak,
        provider_limits.c.in_flight,
        provider_limits.c.requests_per_minute,
        provider_limits.c.tokens_per_minute,
        provider_limits.c.updated_at,
        provider_limits.c.updated_by,
        provider_desk.c.kind,
        provider_desk.c.epoch,
        provider_desk.c.since,
        provider_desk.c.hold_seconds,
    ).select_from(
        _one.outerjoin(provider_desk, provider_desk.c.id == lit(1))
        .outerjoin(provider_states, true())
        .outerjoin(provider_limits, provider_limits.c.credential == provider_states.c.credential)
    ),
)
_by_credential = provider_limits.c.credential == bindparam("credential")
_FIND = Statement("find_provider_limits", select(provider_limits).where(_by_credential))
_RESET = Statement("reset_provider_limits", delete(provider_limits).where(_by_credential))
_know = upsert(provider_states).values(credential=bindparam("credential"))
KNOW = Statement("know_credential", _know.on_conflict_do_nothing(index_elements=["credential"]))
_values = {
    "in_flight": bindparam("new_in_flight", type_=Integer()),
    "requests_per_minute": bindparam("new_requests", type_=Integer()),
    "tokens_per_minute": bindparam("new_tokens", type_=Integer()),
    "updated_at": now_us(),
    "updated_by": bindparam("actor", type_=Text()),
}
_set = upsert(provider_limits).values(credential=bindparam("credential"), **_values)
_SET = Statement(
    "set_provider_limits",
    _set.on_conflict_do_update(
        index_elements=["credential"], set_={name: _set.excluded[name] for name in _values}
    ).returning(provider_limits),
)
_STATE = Statement(
    "provider_state",
    select(provider_states, now_us().label("now")).where(provider_states.c.credential == bindparam("credential")),
)
_SLOW = Statement(
    "slow_down",
    update(provider_states)
    .where(provider_states.c.credential == bindparam("credential"))
    .values(
        slow_until=bindparam("new_until", type_=BigInteger()),
        slowed_at=bindparam("new_at", type_=BigInteger()),
        slow_reason=bindparam("new_reason", type_=Text()),
        streak=bindparam("new_streak", type_=Integer()),
    ),
)
_RECOVER = Statement(
    "recover_provider",
    update(provider_states)
    .where(
        provider_states.c.credential == bindparam("credential"),
        provider_states.c.slow_until <= now_us(),
        provider_states.c.slowed_at < now_us() - bindparam("entered_ago", type_=BigInteger()),
    )
    .values(streak=0),
)
_counted = or_(exists(select(provider_seconds.c.second)), exists(select(provider_leases.c.id)))
# Where calls are counted already, everybody has to hear of a move before it counts; in a new cluster there are none.
_OPEN = Statement(
    "open_desk",
    upsert(provider_desk)
    .from_select(
        ["id", "kind", "epoch", "since", "hold_seconds", "reason"],
        select(
            lit(1),
            literal("redis", Text()),
            lit(1),
            case((_counted, now_once()), else_=lit(0)),
            lit(FIRST_HOLD_SECONDS),
            literal("", Text()),
        ).where(true()),
    )
    .on_conflict_do_nothing(index_elements=["id"]),
)
_old = provider_desk.c
_left_early = _old.since > now_us() - lit(_GOOD_DESK_SECONDS * _SECOND_US)
_MOVE = Statement(
    "move_desk",
    update(provider_desk)
    .where(_old.id == lit(1), _old.epoch == bindparam("seen_epoch", type_=Integer()))
    .values(
        kind=bindparam("new_kind", type_=Text()),
        epoch=_old.epoch + 1,
        since=now_us(),
        hold_seconds=case(
            (_old.kind != literal("redis", Text()), _old.hold_seconds),
            (
                _left_early,
                case(
                    (_old.hold_seconds * 2 > lit(_LONGEST_HOLD_SECONDS), lit(_LONGEST_HOLD_SECONDS)),
                    else_=_old.hold_seconds * 2,
                ),
            ),
            else_=lit(FIRST_HOLD_SECONDS),
        ),
        reason=bindparam("new_reason", type_=Text()),
    )
    .returning(provider_desk.c.epoch),
)


def provider_lock(credential: str) -> int:
    """The lock under which a credential's calls are counted, and its slowing down is decided."""
    return lock_key("provider", credential)


async def read_notices(database: Database) -> LimitSnapshot:
    """What a worker has to know before a call, in one look."""
    rows = await database.query(_NOTICES)
    known = [row for row in rows if row["credential"] is not None]
    return LimitSnapshot(
        limits={row["credential"]: _limits(row) for row in known if row["updated_at"] is not None},
        slow={
            row["credential"]: Slowdown(
                left_seconds=(row["slow_until"] - row["now"]) / _SECOND_US,
                ago_seconds=(row["now"] - row["slowed_at"]) / _SECOND_US,
                streak=row["streak"],
                reason=row["slow_reason"] or "",
            )
            for row in known
            if row["streak"] or row["slow_until"] > row["now"]
        },
        desk=_desk(rows[0]),
    )


async def list_limits(database: Database) -> Sequence[tuple[LimitSetting, int | None, str]]:
    """Every credential that is known: its limits, until when it slows down if it does, and why."""
    rows = await database.query(_NOTICES)
    found: dict[str, tuple[LimitSetting, int | None, str]] = {
        name: (LimitSetting(name, default_limits(name)), None, "") for name in default_credentials()
    }
    for row in rows:
        name = row["credential"]
        if name is not None:
            slow = row["slow_until"] > row["now"]
            found[name] = (
                _setting_from_row(name, row),
                row["slow_until"] if slow else None,
                (row["slow_reason"] or "") if slow else "",
            )
    return [found[name] for name in sorted(found)]


async def set_limits(
    database: Database, credential: str, change: LimitChange, *, actor: str
) -> tuple[LimitSetting, LimitSetting]:
    """Change a credential's limits; what held and what holds. Workers follow within about a second."""
    check_credential(credential)

    async def work(session: Session) -> tuple[LimitSetting, LimitSetting]:
        await session.lock(exclusive=[provider_lock(credential)])
        old = await _find(session, credential)
        limits = changed_limits(old.limits, change)
        await session.fetch(KNOW, credential=credential)
        rows = await session.fetch(
            _SET,
            credential=credential,
            new_in_flight=limits.in_flight,
            new_requests=limits.requests_per_minute,
            new_tokens=limits.tokens_per_minute,
            actor=actor,
        )
        await _audit(session, actor, "limits.set", old.limits, limits, credential)
        return old, _setting_from_row(credential, rows[0])

    return await database.transact(work)


async def reset_limits(database: Database, credential: str, *, actor: str) -> tuple[LimitSetting, LimitSetting]:
    """Back to the defaults; what held and what holds."""
    check_credential(credential)

    async def work(session: Session) -> tuple[LimitSetting, LimitSetting]:
        await session.lock(exclusive=[provider_lock(credential)])
        old = await _find(session, credential)
        new = LimitSetting(credential, default_limits(credential))
        if old.updated_by is not None:
            await session.fetch(_RESET, credential=credential)
            await _audit(session, actor, "limits.reset", old.limits, new.limits, credential)
        return old, new

    return await database.transact(work)


async def slow_down(
    database: Database, credential: str, asked_seconds: float | None, reason: str, jitter: float
) -> float:
    """Let everybody on the credential slow down; for how long.

    What is said while they do already comes from calls that began before: it may lengthen the time, but it is no
    repeat.
    """

    async def work(session: Session) -> float:
        await session.lock(exclusive=[provider_lock(credential)])
        await session.fetch(KNOW, credential=credential)
        row = (await session.fetch(_STATE, credential=credential))[0]
        now: int = row["now"]
        again = row["slow_until"] <= now
        streak = row["streak"] + 1 if again else max(1, row["streak"])
        seconds = (
            back_off_seconds(streak, asked_seconds, jitter)
            if again
            else min(asked_seconds or 0.0, MAX_RETRY_AFTER_SECONDS)
        )
        until = max(row["slow_until"], now + int(seconds * _SECOND_US))
        await session.fetch(
            _SLOW,
            credential=credential,
            new_until=until,
            new_at=now,
            new_reason=clean_text(reason, MAX_REASON),
            new_streak=streak,
        )
        return (until - now) / _SECOND_US

    return await database.transact(work)


async def recover(database: Database, credential: str, entered_seconds_ago: float) -> None:
    """A call that began after everybody had slowed down was answered: the next back-off begins small again."""

    async def work(session: Session) -> None:
        await session.fetch(_RECOVER, credential=credential, entered_ago=int(entered_seconds_ago * _SECOND_US))

    await database.transact(work)


async def open_desk(database: Database) -> None:
    """Let Redis count, unless it was decided before who does."""

    async def work(session: Session) -> None:
        await session.fetch(_OPEN)

    await database.transact(work)


async def move_desk(database: Database, seen_epoch: int, kind: DeskKind, reason: str) -> bool:
    """Let another desk count, or the same one from nothing; False when somebody else was faster."""

    async def work(session: Session) -> bool:
        told = clean_text(reason, MAX_REASON)
        return bool(await session.fetch(_MOVE, seen_epoch=seen_epoch, new_kind=kind, new_reason=told))

    return await database.transact(work)


async def know(database: Database, credential: str) -> None:
    """Make sure that the credential is listed."""

    async def work(session: Session) -> None:
        await session.fetch(KNOW, credential=credential)

    await database.transact(work)


async def _find(session: Session, credential: str) -> LimitSetting:
    rows = await session.fetch(_FIND, credential=credential)
    return _setting_from_row(credential, rows[0]) if rows else LimitSetting(credential, default_limits(credential))


async def _audit(
    session: Session, actor: str, action: str, old: ProviderLimits, new: ProviderLimits, credential: str
) -> None:
    if old != new or action == "limits.reset":
        told: dict[str, Any] = {"old": asdict(old), "new": asdict(new)}
        await append_audit(session, actor=actor, tenant=DEFAULT_TENANT, action=action, subject=credential, **told)


def _limits(row: Row) -> ProviderLimits:
    return ProviderLimits(row["in_flight"], row["requests_per_minute"], row["tokens_per_minute"])


def _setting_from_row(credential: str, row: Row) -> LimitSetting:
    if row["updated_at"] is None:
        return LimitSetting(credential, default_limits(credential))
    return LimitSetting(credential, _limits(row), row["updated_at"], row["updated_by"])


def _desk(row: Row) -> BackendState:
    if row["epoch"] is None:
        return BackendState()
    age_seconds = (row["now"] - row["since"]) / _SECOND_US
    return BackendState(cast("DeskKind", row["kind"]), row["epoch"], age_seconds, row["hold_seconds"])
