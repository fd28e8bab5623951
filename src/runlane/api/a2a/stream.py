"""The stream of a task: the task, then pieces of its answers, then its state when it ends or needs input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from runlane.api.a2a.errors import UNSUPPORTED_OPERATION, error_body
from runlane.api.a2a.tasks import INPUT_REQUIRED, TaskSnapshot, artifact, text_message
from runlane.api.openai.fold import AnswerFold, Piece, PieceKind
from runlane.api.openai.questions import question_text
from runlane.api.openai.reader import Ending
from runlane.domain.a2a import A2A_STATES
from runlane.domain.run import Status
from runlane.errors import RunlaneError


class TaskRenderer:
    """Encode an answer as responses of A2A.

    The number of an artifact is the number of stored answers before it. So the text that a new worker writes after a
    takeover has the name of the lost worker's text and replaces it.
    """

    asks_in_text = False

    def __init__(self, task: TaskSnapshot, rpc_id: Any) -> None:
        self._task = task
        self._rpc_id = rpc_id
        self._number = len(task.fold.texts) + 1
        self._sent = ""

    def begin(self) -> bytes:
        return self._frame({"task": self._task.to_dict()})

    def piece(self, piece: Piece, seq: int, *, live: bool) -> bytes:
        match piece.kind:
            case PieceKind.OPENED:
                self._sent = ""
                return b""
            case PieceKind.TEXT:
                append, self._sent = bool(self._sent), self._sent + piece.text
                return self._artifact(piece.text, append=append)
            case PieceKind.CLOSED:
                frame = self._artifact("", append=True, last=True)
                self._number, self._sent = self._number + 1, ""
                return frame
            case PieceKind.WITHDRAWN:
                self._sent = ""
                return self._artifact("", append=False)

    def event(self, event: Mapping[str, Any]) -> bytes:
        if event["type"] == "worker_picked_up":
            return self._status({"state": A2A_STATES[Status.RUNNING], "timestamp": event["at"]})
        return b""

    def end(self, fold: AnswerFold, ending: Ending) -> bytes:
        status: dict[str, Any] = {"state": INPUT_REQUIRED if ending.questions else A2A_STATES[ending.status]}
        text = "\n\n".join(question_text(wait) for wait in ending.questions)
        if ending.status is Status.FAILED:
            text = ending.message
        if text:
            names = {"taskId": self._task.run.id, "contextId": self._task.context_id}
            status["message"] = {**text_message(self._task.run.id, "status", text, "ROLE_AGENT"), **names}
        return self._status(status)

    def broken(self, error: RunlaneError) -> bytes:
        body = error_body(self._rpc_id, UNSUPPORTED_OPERATION, f"{error} Subscribe to the task again.")
        return b"event: error\ndata: " + orjson.dumps(body) + b"\n\n"

    def _artifact(self, text: str, *, append: bool, last: bool = False) -> bytes:
        update = {"artifact": artifact(self._number, text), "append": append, "lastChunk": last}
        return self._update("artifactUpdate", update)

    def _status(self, status: dict[str, Any]) -> bytes:
        return self._update("statusUpdate", {"status": status})

    def _update(self, kind: str, update: dict[str, Any]) -> bytes:
        return self._frame({kind: {"taskId": self._task.run.id, "contextId": self._task.context_id, **update}})

    def _frame(self, result: dict[str, Any]) -> bytes:
        return b"data: " + orjson.dumps({"jsonrpc": "2.0", "id": self._rpc_id, "result": result}) + b"\n\n"
