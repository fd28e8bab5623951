"""Runlane: durable runs for agents, orchestrations and Python tasks. Every accepted run ends.

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
    from runlane.client.failures import BulkJobs, DeadLetters
    from runlane.client.memory import MemoryCalls
    from runlane.client.schedules import ScheduleCalls
    from runlane.client.secrets import Secrets
    from runlane.client.threads import AssistantCalls, ThreadCalls
    from runlane.client.webhook_sources import SourceAccess, WebhookSources
    from runlane.client.webhooks import Webhooks
    from runlane.domain.access import ApiKey, AuditEntry, Role
    from runlane.domain.action_link import ActionLink
    from runlane.domain.assistant import Assistant, AssistantVersion
    from runlane.domain.bulk import BulkItem, BulkJob, BulkPreview
    from runlane.domain.concurrency import SharedLimit
    from runlane.domain.database_size import DatabaseSize, TableSize
    from runlane.domain.dead_letter import DeadLetter, DeadLetterGroup, DeadLetterSummary, GroupVersion
    from runlane.domain.events import Event
    from runlane.domain.finding import Diagnosis, Finding
    from runlane.domain.firing import Firing, ScheduledSlot
    from runlane.domain.flow_keys import FlowKeyUse
    from runlane.domain.graph_registry import AgentServerOptions, GraphSource, StoreOptions
    from runlane.domain.graph_view import OrchestrationGraph, RunGraph
    from runlane.domain.lane import Lane, LaneHold
    from runlane.domain.mcp_check import McpCheck, McpToolSummary
    from runlane.domain.memory import (
        EntryPage,
        FragmentInfo,
        Memory,
        MemoryCommit,
        MemoryEntry,
        MemoryExport,
        MemoryFragment,
        MemoryHit,
        MemoryNodeStatus,
        MemoryOp,
        MemoryTenantExport,
        MemoryUser,
        NewEntry,
        Vault,
    )
    from runlane.domain.options import RunOptions
    from runlane.domain.quota import QuotaUse
    from runlane.domain.rate_limit import CredentialLimits, CredentialUsage
    from runlane.domain.run import Accepted, ChildRun, Run, Status
    from runlane.domain.scaling import Demand
    from runlane.domain.schedule import Backfill, Schedule, SchedulePreview, ScheduleSettings, UpcomingSlot
    from runlane.domain.search_hit import SearchHit
    from runlane.domain.secret import RotatedSecrets, Secret, SecretUser
    from runlane.domain.series import RunSeries
    from runlane.domain.server import ServerReplica
    from runlane.domain.stream_token import StreamToken
    from runlane.domain.task import Task
    from runlane.domain.tenant import Tenant
    from runlane.domain.tenant_event import EventReceipt, TenantEvent, TriggerOutcome, TriggerReplay
    from runlane.domain.thread import Thread
    from runlane.domain.timeline import Span, Timeline
    from runlane.domain.usage import ExpensiveRun, ExpensiveRuns, UsageReport, UsageRow
    from runlane.domain.views import (
        Attempt,
        ChatMessage,
        ChatPost,
        ChatState,
        LiveEvent,
        LogLine,
        Logs,
        ServerHealth,
        StartResult,
        StatusCount,
        Step,
        WorkerInfo,
    )
    from runlane.domain.wait import AnswerResult, InboxCount, Question, QuestionDetail, QuestionKind
    from runlane.domain.webhook import (
        WebhookAttempt,
        WebhookDelivery,
        WebhookDeliveryLog,
        WebhookEndpoint,
        WebhookKey,
        WebhookReplay,
        WebhookSecret,
    )
    from runlane.domain.webhook_source import WebhookSource
    from runlane.llm.models import ModelRegistry
    from runlane.maintenance.service import PeriodicService
    from runlane.memory.service import MemoryService
    from runlane.operators.thread_operator import AssistantOperator, ThreadOperator
    from runlane.resources import Resources
    from runlane.settings import Settings
    from runlane.store.sql.database import Database
    from runlane.submit.chat import ChatRequest
    from runlane.submit.orchestrations import StartRequest
    from runlane.submit.schedules import Schedules
    from runlane.submit.tasks import TaskRequest
    from runlane.worker.context import Context
    from runlane.worker.worker import Worker

__all__: list[str] = [
    "Accepted",
    "ActionLink",
    "Administration",
    "AgentServerOptions",
    "AnswerResult",
    "ApiKey",
    "App",
    "Assistant",
    "AssistantCalls",
    "AssistantOperator",
    "AssistantVersion",
    "Attempt",
    "AuditEntry",
    "Backfill",
    "BulkItem",
    "BulkJob",
    "BulkJobs",
    "BulkPreview",
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
    "DatabaseSize",
    "DeadLetter",
    "DeadLetterGroup",
    "DeadLetterSummary",
    "DeadLetters",
    "Demand",
    "Diagnosis",
    "EntryPage",
    "Event",
    "EventReceipt",
    "ExpensiveRun",
    "ExpensiveRuns",
    "Finding",
    "Firing",
    "FlowKeyUse",
    "FragmentInfo",
    "GraphSource",
    "GroupVersion",
    "InboxCount",
    "Lane",
    "LaneHold",
    "LiveEvent",
    "LogLine",
    "Logs",
    "McpCheck",
    "McpToolSummary",
    "Memory",
    "MemoryCalls",
    "MemoryCommit",
    "MemoryEntry",
    "MemoryExport",
    "MemoryFragment",
    "MemoryHit",
    "MemoryNodeStatus",
    "MemoryOp",
    "MemoryService",
    "MemoryTenantExport",
    "MemoryUser",
    "ModelRegistry",
    "NewEntry",
    "OrchestrationGraph",
    "PeriodicService",
    "Question",
    "QuestionDetail",
    "QuestionKind",
    "QuotaUse",
    "Resources",
    "RetryPolicy",
    "Role",
    "RotatedSecrets",
    "Run",
    "RunGraph",
    "RunOptions",
    "RunSeries",
    "Schedule",
    "ScheduleCalls",
    "SchedulePreview",
    "ScheduleSettings",
    "ScheduledSlot",
    "Schedules",
    "SearchHit",
    "Secret",
    "SecretUser",
    "Secrets",
    "ServerHealth",
    "ServerReplica",
    "Settings",
    "SharedLimit",
    "SourceAccess",
    "Span",
    "StartRequest",
    "StartResult",
    "Status",
    "StatusCount",
    "Step",
    "StoreOptions",
    "StreamToken",
    "TableSize",
    "Task",
    "TaskRequest",
    "Tenant",
    "TenantEvent",
    "Thread",
    "ThreadCalls",
    "ThreadOperator",
    "Timeline",
    "TriggerOutcome",
    "TriggerReplay",
    "UpcomingSlot",
    "UsageReport",
    "UsageRow",
    "Vault",
    "WebhookAttempt",
    "WebhookDelivery",
    "WebhookDeliveryLog",
    "WebhookEndpoint",
    "WebhookKey",
    "WebhookReplay",
    "WebhookSecret",
    "WebhookSource",
    "WebhookSources",
    "Webhooks",
    "Worker",
    "WorkerInfo",
]
__all__ += errors.__all__

# The modules that define the names that are not errors.
_HOMES = {
    "ActionLink": "runlane.domain.action_link",
    "AnswerResult": "runlane.domain.wait",
    "InboxCount": "runlane.domain.wait",
    "OrchestrationGraph": "runlane.domain.graph_view",
    "QuestionDetail": "runlane.domain.wait",
    "QuestionKind": "runlane.domain.wait",
    "RunGraph": "runlane.domain.graph_view",
    "RunSeries": "runlane.domain.series",
    "Span": "runlane.domain.timeline",
    "Timeline": "runlane.domain.timeline",
    "EntryPage": "runlane.domain.memory",
    "FragmentInfo": "runlane.domain.memory",
    "Memory": "runlane.domain.memory",
    "MemoryCalls": "runlane.client.memory",
    "MemoryCommit": "runlane.domain.memory",
    "MemoryEntry": "runlane.domain.memory",
    "MemoryExport": "runlane.domain.memory",
    "MemoryFragment": "runlane.domain.memory",
    "MemoryHit": "runlane.domain.memory",
    "MemoryNodeStatus": "runlane.domain.memory",
    "MemoryOp": "runlane.domain.memory",
    "MemoryService": "runlane.memory.service",
    "MemoryTenantExport": "runlane.domain.memory",
    "MemoryUser": "runlane.domain.memory",
    "NewEntry": "runlane.domain.memory",
    "Vault": "runlane.domain.memory",
    "Accepted": "runlane.domain.run",
    "Administration": "runlane.client.administration",
    "ApiKey": "runlane.domain.access",
    "App": "runlane.app",
    "Attempt": "runlane.domain.views",
    "AuditEntry": "runlane.domain.access",
    "Backfill": "runlane.domain.schedule",
    "BulkItem": "runlane.domain.bulk",
    "BulkJob": "runlane.domain.bulk",
    "BulkJobs": "runlane.client.failures",
    "BulkPreview": "runlane.domain.bulk",
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
    "DeadLetter": "runlane.domain.dead_letter",
    "DeadLetterGroup": "runlane.domain.dead_letter",
    "GroupVersion": "runlane.domain.dead_letter",
    "DeadLetterSummary": "runlane.domain.dead_letter",
    "DeadLetters": "runlane.client.failures",
    "Demand": "runlane.domain.scaling",
    "Event": "runlane.domain.events",
    "Firing": "runlane.domain.firing",
    "EventReceipt": "runlane.domain.tenant_event",
    "Lane": "runlane.domain.lane",
    "LaneHold": "runlane.domain.lane",
    "LiveEvent": "runlane.domain.views",
    "LogLine": "runlane.domain.views",
    "Logs": "runlane.domain.views",
    "ModelRegistry": "runlane.llm.models",
    "PeriodicService": "runlane.maintenance.service",
    "Question": "runlane.domain.wait",
    "QuotaUse": "runlane.domain.quota",
    "SharedLimit": "runlane.domain.concurrency",
    "FlowKeyUse": "runlane.domain.flow_keys",
    "AgentServerOptions": "runlane.domain.graph_registry",
    "Assistant": "runlane.domain.assistant",
    "AssistantVersion": "runlane.domain.assistant",
    "AssistantOperator": "runlane.operators.thread_operator",
    "ThreadOperator": "runlane.operators.thread_operator",
    "AssistantCalls": "runlane.client.threads",
    "ThreadCalls": "runlane.client.threads",
    "Thread": "runlane.domain.thread",
    "StreamToken": "runlane.domain.stream_token",
    "GraphSource": "runlane.domain.graph_registry",
    "StoreOptions": "runlane.domain.graph_registry",
    "Resources": "runlane.resources",
    "RetryPolicy": "runlane.client",
    "Role": "runlane.domain.access",
    "RotatedSecrets": "runlane.domain.secret",
    "Run": "runlane.domain.run",
    "RunOptions": "runlane.domain.options",
    "Schedule": "runlane.domain.schedule",
    "ScheduleCalls": "runlane.client.schedules",
    "SchedulePreview": "runlane.domain.schedule",
    "ScheduleSettings": "runlane.domain.schedule",
    "ScheduledSlot": "runlane.domain.firing",
    "Schedules": "runlane.submit.schedules",
    "SearchHit": "runlane.domain.search_hit",
    "Secret": "runlane.domain.secret",
    "SecretUser": "runlane.domain.secret",
    "Secrets": "runlane.client.secrets",
    "ServerHealth": "runlane.domain.views",
    "Settings": "runlane.settings",
    "SourceAccess": "runlane.client.webhook_sources",
    "StartRequest": "runlane.submit.orchestrations",
    "StartResult": "runlane.domain.views",
    "Status": "runlane.domain.run",
    "StatusCount": "runlane.domain.views",
    "Step": "runlane.domain.views",
    "Task": "runlane.domain.task",
    "TaskRequest": "runlane.submit.tasks",
    "Tenant": "runlane.domain.tenant",
    "UpcomingSlot": "runlane.domain.schedule",
    "TenantEvent": "runlane.domain.tenant_event",
    "TriggerOutcome": "runlane.domain.tenant_event",
    "TriggerReplay": "runlane.domain.tenant_event",
    "UsageReport": "runlane.domain.usage",
    "UsageRow": "runlane.domain.usage",
    "WebhookSource": "runlane.domain.webhook_source",
    "WebhookSources": "runlane.client.webhook_sources",
    "WebhookAttempt": "runlane.domain.webhook",
    "WebhookDelivery": "runlane.domain.webhook",
    "WebhookDeliveryLog": "runlane.domain.webhook",
    "WebhookEndpoint": "runlane.domain.webhook",
    "WebhookKey": "runlane.domain.webhook",
    "WebhookReplay": "runlane.domain.webhook",
    "WebhookSecret": "runlane.domain.webhook",
    "Webhooks": "runlane.client.webhooks",
    "Worker": "runlane.worker.worker",
    "WorkerInfo": "runlane.domain.views",
    "ExpensiveRun": "runlane.domain.usage",
    "ExpensiveRuns": "runlane.domain.usage",
    "McpCheck": "runlane.domain.mcp_check",
    "McpToolSummary": "runlane.domain.mcp_check",
    "DatabaseSize": "runlane.domain.database_size",
    "TableSize": "runlane.domain.database_size",
    "Diagnosis": "runlane.domain.finding",
    "Finding": "runlane.domain.finding",
    "ServerReplica": "runlane.domain.server",
}


if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
