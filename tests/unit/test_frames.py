"""Frames: what an event says of itself never hides what every event has."""

from __future__ import annotations

import json

import pytest

from runlane.api.frame import line_json
from runlane.model.event import EventType, Line
from runlane.model.run import Status
from runlane.store.record import Finish, Outcome
from runlane.worker.execution import _closing_events

ERROR = '{"type":"ValueError","message":"no","traceback":"tb"}'


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.RETRY_LATER])
def test_the_type_of_an_error_does_not_hide_the_type_of_its_event(outcome: Outcome) -> None:
    ((kind, data),) = _closing_events(Finish(outcome, Status.QUEUED, error=ERROR))
    told = json.loads(line_json("run_1", Line(3, kind, 1, 0, data)))
    assert EventType(told["type"]) in {EventType.ATTEMPT_FAILED, EventType.RETRY_LATER}
    assert told["error"] == json.loads(ERROR)
