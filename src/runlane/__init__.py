"""Runlane: durable runs for agents, orchestrations and Python tasks. An accepted run is always brought to an end.

Names are loaded when they are first used, so that a worker does not load an HTTP client, nor `runlane --help` a store.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from runlane.app import App
    from runlane.client import Client, RetryPolicy
    from runlane.client.administration import Administration
    from runlane.client.secrets import RotatedSecrets, Secrets
    from runlane.domain.access import ApiKey, AuditEntry, Role
    from runlane.domain.events import Event
    from runlane.domain.lane import Lane
    from runlane.domain.options import RunOptions
    from runlane.domain.run import Accepted, ChildRun, Run, Status
    from runlane.domain.secret import Secret
    from runlane.domain.task import Task
    from runlane.domain.tenant import Tenant
    from runlane.domain.views import (
        Attempt,
        ChatMessage,
        ChatPost,
        ChatState,
        LiveEvent,
        LogLine,
        Logs,
        ServerHealth,
        Step,
        WorkerInfo,
    )
    from runlane.domain.wait import Question
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
    from runlane.llm.models import ModelRegistry
    from runlane.maintenance.service import PeriodicService
    from runlane.resources import Resources
    from runlane.settings import Settings
    from runlane.store.sql.database import Database
    from runlane.submit.chat import ChatRequest
    from runlane.submit.orchestrations import StartRequest
    from runlane.submit.tasks import TaskRequest
    from runlane.worker.context import Context
    from runlane.worker.worker import Worker

__all__ = [
    "Accepted",
    "Administration",
    "ApiKey",
    "App",
    "AppNotFound",
    "Attempt",
    "AuditEntry",
    "ChatMessage",
    "ChatPost",
    "ChatRequest",
    "ChatState",
    "ChildRun",
    "Client",
    "ConfigurationError",
    "Conflict",
    "Context",
    "Database",
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
    "Lane",
    "LeaseLost",
    "LiveEvent",
    "LogLine",
    "Logs",
    "ModelRegistry",
    "NoSecretKey",
    "NotFound",
    "OutboundError",
    "OutboundRefused",
    "OutboundTimeout",
    "OutboundTooLarge",
    "OutboundUnreachable",
    "PeriodicService",
    "Question",
    "QueueLimited",
    "RateLimited",
    "Resources",
    "Retry",
    "RetryPolicy",
    "Role",
    "RotatedSecrets",
    "Run",
    "RunCancelled",
    "RunNotFound",
    "RunOptions",
    "RunlaneError",
    "SchemaOutdated",
    "SchemaTooNew",
    "Secret",
    "SecretQuotaExceeded",
    "SecretUnreadable",
    "Secrets",
    "ServerHealth",
    "Settings",
    "StartRequest",
    "Status",
    "Step",
    "StorageRefused",
    "Task",
    "TaskRequest",
    "TemplateError",
    "TemplateTooLarge",
    "Tenant",
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
    "Worker",
    "WorkerInfo",
    "WrongState",
]

# The modules that define the names; the other names are errors.
_HOMES = {
    "Accepted": "runlane.domain.run",
    "Administration": "runlane.client.administration",
    "ApiKey": "runlane.domain.access",
    "App": "runlane.app",
    "Attempt": "runlane.domain.views",
    "AuditEntry": "runlane.domain.access",
    "ChatMessage": "runlane.domain.views",
    "ChatPost": "runlane.domain.views",
    "ChatRequest": "runlane.submit.chat",
    "ChatState": "runlane.domain.views",
    "ChildRun": "runlane.domain.run",
    "Client": "runlane.client",
    "Context": "runlane.worker.context",
    "Database": "runlane.store.sql.database",
    "Event": "runlane.domain.events",
    "Lane": "runlane.domain.lane",
    "LiveEvent": "runlane.domain.views",
    "LogLine": "runlane.domain.views",
    "Logs": "runlane.domain.views",
    "ModelRegistry": "runlane.llm.models",
    "PeriodicService": "runlane.maintenance.service",
    "Question": "runlane.domain.wait",
    "Resources": "runlane.resources",
    "RetryPolicy": "runlane.client",
    "Role": "runlane.domain.access",
    "RotatedSecrets": "runlane.client.secrets",
    "Run": "runlane.domain.run",
    "RunOptions": "runlane.domain.options",
    "Secret": "runlane.domain.secret",
    "Secrets": "runlane.client.secrets",
    "ServerHealth": "runlane.domain.views",
    "Settings": "runlane.settings",
    "StartRequest": "runlane.submit.orchestrations",
    "Status": "runlane.domain.run",
    "Step": "runlane.domain.views",
    "Task": "runlane.domain.task",
    "TaskRequest": "runlane.submit.tasks",
    "Tenant": "runlane.domain.tenant",
    "Worker": "runlane.worker.worker",
    "WorkerInfo": "runlane.domain.views",
}


if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_HOMES.get(name, "runlane.errors")), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
