"""The statements of concurrency limits: slots of admitted runs, waiting runs in their turns, and shared limits."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    FromClause,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    func,
    literal_column,
    null,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.sql.base import Executable

from runlane.domain.run import Status
from runlane.domain.start_tags import PRIORITY_SECONDS
from runlane.store.sql.expressions import by_key_only, lit, member, now_us, upsert
from runlane.store.sql.schema import (
    concurrency_limits,
    lanes,
    limit_slots,
    limit_turns,
    limit_waits,
    run_inputs,
    runs,
    tenants,
)
from runlane.store.sql.statement import Statement

# How many turns of one limit are read at once, and how many waiting runs of a shared limit are counted.
MAX_TURNS: Final = 64
MAX_COUNTED: Final = 10_000
# How many keys with waiting runs one pass of the maintenance service reads.
MAX_KEYS: Final = 200


def count_admitted(key: ColumnElement[str]) -> ColumnElement[int]:
    """Return how many runs are admitted under a key."""
    return select(func.count()).where(limit_slots.c.key == key).scalar_subquery()


def _read_room(batch: FromClause) -> Executable:
    key = batch.c.key
    most = select(concurrency_limits.c.max_running).where(concurrency_limits.c.key == key).scalar_subquery()
    # If no run waits, or no limit is shared, one lookup in the table replaces a lookup for each key.
    any_waits = exists().select_from(limit_waits)
    any_shared = exists().select_from(concurrency_limits)
    return select(
        key,
        count_admitted(key).label("admitted"),
        and_(any_waits, exists().where(limit_waits.c.key == key)).label("waited"),
        case((any_shared, most), else_=null()).label("most"),
    ).select_from(batch)


READ_ROOM = Statement(
    "read_limit_room",
    _read_room,
    {"key": Text()},
    purpose="Count the admitted runs of concurrency limits, and read the numbers of shared ones.",
)


def _add_slots(batch: FromClause) -> Executable:
    rows = select(batch.c.key, batch.c.run_id).select_from(batch).where(true())
    # An earlier try whose result was lost may have stored them.
    return upsert(limit_slots).from_select(["key", "run_id"], rows).on_conflict_do_nothing()


def _free_slots(batch: FromClause) -> Executable:
    freed = tuple_(limit_slots.c.key, limit_slots.c.run_id).in_(select(batch.c.key, batch.c.run_id).select_from(batch))
    return delete(limit_slots).where(freed)


_SLOT = {"key": Text(), "run_id": Text()}
ADD_SLOTS = Statement("add_limit_slots", _add_slots, _SLOT, purpose="Store the slots of admitted runs.")
FREE_SLOTS = Statement(
    "free_limit_slots", _free_slots, _SLOT, purpose="Free the slots of runs that are not admitted any more."
)


def _add_waits(batch: FromClause) -> Executable:
    b = batch.c
    rows = select(b.run_id, b.key, b.turn, b.place, b.evicts).select_from(batch).where(true())
    columns = ["run_id", "key", "turn", "place", "evicts"]
    return upsert(limit_waits).from_select(columns, rows).on_conflict_do_nothing(index_elements=["run_id"])


def _move_waits(batch: FromClause) -> Executable:
    b = batch.c
    return update(limit_waits).where(limit_waits.c.run_id == b.run_id).values(key=b.key, turn=b.turn, evicts=b.evicts)


ADD_WAITS = Statement(
    "add_limit_waits",
    _add_waits,
    {"run_id": Text(), "key": Text(), "turn": Text(), "place": BigInteger(), "evicts": Boolean()},
    purpose="Let blocked runs wait for a concurrency limit.",
)
MOVE_WAITS = Statement(
    "move_limit_waits",
    _move_waits,
    {"run_id": Text(), "key": Text(), "turn": Text(), "evicts": Boolean()},
    purpose="Let waiting runs wait for another of their limits, which is full.",
)
REMOVE_WAITS = Statement(
    "remove_limit_waits",
    delete(limit_waits).where(member(limit_waits.c.run_id, "ids")),
    purpose="Remove runs that no longer wait for a concurrency limit.",
)
SET_PLACE = Statement(
    "set_limit_place",
    update(limit_waits)
    .where(limit_waits.c.run_id == bindparam("run_id"))
    .values(place=limit_waits.c.place + bindparam("shift_us", type_=BigInteger()))
    .returning(limit_waits.c.key),
    purpose="Change the place of a run that waits for a concurrency limit.",
)
LIMITS_OF_RUNS = Statement(
    "read_limits_of_runs",
    select(
        runs.c.id, runs.c.target, runs.c.status, runs.c.hooks, runs.c.ordering_key, runs.c.holds_key,
        runs.c.fairness_key, runs.c.priority, runs.c.attempt, runs.c.accepted_at, run_inputs.c.limits,
    )
    .select_from(runs.join(run_inputs, run_inputs.c.run_id == runs.c.id))
    .where(member(runs.c.id, "ids"))
    .order_by(runs.c.id),
    purpose="Read the concurrency limits of runs.",
)  # fmt: skip


def _next_turn(key: ColumnElement[str], after: ColumnElement[str]) -> ColumnElement[str]:
    return (
        select(limit_waits.c.turn)
        .where(limit_waits.c.key == key, limit_waits.c.turn > after)
        .order_by(limit_waits.c.turn)
        .limit(lit(1))
        .scalar_subquery()
    )


def _read_turns(batch: FromClause) -> Executable:
    """Return the turns of each key: first those after the one that was served last, then those from the beginning."""
    key = batch.c.key
    last = func.coalesce(
        select(limit_turns.c.turn).where(limit_turns.c.key == key).scalar_subquery(), literal_column("''", Text())
    )
    seed = select(
        key, batch.c.part, case((batch.c.part == lit(0), last), else_=literal_column("''", Text())).label("after")
    )
    begin = seed.select_from(batch).cte("begin")
    found = select(
        begin.c.key, begin.c.part, _next_turn(begin.c.key, begin.c.after).label("turn"), lit(1).label("n")
    ).cte("turns", recursive=True)
    turns = found.union_all(
        select(found.c.key, found.c.part, _next_turn(found.c.key, found.c.turn), found.c.n + lit(1)).where(
            found.c.turn.is_not(None), found.c.n < lit(MAX_TURNS)
        )
    )
    return select(turns.c.key, turns.c.part, turns.c.turn, turns.c.n).where(turns.c.turn.is_not(None))


def _read_first(batch: FromClause) -> Executable:
    b = batch.c
    other = limit_waits.alias("other")
    # The place up to which runs are read. It makes the read a range of the index; a limited subquery for each turn
    # would need a lateral join.
    cutoff = (
        select(other.c.place)
        .where(other.c.key == b.key, other.c.turn == b.turn)
        .order_by(other.c.place)
        .limit(lit(1))
        .offset(bindparam("more", type_=BigInteger()))
        .scalar_subquery()
    )
    most = cast(literal_column(str(1 << 62), BigInteger), BigInteger)
    heads = select(b.key, b.turn, func.coalesce(cutoff, most).label("cutoff")).select_from(batch).cte("heads")
    return (
        select(
            limit_waits.c.run_id, limit_waits.c.key, limit_waits.c.turn, limit_waits.c.place, run_inputs.c.limits,
            runs.c.target, runs.c.fairness_key,
        )
        .select_from(
            heads.join(
                limit_waits,
                and_(
                    limit_waits.c.key == heads.c.key,
                    limit_waits.c.turn == heads.c.turn,
                    limit_waits.c.place <= heads.c.cutoff,
                ),
            )
            .join(runs, runs.c.id == limit_waits.c.run_id)
            .join(run_inputs, run_inputs.c.run_id == limit_waits.c.run_id)
        )
    )  # fmt: skip


READ_TURNS = Statement(
    "read_limit_turns",
    _read_turns,
    {"key": Text(), "part": Integer()},
    purpose="Find the turns with waiting runs of concurrency limits.",
)
READ_FIRST = Statement(
    "read_first_waiting",
    _read_first,
    {"key": Text(), "turn": Text()},
    purpose="Read the first waiting runs of each turn.",
)


def _set_turns(batch: FromClause) -> Executable:
    new = upsert(limit_turns).from_select(
        ["key", "turn"], select(batch.c.key, batch.c.turn).select_from(batch).where(true()).order_by(batch.c.key)
    )
    return new.on_conflict_do_update(index_elements=["key"], set_={"turn": new.excluded.turn})


SET_TURNS = Statement(
    "set_limit_turns",
    _set_turns,
    {"key": Text(), "turn": Text()},
    purpose="Store the turn that was served last.",
)
FORGET_TURNS = Statement(
    "forget_limit_turns",
    delete(limit_turns).where(~exists().where(limit_waits.c.key == limit_turns.c.key)),
    purpose="Delete the last turns of limits without waiting runs.",
)


def _admit(batch: FromClause) -> Executable:
    seconds = select(lanes.c.priority_seconds).where(lanes.c.name == runs.c.lane).scalar_subquery()
    point = func.coalesce(seconds, lit(PRIORITY_SECONDS)) * lit(1_000_000)
    # With the rank of its acceptance, the next of many waiting runs would overtake every run that is ready already.
    is_new = runs.c.attempt == lit(0)
    return (
        update(runs)
        .where(runs.c.id == batch.c.id, by_key_only(runs.c.status) == lit(Status.BLOCKED))
        .values(
            status=lit(Status.QUEUED),
            rank=case((is_new, now_us() - cast(runs.c.priority, BigInteger) * point), else_=runs.c.rank),
            start_tag=case((is_new, now_us()), else_=runs.c.start_tag),
            last_seq=runs.c.last_seq + lit(1),
        )
        .returning(
            runs.c.id,
            runs.c.lane,
            runs.c.status,
            runs.c.last_seq,
            runs.c.attempt,
            exists().where(tenants.c.id == runs.c.tenant, tenants.c.shares_lanes).label("shares"),
        )
    )


ADMIT = Statement("admit_runs", _admit, {"id": Text()}, purpose="Queue runs that have a slot of each of their limits.")


def _holders(batch: FromClause) -> Executable:
    return (
        select(limit_slots.c.key, runs.c.id, runs.c.status, runs.c.accepted_at, runs.c.cancel_requested_at)
        .select_from(
            batch.join(limit_slots, limit_slots.c.key == batch.c.key).join(runs, runs.c.id == limit_slots.c.run_id)
        )
    )  # fmt: skip


HOLDERS = Statement(
    "holders_of_limits", _holders, {"key": Text()}, purpose="Read the admitted runs of concurrency limits."
)


def _evicting(batch: FromClause) -> Executable:
    waiting = select(func.count()).where(limit_waits.c.key == batch.c.key, limit_waits.c.evicts).scalar_subquery()
    return select(batch.c.key, waiting.label("waiting")).select_from(batch)


EVICTING = Statement(
    "count_evicting_runs",
    _evicting,
    {"key": Text()},
    purpose="Count the waiting runs that cancel an admitted run of their key.",
)
WITHDRAWABLE = Statement(
    "find_withdrawable_runs",
    select(runs.c.id)
    .select_from(limit_slots.join(runs, runs.c.id == limit_slots.c.run_id))
    .where(limit_slots.c.key == bindparam("key"), by_key_only(runs.c.status) == lit(Status.QUEUED))
    .order_by(runs.c.rank.desc())
    .limit(bindparam("most", type_=BigInteger()))
    .with_for_update(of=runs),
    purpose="Lock queued runs under a concurrency limit that was lowered, the last ones first.",
)
WITHDRAW = Statement(
    "withdraw_runs",
    update(runs)
    .where(member(runs.c.id, "ids"), by_key_only(runs.c.status) == lit(Status.QUEUED))
    .values(status=lit(Status.BLOCKED), last_seq=runs.c.last_seq + lit(1))
    .returning(runs.c.id, runs.c.lane, runs.c.status, runs.c.last_seq, runs.c.attempt),
    purpose="Block queued runs again whose concurrency limit was lowered.",
)


def _next_key(after: ColumnElement[str]) -> ColumnElement[str]:
    return (
        select(limit_waits.c.key).where(limit_waits.c.key > after).order_by(limit_waits.c.key).limit(lit(1))
    ).scalar_subquery()


def _waiting_keys() -> Select[Any]:
    found = select(_next_key(bindparam("after", type_=Text())).label("key"), lit(1).label("n")).cte(
        "keys", recursive=True
    )
    keys = found.union_all(
        select(_next_key(found.c.key), found.c.n + lit(1)).where(found.c.key.is_not(None), found.c.n < lit(MAX_KEYS))
    )
    return select(keys.c.key).where(keys.c.key.is_not(None))


WAITING_KEYS = Statement(
    "keys_with_waiting_runs", _waiting_keys(), purpose="Find concurrency limits for which runs wait."
)

_by_key = concurrency_limits.c.key == bindparam("key")
_waiting_of = (
    select(lit(1).label("one"))
    .where(limit_waits.c.key == concurrency_limits.c.key)
    .limit(lit(MAX_COUNTED))
    .correlate(concurrency_limits)
    .subquery("counted")
)
_use = (
    concurrency_limits,
    count_admitted(concurrency_limits.c.key).label("admitted"),
    select(func.count()).select_from(_waiting_of).scalar_subquery().label("waiting"),
)
FIND_LIMIT = Statement(
    "find_concurrency_limit", select(*_use).where(_by_key), purpose="Read a shared concurrency limit with its use."
)
LIST_LIMITS = Statement(
    "list_concurrency_limits",
    select(*_use)
    .where(concurrency_limits.c.tenant == bindparam("tenant"), concurrency_limits.c.name > bindparam("after"))
    .order_by(concurrency_limits.c.name)
    .limit(bindparam("limit", type_=Integer())),
    purpose="List the shared concurrency limits of a tenant with their use.",
)
EVERY_LIMIT = Statement(
    "list_all_concurrency_limits",
    select(*_use).order_by(concurrency_limits.c.key).limit(bindparam("limit", type_=Integer())),
    purpose="Read the use of the shared concurrency limits of all tenants, for metrics.",
)
LIMIT_NAMES = Statement(
    "names_of_concurrency_limits",
    select(concurrency_limits.c.name).where(concurrency_limits.c.tenant == bindparam("tenant")).limit(lit(1000)),
    purpose="Read the names of the shared concurrency limits of a tenant.",
)
DELETE_LIMIT = Statement(
    "delete_concurrency_limit",
    delete(concurrency_limits).where(_by_key).returning(concurrency_limits.c.max_running),
    purpose="Delete a shared concurrency limit.",
)
_new_limit = upsert(concurrency_limits).values(
    key=bindparam("key"),
    tenant=bindparam("tenant"),
    name=bindparam("name"),
    max_running=bindparam("max_running", type_=Integer()),
    updated_at=now_us(),
    updated_by=bindparam("updated_by"),
)
SET_LIMIT = Statement(
    "set_concurrency_limit",
    _new_limit.on_conflict_do_update(
        index_elements=["key"],
        set_={name: _new_limit.excluded[name] for name in ("max_running", "updated_at", "updated_by")},
    ),
    purpose="Create or change a shared concurrency limit.",
)
