"""Webhook messages about slots that started no run: missed ones, and those whose run was not accepted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from runlane.domain.firing import Firing, FiringOutcome
from runlane.domain.timestamps import format_timestamp
from runlane.domain.webhook_events import WebhookType
from runlane.store.schedules.rows import StoredSchedule
from runlane.store.schedules.starting import StartFailure
from runlane.store.sql.database import Session
from runlane.store.sql.statement import Row
from runlane.store.webhooks.outbox import NewMessage, add_messages

_REPORTED = {
    FiringOutcome.MISSED: WebhookType.SCHEDULE_MISSED,
    FiringOutcome.FAILED_TO_START: WebhookType.SCHEDULE_FAILED,
}


async def report_firings(session: Session, decided: Iterable[tuple[StoredSchedule, Sequence[Firing]]]) -> None:
    """Add the messages about these firings, in the transaction that stores them."""
    messages = [
        _message(schedule, firing) for schedule, firings in decided for firing in firings if firing.outcome in _REPORTED
    ]
    if messages:
        await add_messages(session, messages)


async def report_refused(session: Session, refused: Iterable[tuple[Row, StartFailure]]) -> None:
    """Add the messages about buffered slots whose runs were not accepted. A row has tenant, id and slot."""
    messages = [
        NewMessage(
            row["tenant"],
            WebhookType.SCHEDULE_FAILED,
            _data(row["id"], row["slot"], row["slot"], 1, failure.code, failure.detail),
        )
        for row, failure in refused
    ]
    if messages:
        await add_messages(session, messages)


def _message(schedule: StoredSchedule, firing: Firing) -> NewMessage:
    last_us = firing.slot_us if firing.last_slot_us is None else firing.last_slot_us
    data = _data(schedule.id, firing.slot_us, last_us, firing.count, firing.reason, firing.detail)
    return NewMessage(schedule.tenant, _REPORTED[firing.outcome], data)


def _data(
    schedule_id: str, first_us: int, last_us: int, count: int, reason: str | None, detail: str | None
) -> dict[str, object]:
    return {
        "schedule_id": schedule_id,
        "slot": format_timestamp(first_us),
        "last_slot": format_timestamp(last_us),
        "count": count,
        "reason": reason,
        "detail": detail,
    }
