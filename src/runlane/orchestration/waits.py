"""Open waits of a run for people, times and events, and the answers that this attempt has loaded.

A step whose purpose is to wait has one wait, under its path. A step that waits while it is performed, for example for
an approval, may have several, under its path and a key; waits of the whole run have only a key. A step opens waits of
its own whenever it is performed; after a takeover, the stored ones are only kept in memory until that happens.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from runlane.domain.ids import INSIDE
from runlane.domain.text import dump_json
from runlane.interpreter.values import Done, PendingStep
from runlane.steps.dispatch import StepWait
from runlane.store.orchestration.waits import NewWait, Wait


class InnerKey(NamedTuple):
    """The key of a wait inside a step, whether the whole run shares it, and what is stored with the answer."""

    key: str
    shared: bool
    kind: str
    aside: Mapping[str, Any] | None = None


class _Open:
    """An open wait. `due` is on the monotonic clock; `pending_steps` are the steps that it holds up, by path.

    It is `expired` once the database has confirmed that no answer was stored in time.
    """

    __slots__ = ("answer", "due", "expired", "inner", "kind", "name", "pending_steps")

    def __init__(
        self, pending: PendingStep, kind: str, name: str, due: float | None, inner: InnerKey | None = None
    ) -> None:
        self.pending_steps = {pending.path: pending}
        self.kind = kind
        self.name = name
        self.due = due
        self.inner = inner
        self.answer: Done | None = None
        self.expired = False

    @property
    def overdue(self) -> bool:
        """Whether its time is over by the clock of this process."""
        return self.due is not None and self.due <= time.monotonic()


class OpenWaits:
    """The open waits of a run."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._sent: list[Wait] = []
        self._remembered: dict[str, Wait] = {}
        self._free: set[str] = set()
        # Answered in this attempt: a step that opens the same wait later finds the answer in the journal.
        self._over: set[str] = set()

    def __contains__(self, path: object) -> bool:
        """Whether a step has to wait. A step with several waits continues as soon as one of them is answered."""
        if path in self._free:
            return False
        return any(path in question.pending_steps for question in self._open.values())

    def __bool__(self) -> bool:
        return bool(self._open)

    @property
    def paths(self) -> list[str]:
        """The paths of the open waits."""
        return sorted(self._open)

    def seconds_left(self) -> float | None:
        """Return the seconds until the first wait is due, or None."""
        dues = [question.due for question in self._open.values() if question.due is not None]
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def open(self, pending: PendingStep, waiting: StepWait) -> tuple[NewWait, dict[str, Any]] | None:
        """Return the wait to store and its request; None if it is open already."""
        self._free.discard(pending.path)
        inner = None
        if waiting.key is not None:
            inner = InnerKey(waiting.key, waiting.shared, waiting.kind.value, waiting.aside)
        path = _path(pending, inner)
        if path in self._over:
            return None
        known = self._open.get(path)
        if known is not None:
            known.pending_steps[pending.path] = pending
            return None
        name = waiting.name or waiting.event or pending.step.title
        remembered = self._remembered.pop(path, None)
        if remembered is not None:
            self._take_over(path, remembered, pending, inner)
            return None
        seconds = waiting.due_in_seconds
        if waiting.until is not None:
            seconds = (waiting.until - datetime.now(UTC)).total_seconds()
        due_us = None if seconds is None else max(0, int(seconds * 1_000_000))
        request: dict[str, Any] = {
            "prompt": waiting.prompt,
            "fields": [field.model_dump(mode="json", exclude_none=True) for field in waiting.fields],
            "context": waiting.context,
            "channel_id": waiting.channel_id,
            "answerable_by": waiting.answerable_by,
        }
        if waiting.arguments_schema is not None:
            request["arguments_schema"] = dict(waiting.arguments_schema)
        if waiting.effect is not None:
            request["effect"] = waiting.effect
        kind = waiting.kind.value
        due = None if due_us is None else time.monotonic() + due_us / 1_000_000
        self._open[path] = _Open(pending, kind, name, due, inner)
        match = None if waiting.match is None else dump_json(dict(waiting.match))
        lookback_us = None if match is None else int(waiting.lookback_seconds * 1_000_000)
        return NewWait(path, kind, pending.step.id, name, dump_json(request), due_us, match, lookback_us), request

    @property
    def unconfirmed(self) -> bool:
        """Whether a question seems to have expired; its answer may be stored but not loaded yet."""
        return any(
            question.overdue and question.answer is None and question.kind != "time" and not question.expired
            for question in self._open.values()
        )

    def confirm_expired(self, stored: Sequence[Wait]) -> None:
        """Expire the overdue questions that are neither answered nor open in `stored`, and correct the other times."""
        still_open = {wait.path: wait for wait in stored if not wait.overdue}
        for path, question in self._open.items():
            if question.overdue and question.answer is None:
                wait = still_open.get(path)
                question.expired = wait is None
                if wait is not None:
                    question.due = _due(wait)

    def learn(self, stored: Sequence[Wait], pending_steps: Sequence[PendingStep]) -> None:
        """Load the stored waits and answers, and events that were sent before a step waited for them."""
        by_path = {pending.path: pending for pending in pending_steps}
        self._sent = [wait for wait in stored if wait.kind == "sent"]
        for wait in stored:
            question = self._open.get(wait.path)
            if wait.kind == "sent":
                continue
            if question is not None:
                question.answer = Done(wait.answer) if wait.answered else None
            elif INSIDE in wait.path:
                self._remembered[wait.path] = wait
            elif wait.path in by_path:
                self._take_over(wait.path, wait, by_path[wait.path], None)

    def drop_all_but(self, needed: Collection[str]) -> list[str]:
        """Drop the waits of steps that are no longer needed; return their paths."""
        dropped: list[str] = []
        for path, question in list(self._open.items()):
            for waiter in [waiter for waiter in question.pending_steps if waiter not in needed]:
                del question.pending_steps[waiter]
            if not question.pending_steps:
                del self._open[path]
                dropped.append(path)
        return dropped

    def answered(self) -> Iterator[tuple[PendingStep, InnerKey | None, Done, list[str]]]:
        """Yield each wait that is answered or due, once, with the paths of all waits that it ends."""
        for path, question in list(self._open.items()):
            outcome, over = question.answer, [path]
            if outcome is None and question.kind == "event":
                early = next((sent for sent in self._sent if sent.name == question.name), None)
                if early is not None:
                    self._sent.remove(early)
                    outcome = Done(early.answer)
                    over.append(early.path)
            if outcome is None and question.kind == "time" and question.overdue:
                outcome = Done(None)
            if outcome is None and question.expired:
                outcome = Done(None, route="expired")
            if outcome is not None:
                del self._open[path]
                if question.inner is not None:
                    self._free.update(question.pending_steps)
                    if question.kind != "time":
                        self._over.add(path)
                yield next(iter(question.pending_steps.values())), question.inner, outcome, over

    def _take_over(self, path: str, wait: Wait, pending: PendingStep, inner: InnerKey | None) -> None:
        question = _Open(pending, wait.kind, wait.name, _due(wait), inner)
        question.answer = Done(wait.answer) if wait.answered else None
        self._open[path] = question


def _due(wait: Wait) -> float | None:
    return None if wait.due_in_us is None else time.monotonic() + wait.due_in_us / 1_000_000


def _path(pending: PendingStep, inner: InnerKey | None) -> str:
    if inner is None:
        return pending.path
    return f"{INSIDE}{inner.key}" if inner.shared else f"{pending.path}{INSIDE}{inner.key}"
