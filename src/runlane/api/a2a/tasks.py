"""A run as a task: its state, its answers as artifacts, and the question that it waits for.

The task is derived from the run at each request. The stored events determine the artifacts, so every server
returns the same task, and a client that reconnects after a crash continues where the stored answer ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from runlane.api.openai.fold import AnswerFold
from runlane.api.openai.questions import open_questions, question_text
from runlane.api.openai.reader import exhaust
from runlane.api.sse_encoding import line_json
from runlane.domain.a2a import A2A_STATES
from runlane.domain.run import Run, Status
from runlane.domain.text import utf8_size
from runlane.domain.timestamps import format_timestamp
from runlane.store.orchestration.waits import Wait
from runlane.store.queue.events import read_page
from runlane.store.queue.runs import find_run
from runlane.store.sql.database import Database

_PAGE: Final = 500
INPUT_REQUIRED: Final = "TASK_STATE_INPUT_REQUIRED"
_SUBMITTED: Final = "TASK_STATE_SUBMITTED"
TERMINAL: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})


@dataclass(frozen=True, slots=True)
class TaskSnapshot:
    """The current state of a run, with its answers so far."""

    run: Run
    fold: AnswerFold
    questions: tuple[Wait, ...] = ()

    @property
    def context_id(self) -> str:
        """The conversation of the run."""
        chat: Mapping[str, Any] = (self.run.plan or {}).get("chat") or {}
        return chat.get("session_id") or self.run.id

    @property
    def text_bytes(self) -> int:
        """The size of its message and its answers."""
        message = (self.run.input or {}).get("message")
        return sum(map(utf8_size, (*self.fold.texts, message if isinstance(message, str) else "")))

    @property
    def rests(self) -> bool:
        """Whether only the client can continue the task: the run has ended or waits for an answer."""
        return self.run.status in TERMINAL or bool(self.questions)

    def to_dict(self, history_length: int | None = None, *, artifacts: bool = True) -> dict[str, Any]:
        """Return the task in the format of A2A."""
        task: dict[str, Any] = {"id": self.run.id, "contextId": self.context_id, "status": self.status()}
        if artifacts and self.fold.texts:
            task["artifacts"] = [artifact(number, text) for number, text in enumerate(self.fold.texts, 1)]
        message = (self.run.input or {}).get("message")
        if isinstance(message, str) and history_length != 0:
            task["history"] = [{**text_message(self.run.id, "input", message, "ROLE_USER"), **self._names()}]
        return task

    def status(self) -> dict[str, Any]:
        """Return the state of the task, with the question that it waits for or the error that ended it."""
        state = INPUT_REQUIRED if self.questions else A2A_STATES.get(self.run.status, _SUBMITTED)
        at = self.run.ended_at_us or self.run.accepted_at_us
        status: dict[str, Any] = {"state": state, "timestamp": format_timestamp(at)}
        text = ""
        if self.questions:
            text = "\n\n".join(question_text(wait) for wait in self.questions)
        elif self.run.status is Status.FAILED:
            text = str((self.run.error or {}).get("message") or "The run failed.")
        if text:
            status["message"] = {**text_message(self.run.id, "status", text, "ROLE_AGENT"), **self._names()}
        return status

    def _names(self) -> dict[str, str]:
        return {"taskId": self.run.id, "contextId": self.context_id}


async def read_task(database: Database, run_id: str, *, answers: bool = True) -> TaskSnapshot:
    """Return a run as a task. The events are read before the run, so its questions are newer than the events.

    Without `answers`, no events are read and the task has no artifacts.
    """
    fold = AnswerFold()
    while answers and (lines := await read_page(database, run_id, fold.seq, _PAGE)):
        fold.truncated = fold.truncated or lines[0].seq != fold.seq + 1
        for line in lines:
            exhaust(fold.add(orjson.loads(line_json(run_id, line))))
    run = await find_run(database, run_id)
    return TaskSnapshot(run, fold, await open_questions(database, run_id, run.last_seq))


def artifact(number: int, text: str) -> dict[str, Any]:
    """Return an answer of the agent as an artifact. Each model turn is one answer."""
    return {"artifactId": f"answer-{number}", "parts": [{"text": text, "mediaType": "text/plain"}]}


def text_message(run_id: str, name: str, text: str, role: str) -> dict[str, Any]:
    """Return a message with text."""
    return {"messageId": f"{run_id}-{name}", "role": role, "parts": [{"text": text, "mediaType": "text/plain"}]}
