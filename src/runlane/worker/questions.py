"""Questions of a run to people, clocks and other systems, and the answers as far as this attempt knows them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from runlane.interpreter.values import Done, Todo
from runlane.model.text import dump_json
from runlane.steps.perform import Waiting
from runlane.store.waits import NewWait, Wait


class _Open:
    """A question without an answer yet; `due` is on the monotonic clock."""

    __slots__ = ("answer", "due", "kind", "name", "todo")

    def __init__(self, todo: Todo, kind: str, name: str, due: float | None) -> None:
        self.todo = todo
        self.kind = kind
        self.name = name
        self.due = due
        self.answer: Done | None = None


class Questions:
    """What this run waits for."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._sent: list[Wait] = []

    def __contains__(self, path: object) -> bool:
        return path in self._open

    def __bool__(self) -> bool:
        return bool(self._open)

    @property
    def paths(self) -> list[str]:
        """The steps that wait."""
        return sorted(self._open)

    def seconds_left(self) -> float | None:
        """How long until the first of them is due, if one ever is."""
        dues = [question.due for question in self._open.values() if question.due is not None]
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def ask(self, todo: Todo, waiting: Waiting) -> tuple[NewWait, dict[str, Any]]:
        """A new question: what is stored of it, and what people are shown."""
        seconds = waiting.due_in_seconds
        if waiting.until is not None:
            seconds = (waiting.until - datetime.now(UTC)).total_seconds()
        due_us = None if seconds is None else max(0, int(seconds * 1_000_000))
        request = {
            "prompt": waiting.prompt,
            "fields": [field.model_dump(mode="json", exclude_none=True) for field in waiting.fields],
            "context": waiting.context,
            "channel_id": waiting.channel_id,
        }
        name = waiting.event or todo.step.title
        kind = waiting.kind.value
        due = None if due_us is None else time.monotonic() + due_us / 1_000_000
        self._open[todo.path] = _Open(todo, kind, name, due)
        return NewWait(todo.path, kind, todo.step.id, name, dump_json(request), due_us), request

    def learn(self, stored: Sequence[Wait], todos: Sequence[Todo]) -> None:
        """Take over what is stored: open questions, answers, and events that were sent before anybody waited."""
        by_path = {todo.path: todo for todo in todos}
        self._sent = [wait for wait in stored if wait.kind == "sent"]
        for wait in stored:
            todo = by_path.get(wait.path)
            if wait.kind == "sent" or todo is None:
                continue
            due = None if wait.due_in_us is None else time.monotonic() + wait.due_in_us / 1_000_000
            question = self._open.setdefault(wait.path, _Open(todo, wait.kind, wait.name, due))
            question.answer = Done(wait.answer) if wait.answered else None

    def drop_all_but(self, needed: Collection[str]) -> list[str]:
        """Forget the questions of steps that are not needed any more; their paths."""
        dropped = [path for path in self._open if path not in needed]
        for path in dropped:
            del self._open[path]
        return dropped

    def answered(self) -> Iterator[tuple[Todo, Done, list[str]]]:
        """Each question that has an answer or whose time is over, once, with the paths of all that is over by it."""
        for path, question in list(self._open.items()):
            outcome, over = question.answer, [path]
            if outcome is None and question.kind == "event":
                early = next((sent for sent in self._sent if sent.name == question.name), None)
                if early is not None:
                    self._sent.remove(early)
                    outcome = Done(early.answer)
                    over.append(early.path)
            if outcome is None and question.due is not None and question.due <= time.monotonic():
                outcome = Done(None) if question.kind == "time" else Done(None, route="expired")
            if outcome is not None:
                del self._open[path]
                yield question.todo, outcome, over
