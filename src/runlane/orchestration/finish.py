"""The end of an attempt at a run of an orchestration: its stored outcome and its last events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from runlane.domain.events import EventType
from runlane.domain.run import Status
from runlane.domain.text import dump_json
from runlane.interpreter.values import EndStatus, Failed, OrchestrationEnd
from runlane.orchestration.outbox import Outbox
from runlane.orchestration.waits import OpenWaits
from runlane.store.queue import record as records
from runlane.store.queue.record import Finish

HANDED_BACK: Final = Finish(records.AttemptOutcome.HANDED_BACK, Status.QUEUED)


class AttemptFinisher:
    """Ends an attempt, with its last events."""

    def __init__(self, outbox: Outbox, max_result_bytes: int) -> None:
        self._outbox = outbox
        self._max_result_bytes = max_result_bytes

    def pause(self, questions: OpenWaits, state: Mapping[str, Any]) -> Finish:
        """Pause until an answer, an event or a time."""
        if not questions:
            error = Failed("stuck", "The orchestration has nothing left to do and has not ended.")
            return self.fail(OrchestrationEnd(EndStatus.FAILED, None, state, error))
        seconds = questions.seconds_left()
        self._outbox.add_event(EventType.PAUSED, waiting_for=questions.paths)
        delay_us = None if seconds is None else int(seconds * 1_000_000)
        return Finish(records.AttemptOutcome.PAUSED, Status.PAUSED, delay_us=delay_us)

    def finish(self, end: OrchestrationEnd) -> Finish:
        """End the run with the machine's result."""
        if end.status is EndStatus.FAILED:
            return self.fail(end)
        result = dump_json(end.response)
        size = len(result.encode())
        if size > self._max_result_bytes:
            message = f"The response has {size} bytes as JSON; at most {self._max_result_bytes} are allowed."
            return self.fail(OrchestrationEnd(EndStatus.FAILED, None, end.state, Failed("result_too_large", message)))
        limits = {"loop_limits": list(end.loop_limits)} if end.loop_limits else {}
        self._emit_end("completed", end, **limits)
        self._outbox.add_event(EventType.FINAL, response=end.response, intent="orchestration")
        state = dump_json(dict(end.state))
        return Finish(records.AttemptOutcome.COMPLETED, Status.COMPLETED, result=result, state=state)

    def fail(self, end: OrchestrationEnd) -> Finish:
        """End the run as failed."""
        error = end.error or Failed("failed", "The orchestration failed.")
        self._emit_end("failed", end, error={"code": error.code, "message": error.message})
        stored = {"type": error.code, "message": error.message, "step": end.step_id}
        state = dump_json(dict(end.state))
        return Finish(records.AttemptOutcome.FAILED, Status.FAILED, error=dump_json(stored), state=state)

    def _emit_end(self, status: str, end: OrchestrationEnd, **more: Any) -> None:
        self._outbox.add_event(EventType.ORCHESTRATION_COMPLETE, status=status, final_state=dict(end.state), **more)
