"""HTTP client: start runs, follow them across broken connections, and operate on them."""

from runlane.client.client import Client
from runlane.client.retry_policy import RetryPolicy
from runlane.client.secrets import RotatedSecrets
from runlane.domain.access import AuditEntry
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

__all__ = [
    "Attempt",
    "AuditEntry",
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
