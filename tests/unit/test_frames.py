"""Frames: the data of an event never hides the fields that every event has."""

from __future__ import annotations

import json

import pytest

from runlane.api.sse_encoding import line_json
from runlane.domain.events import EventType, StoredEvent
from runlane.domain.run import Status
from runlane.store.queue.record import AttemptOutcome, Finish
from runlane.worker.execution import _closing_events

ERROR = '{"type":"ValueError","message":"no","traceback":"tb"}'


@pytest.mark.parametrize("outcome", [AttemptOutcome.FAILED, AttemptOutcome.RETRY_LATER])
def test_the_type_of_an_error_does_not_hide_the_type_of_its_event(outcome: AttemptOutcome) -> None:
    ((kind, data),) = _closing_events(Finish(outcome, Status.QUEUED, error=ERROR))
    parsed = json.loads(line_json("run_1", StoredEvent(3, kind, 1, 0, data)))
    assert EventType(parsed["type"]) in {EventType.ATTEMPT_FAILED, EventType.RETRY_LATER}
    assert parsed["error"] == json.loads(ERROR)
