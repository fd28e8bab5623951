"""The HTTP API as Python: start runs, follow them through broken connections, operate on them."""

from runlane.client.client import Client
from runlane.client.patience import RetryPolicy
from runlane.client.secrets import RotatedSecrets
from runlane.client.values import (
    Attempt,
    AuditRecord,
    ChatMessage,
    ChatPost,
    ChatState,
    LiveEvent,
    LogLine,
    Logs,
    Question,
    ServerHealth,
    Step,
    WorkerInfo,
)

__all__ = [
    "Attempt",
    "AuditRecord",
    "ChatMessage",
    "ChatPost",
    "ChatState",
    "Client",
    "LiveEvent",
    "LogLine",
    "Logs",
    "Question",
    "RetryPolicy",
    "RotatedSecrets",
    "ServerHealth",
    "Step",
    "WorkerInfo",
]
