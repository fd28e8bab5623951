"""Runlane: durable runs for agents, orchestrations and Python tasks. An accepted run is always brought to an end.

Names are loaded when they are first used, so that a worker does not load an HTTP client, nor `runlane --help` a store.
"""

import importlib
import typing

from runlane import errors
from runlane.errors import *

if typing.TYPE_CHECKING:
    from runlane.app import App
    from runlane.client import Client, RetryPolicy
    from runlane.client.administration import Administration
    from runlane.client.secrets import Secrets
    from runlane.domain.access import ApiKey, AuditEntry, Role
    from runlane.domain.events import Event
    from runlane.domain.lane import Lane
    from runlane.domain.options import RunOptions
    from runlane.domain.rate_limit import CredentialLimits, CredentialUsage
    from runlane.domain.run import Accepted, ChildRun, Run, Status
    from runlane.domain.secret import RotatedSecrets, Secret
    from runlane.domain.task import Task
    from runlane.domain.tenant import Tenant
    from runlane.domain.usage import UsageReport, UsageRow
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

__all__: list[str] = [
    "Accepted",
    "Administration",
    "ApiKey",
    "App",
    "Attempt",
    "AuditEntry",
    "ChatMessage",
    "ChatPost",
    "ChatRequest",
    "ChatState",
    "ChildRun",
    "Client",
    "Context",
    "CredentialLimits",
    "CredentialUsage",
    "Database",
    "Event",
    "Lane",
    "LiveEvent",
    "LogLine",
    "Logs",
    "ModelRegistry",
    "PeriodicService",
    "Question",
    "Resources",
    "RetryPolicy",
    "Role",
    "RotatedSecrets",
    "Run",
    "RunOptions",
    "Secret",
    "Secrets",
    "ServerHealth",
    "Settings",
    "StartRequest",
    "Status",
    "Step",
    "Task",
    "TaskRequest",
    "Tenant",
    "UsageReport",
    "UsageRow",
    "Worker",
    "WorkerInfo",
]
__all__ += errors.__all__

# The modules that define the names that are not errors.
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
    "CredentialLimits": "runlane.domain.rate_limit",
    "CredentialUsage": "runlane.domain.rate_limit",
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
    "RotatedSecrets": "runlane.domain.secret",
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
    "UsageReport": "runlane.domain.usage",
    "UsageRow": "runlane.domain.usage",
    "Worker": "runlane.worker.worker",
    "WorkerInfo": "runlane.domain.views",
}


if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
