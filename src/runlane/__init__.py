"""Runlane: durable runs for agents, orchestrations and Python tasks. Accepted means finished."""

import typing

from runlane.app import App
from runlane.errors import (
    AppNotFound,
    ConcurrencyLimited,
    ConfigurationError,
    Conflict,
    DuplicateTask,
    Fail,
    Forbidden,
    IdempotencyConflict,
    InputTooLarge,
    Interrupted,
    InvalidInput,
    InvalidRequest,
    InvalidSettings,
    LeaseLost,
    NotFound,
    QueueLimited,
    RateLimited,
    Refused,
    Retry,
    RunCancelled,
    RunlaneError,
    RunNotFound,
    SchemaOutdated,
    SchemaTooNew,
    Unauthorized,
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
    "ConcurrencyLimited",
    "ConfigurationError",
    "Conflict",
    "Context",
    "DuplicateTask",
    "Event",
    "Fail",
    "Forbidden",
    "IdempotencyConflict",
    "InputTooLarge",
    "Interrupted",
    "InvalidInput",
    "InvalidRequest",
    "InvalidSettings",
    "LeaseLost",
    "LiveEvent",
    "NotFound",
    "QueueLimited",
    "RateLimited",
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
    "Unauthorized",
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
