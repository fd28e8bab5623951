"""The events of AG-UI: messages, tool calls and reasoning of the agent, and how its run ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from runlane.api.ag_ui.interrupts import interrupt
from runlane.api.openai.fold import AnswerFold, Piece, PieceKind, is_own_turn
from runlane.api.openai.reader import Ending, Subject
from runlane.definitions.schema.definition import FINAL_ANSWER
from runlane.domain.events import EventType
from runlane.domain.run import Status
from runlane.domain.text import dump_json
from runlane.errors import RunlaneError

PROTOCOL_VERSION: Final = "1.0"


class AgUiRenderer:
    """Encode an answer as events of AG-UI. `thread_id` and `run_id` are the names that the client chose."""

    asks_in_text = False

    def __init__(self, subject: Subject, thread_id: str, run_id: str) -> None:
        self._subject = subject
        self._names = {"threadId": thread_id, "runId": run_id}
        self._calls: set[str] = set()

    def begin(self) -> bytes:
        metadata = {"runlaneRunId": self._subject.id.run_id}
        return _frame("RUN_STARTED", **self._names, protocolVersion=PROTOCOL_VERSION, metadata=metadata)

    def piece(self, piece: Piece, seq: int, *, live: bool) -> bytes:
        message_id = f"msg_{self._subject.id.text('')}_{piece.index}"
        match piece.kind:
            case PieceKind.OPENED:
                return _frame("TEXT_MESSAGE_START", messageId=message_id, role="assistant")
            case PieceKind.TEXT:
                return _frame("TEXT_MESSAGE_CONTENT", messageId=message_id, delta=piece.text)
            case PieceKind.CLOSED | PieceKind.WITHDRAWN:
                return _frame("TEXT_MESSAGE_END", messageId=message_id)

    def event(self, event: Mapping[str, Any]) -> bytes:
        if event["type"] == EventType.MODEL_RESPONSE and is_own_turn(event):
            return self._reasoning(event) + b"".join(self._call(call) for call in event["tool_calls"])
        if event["type"] == EventType.TOOL_RESULT:
            return self._result(event)
        return b""

    def end(self, fold: AnswerFold, ending: Ending) -> bytes:
        usage: dict[str, Any] = {}
        if not fold.truncated:
            total = fold.tokens_in + fold.tokens_out
            counts = {"inputTokens": fold.tokens_in, "outputTokens": fold.tokens_out, "totalTokens": total}
            usage = {"usage": [counts]}
        if ending.status is Status.FAILED:
            return _frame("RUN_ERROR", message=ending.message, code=ending.code, **usage)
        outcome: dict[str, Any] = {"type": "success"}
        if ending.status is Status.CANCELLED:
            outcome = {"type": "cancelled"}
        if ending.question_at is not None:
            at = ending.question_at
            outcome = {"type": "interrupt", "interrupts": [interrupt(at, wait) for wait in ending.questions]}
        result = {} if ending.result is None else {"result": ending.result}
        return _frame("RUN_FINISHED", **self._names, **result, outcome=outcome, **usage)

    def broken(self, error: RunlaneError) -> bytes:
        return _frame("RUN_ERROR", message=str(error), code=error.code)

    def _reasoning(self, event: Mapping[str, Any]) -> bytes:
        thinking = event.get("thinking")
        if not thinking:
            return b""
        span = {"messageId": f"think_{self._subject.id.digits}_{event['seq']}"}
        return (
            _frame("REASONING_START", **span)
            + _frame("REASONING_MESSAGE_START", **span, role="reasoning")
            + _frame("REASONING_MESSAGE_CONTENT", **span, delta=thinking)
            + _frame("REASONING_MESSAGE_END", **span)
            + _frame("REASONING_END", **span)
        )

    def _call(self, call: Mapping[str, Any]) -> bytes:
        # A call with this name is the agent's answer, not a tool call.
        if call["name"] == FINAL_ANSWER or call["id"] in self._calls:
            return b""
        self._calls.add(call["id"])
        name = {"toolCallId": call["id"]}
        return (
            _frame("TOOL_CALL_START", **name, toolCallName=call["name"])
            + _frame("TOOL_CALL_ARGS", **name, delta=dump_json(call["arguments"]))
            + _frame("TOOL_CALL_END", **name)
        )

    def _result(self, event: Mapping[str, Any]) -> bytes:
        # After a pause, a result may belong to a call in the stream before the pause.
        if event["call_id"] not in self._calls and not self._subject.id.after:
            return b""
        message_id = f"tool_{self._subject.id.digits}_{event['seq']}"
        call = {"messageId": message_id, "toolCallId": event["call_id"], "role": "tool"}
        return _frame("TOOL_CALL_RESULT", **call, content=event["preview"])


def _frame(kind: str, **fields: Any) -> bytes:
    return b"data: " + orjson.dumps({"type": kind, **fields}) + b"\n\n"
