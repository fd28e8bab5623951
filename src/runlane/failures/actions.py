"""The actions of bulk jobs. To add one, add a name to `BulkActionName`, its options, and an entry to `ACTIONS`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from runlane.domain.bulk import BulkActionName
from runlane.domain.run import TERMINAL, WAITING, Status
from runlane.failures.letter_retry import (
    PreparedRetry,
    lock_retry,
    prepare_letter,
    prepare_revival,
    retry_letter_in,
)
from runlane.failures.options import (
    AcknowledgeOptions,
    AssignOptions,
    DiscardOptions,
    LaneOptions,
    LetterRetry,
    Options,
    PriorityOptions,
    RetryOptions,
    TagOptions,
)
from runlane.store.failures.handling import acknowledge_in, assign_in, discard_in
from runlane.store.queue.run_changes import RunChange, cancel_in, lock_key_of, move_in, set_priority_in
from runlane.store.queue.tags import tag_in
from runlane.store.sql.database import Database, Session


@dataclass(frozen=True, slots=True)
class ActionItem:
    """A run that an action changes: its number among the runs of the job, the checked options, and the author."""

    run_id: str
    no: int
    total: int
    options: Options
    actor: str


Prepare = Callable[[Database, ActionItem], Awaitable[Any]]
Lock = Callable[[Session, ActionItem, Any], Awaitable[Any]]
Change = Callable[[Session, ActionItem, Any], Awaitable[RunChange | None]]


async def _nothing(database: Database, item: ActionItem) -> None:
    return None


async def _lock_key(session: Session, item: ActionItem, prepared: Any) -> None:
    await lock_key_of(session, item.run_id)


async def _lock_nothing(session: Session, item: ActionItem, prepared: Any) -> None:
    return None


@dataclass(frozen=True, slots=True)
class BulkAction:
    """How an action changes one run.

    `prepare` reads what it needs before the transaction, `lock` takes the locks before any row, and `change` makes the
    change and raises an error of the caller's kind if the run does not allow it. `statuses` are those that a filter of
    runs may match; an action without them is for dead letters.
    """

    options: type[Options]
    change: Change
    statuses: frozenset[Status] | None = None
    prepare: Prepare = _nothing
    lock: Lock = _lock_key

    @property
    def is_for_letters(self) -> bool:
        """Whether the action selects dead letters instead of runs."""
        return self.statuses is None


async def _cancel(session: Session, item: ActionItem, prepared: Any) -> RunChange:
    return await cancel_in(session, item.run_id, actor=item.actor)


async def _set_priority(session: Session, item: ActionItem, prepared: Any) -> RunChange:
    options = cast("PriorityOptions", item.options)
    return await set_priority_in(session, item.run_id, options.priority, actor=item.actor)


async def _move(session: Session, item: ActionItem, prepared: Any) -> RunChange:
    return await move_in(session, item.run_id, cast("LaneOptions", item.options).lane, actor=item.actor)


async def _tag(session: Session, item: ActionItem, prepared: Any) -> None:
    await tag_in(session, item.run_id, cast("TagOptions", item.options).change(), actor=item.actor)


async def _prepare_retry(database: Database, item: ActionItem) -> PreparedRetry:
    options = cast("RetryOptions", item.options)
    return await prepare_revival(database, item.run_id, options, options.delay_us(item.no, item.total))


async def _prepare_replay(database: Database, item: ActionItem) -> PreparedRetry:
    options = cast("LetterRetry", item.options)
    return await prepare_letter(database, item.run_id, options, options.delay_us(item.no, item.total), guard=True)


async def _lock_retry(session: Session, item: ActionItem, prepared: PreparedRetry) -> None:
    await lock_retry(session, item.run_id, prepared)


async def _retry(session: Session, item: ActionItem, prepared: PreparedRetry) -> RunChange:
    return await retry_letter_in(session, item.run_id, prepared, actor=item.actor)


async def _discard(session: Session, item: ActionItem, prepared: Any) -> RunChange | None:
    options = cast("DiscardOptions", item.options)
    _, change = await discard_in(session, item.run_id, note=options.note, release=options.release, actor=item.actor)
    return change


async def _acknowledge(session: Session, item: ActionItem, prepared: Any) -> None:
    await acknowledge_in(session, item.run_id, note=cast("AcknowledgeOptions", item.options).note, actor=item.actor)


async def _assign(session: Session, item: ActionItem, prepared: Any) -> None:
    await assign_in(session, item.run_id, cast("AssignOptions", item.options).to, actor=item.actor)


_OPEN: Final = frozenset(Status) - TERMINAL
ACTIONS: Final[Mapping[BulkActionName, BulkAction]] = {
    BulkActionName.CANCEL: BulkAction(Options, _cancel, _OPEN),
    BulkActionName.RETRY: BulkAction(RetryOptions, _retry, frozenset({Status.FAILED}), _prepare_retry, _lock_retry),
    BulkActionName.PRIORITY: BulkAction(PriorityOptions, _set_priority, WAITING),
    BulkActionName.LANE: BulkAction(LaneOptions, _move, WAITING),
    # Tags change in every status, and no key depends on them.
    BulkActionName.TAG: BulkAction(TagOptions, _tag, frozenset(Status), lock=_lock_nothing),
    BulkActionName.REPLAY: BulkAction(LetterRetry, _retry, None, _prepare_replay, _lock_retry),
    # `discard_in` locks the ordering key itself, because the letter of a run that retention has deleted has no key.
    BulkActionName.DISCARD: BulkAction(DiscardOptions, _discard, None, lock=_lock_nothing),
    BulkActionName.ACKNOWLEDGE: BulkAction(AcknowledgeOptions, _acknowledge, None, lock=_lock_nothing),
    BulkActionName.ASSIGN: BulkAction(AssignOptions, _assign, None, lock=_lock_nothing),
}
