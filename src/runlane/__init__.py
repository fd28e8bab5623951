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
    from runlane.domain.flow_control import FlowControl
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
    from runlane.domain.memory_archive import MemoryImport
    from runlane.domain.options import RunOptions
    from runlane.domain.quota import QuotaUse
    from runlane.domain.rate_limit import CredentialLimits, CredentialUsage
    from runlane.domain.run import Accepted, ChildRun, Run, Status
    from runlane.domain.scaling import Demand
    from runlane.domain.schedule import (
        Backfill,
        Schedule,
        SchedulePreview,
        ScheduleSettings,
        ScheduleTarget,
        ScheduleTiming,
        TimeSpec,
        UpcomingSlot,
    )
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
    "FlowControl",
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
    "MemoryImport",
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
    "ScheduleTarget",
    "ScheduleTiming",
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
    "TimeSpec",
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
_MODULES = {
    "runlane.app": "App",
    "runlane.client": "Client RetryPolicy",
    "runlane.client.administration": "Administration",
    "runlane.client.failures": "BulkJobs DeadLetters",
    "runlane.client.memory": "MemoryCalls",
    "runlane.client.schedules": "ScheduleCalls",
    "runlane.client.secrets": "Secrets",
    "runlane.client.threads": "AssistantCalls ThreadCalls",
    "runlane.client.webhook_sources": "SourceAccess WebhookSources",
    "runlane.client.webhooks": "Webhooks",
    "runlane.domain.access": "ApiKey AuditEntry Role",
    "runlane.domain.action_link": "ActionLink",
    "runlane.domain.assistant": "Assistant AssistantVersion",
    "runlane.domain.bulk": "BulkItem BulkJob BulkPreview",
    "runlane.domain.concurrency": "SharedLimit",
    "runlane.domain.database_size": "DatabaseSize TableSize",
    "runlane.domain.dead_letter": "DeadLetter DeadLetterGroup DeadLetterSummary GroupVersion",
    "runlane.domain.events": "Event",
    "runlane.domain.finding": "Diagnosis Finding",
    "runlane.domain.firing": "Firing ScheduledSlot",
    "runlane.domain.flow_control": "FlowControl",
    "runlane.domain.flow_keys": "FlowKeyUse",
    "runlane.domain.graph_registry": "AgentServerOptions GraphSource StoreOptions",
    "runlane.domain.graph_view": "OrchestrationGraph RunGraph",
    "runlane.domain.lane": "Lane LaneHold",
    "runlane.domain.mcp_check": "McpCheck McpToolSummary",
    "runlane.domain.memory": (
        "EntryPage FragmentInfo Memory MemoryCommit MemoryEntry MemoryExport MemoryFragment MemoryHit "
        "MemoryNodeStatus MemoryOp MemoryTenantExport MemoryUser NewEntry Vault"
    ),
    "runlane.domain.memory_archive": "MemoryImport",
    "runlane.domain.options": "RunOptions",
    "runlane.domain.quota": "QuotaUse",
    "runlane.domain.rate_limit": "CredentialLimits CredentialUsage",
    "runlane.domain.run": "Accepted ChildRun Run Status",
    "runlane.domain.scaling": "Demand",
    "runlane.domain.schedule": (
        "Backfill Schedule SchedulePreview ScheduleSettings ScheduleTarget ScheduleTiming TimeSpec UpcomingSlot"
    ),
    "runlane.domain.search_hit": "SearchHit",
    "runlane.domain.secret": "RotatedSecrets Secret SecretUser",
    "runlane.domain.series": "RunSeries",
    "runlane.domain.server": "ServerReplica",
    "runlane.domain.stream_token": "StreamToken",
    "runlane.domain.task": "Task",
    "runlane.domain.tenant": "Tenant",
    "runlane.domain.tenant_event": "EventReceipt TenantEvent TriggerOutcome TriggerReplay",
    "runlane.domain.thread": "Thread",
    "runlane.domain.timeline": "Span Timeline",
    "runlane.domain.usage": "ExpensiveRun ExpensiveRuns UsageReport UsageRow",
    "runlane.domain.views": (
        "Attempt ChatMessage ChatPost ChatState LiveEvent LogLine Logs ServerHealth StartResult StatusCount "
        "Step WorkerInfo"
    ),
    "runlane.domain.wait": "AnswerResult InboxCount Question QuestionDetail QuestionKind",
    "runlane.domain.webhook": (
        "WebhookAttempt WebhookDelivery WebhookDeliveryLog WebhookEndpoint WebhookKey WebhookReplay WebhookSecret"
    ),
    "runlane.domain.webhook_source": "WebhookSource",
    "runlane.llm.models": "ModelRegistry",
    "runlane.maintenance.service": "PeriodicService",
    "runlane.memory.service": "MemoryService",
    "runlane.operators.thread_operator": "AssistantOperator ThreadOperator",
    "runlane.resources": "Resources",
    "runlane.settings": "Settings",
    "runlane.store.sql.database": "Database",
    "runlane.submit.chat": "ChatRequest",
    "runlane.submit.orchestrations": "StartRequest",
    "runlane.submit.schedules": "Schedules",
    "runlane.submit.tasks": "TaskRequest",
    "runlane.worker.context": "Context",
    "runlane.worker.worker": "Worker",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
