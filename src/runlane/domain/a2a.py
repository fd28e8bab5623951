"""Tasks of A2A: the tag of runs that other agents have started, and the states of runs in the words of the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from runlane.domain.run import Status

A2A_TAG: Final = "a2a"
A2A_STATES: Final[Mapping[Status, str]] = {
    Status.COMPLETED: "TASK_STATE_COMPLETED",
    Status.FAILED: "TASK_STATE_FAILED",
    Status.CANCELLED: "TASK_STATE_CANCELED",
    Status.RUNNING: "TASK_STATE_WORKING",
    Status.PAUSED: "TASK_STATE_WORKING",
}
