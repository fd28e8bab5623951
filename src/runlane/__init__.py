"""Runlane: durable runs for agents, orchestrations and Python tasks. Accepted means finished.

Names are loaded when they are first used: a worker should not pay for an HTTP client, nor `runlane --help` for a store.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from runlane.app import App
    from runlane.client import Client, LiveEvent
    from runlane.domain.events import Event
    from runlane.domain.run import Accepted, Run, Status
    from runlane.errors import (
        AppNotFound,
        ConfigurationError,
        Conflict,
        DuplicateTask,
        Fail,
        Forbidden,
        IdempotencyConflict,
        InputTooLarge,
        Interrupted,
        InvalidDefinitions,
        InvalidInput,
        InvalidPlaceholder,
        InvalidRequest,
        InvalidSettings,
        LeaseLost,
        NoSecretKey,
        NotFound,
        OutboundError,
        OutboundRefused,
        OutboundTimeout,
        OutboundTooLarge,
        OutboundUnreachable,
        QueueLimited,
        RateLimited,
        Retry,
        RunCancelled,
        RunlaneError,
        RunNotFound,
        SchemaOutdated,
        SchemaTooNew,
        SecretQuotaExceeded,
        SecretUnreadable,
        StorageRefused,
        TemplateError,
        TemplateTooLarge,
        TooManySecrets,
        Unauthorized,
        Unavailable,
        UnexpectedAnswer,
        UnknownDefinition,
        UnknownLane,
        UnknownPlaceholder,
        UnknownSession,
        UnknownTask,
        UrlTemplateError,
        WrongState,
    )
    from runlane.settings import Settings
    from runlane.worker.context import Context

__all__ = [
    "Accepted",
    "App",
    "AppNotFound",
    "Client",
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
    "InvalidDefinitions",
    "InvalidInput",
    "InvalidPlaceholder",
    "InvalidRequest",
    "InvalidSettings",
    "LeaseLost",
    "LiveEvent",
    "NoSecretKey",
    "NotFound",
    "OutboundError",
    "OutboundRefused",
    "OutboundTimeout",
    "OutboundTooLarge",
    "OutboundUnreachable",
    "QueueLimited",
    "RateLimited",
    "Retry",
    "Run",
    "RunCancelled",
    "RunNotFound",
    "RunlaneError",
    "SchemaOutdated",
    "SchemaTooNew",
    "SecretQuotaExceeded",
    "SecretUnreadable",
    "Settings",
    "Status",
    "StorageRefused",
    "TemplateError",
    "TemplateTooLarge",
    "TooManySecrets",
    "Unauthorized",
    "Unavailable",
    "UnexpectedAnswer",
    "UnknownDefinition",
    "UnknownLane",
    "UnknownPlaceholder",
    "UnknownSession",
    "UnknownTask",
    "UrlTemplateError",
    "WrongState",
]

# Where a name is defined; every other one is an error.
_HOMES = {
    "Accepted": "runlane.domain.run",
    "App": "runlane.app",
    "Client": "runlane.client",
    "Context": "runlane.worker.context",
    "Event": "runlane.domain.events",
    "LiveEvent": "runlane.client",
    "Run": "runlane.domain.run",
    "Settings": "runlane.settings",
    "Status": "runlane.domain.run",
}


if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_HOMES.get(name, "runlane.errors")), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
