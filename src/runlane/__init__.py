"""Runlane: durable runs for agents, orchestrations and Python tasks. Accepted means finished."""

import typing

from runlane.app import App
from runlane.errors import (
    AppNotFound,
    ConfigurationError,
    DuplicateTask,
    Fail,
    IdempotencyConflict,
    InputTooLarge,
    Interrupted,
    InvalidInput,
    InvalidRequest,
    InvalidSettings,
    LeaseLost,
    Refused,
    Retry,
    RunCancelled,
    RunlaneError,
    RunNotFound,
    SchemaOutdated,
    SchemaTooNew,
    Unavailable,
    UnexpectedAnswer,
    UnknownLane,
    UnknownTask,
    WrongState,
)
from runlane.model.event import Event
from runlane.model.run import Accepted, Run, Status
from runlane.settings import Settings
from runlane.worker.context import Context

if typing.TYPE_CHECKING:
    from runlane.client import Client, LiveEvent

__all__ = [
    "Accepted",
    "App",
    "AppNotFound",
    "Client",
    "ConfigurationError",
    "Context",
    "DuplicateTask",
    "Event",
    "Fail",
    "IdempotencyConflict",
    "InputTooLarge",
    "Interrupted",
    "InvalidInput",
    "InvalidRequest",
    "InvalidSettings",
    "LeaseLost",
    "LiveEvent",
    "Refused",
    "Retry",
    "Run",
    "RunCancelled",
    "RunNotFound",
    "RunlaneError",
    "SchemaOutdated",
    "SchemaTooNew",
    "Settings",
    "Status",
    "Unavailable",
    "UnexpectedAnswer",
    "UnknownLane",
    "UnknownTask",
    "WrongState",
]


def __getattr__(name: str) -> object:
    # A worker has no use for an HTTP client and should not pay for one in memory.
    if name in ("Client", "LiveEvent"):
        import runlane.client

        return getattr(runlane.client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
