"""Runlane: durable runs for agents, orchestrations and Python tasks. Accepted means finished."""

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
    UnknownLane,
    UnknownTask,
    WrongState,
)
from runlane.model.event import Event
from runlane.model.run import Accepted, Run, Status
from runlane.settings import Settings
from runlane.worker.context import Context

__all__ = [
    "Accepted",
    "App",
    "AppNotFound",
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
    "UnknownLane",
    "UnknownTask",
    "WrongState",
]
