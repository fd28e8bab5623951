"""The HTTP API as Python: start runs, follow them through broken connections, operate on them."""

from runlane.client.client import Client
from runlane.client.patience import Patience
from runlane.client.secrets import RotatedSecrets
from runlane.client.values import (
    Attempt,
    AuditRecord,
    ChatMessage,
    ChatPost,
    ChatState,
    Health,
    LiveEvent,
    LogLine,
    Logs,
    Question,
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
    "Health",
    "LiveEvent",
    "LogLine",
    "Logs",
    "Patience",
    "Question",
    "RotatedSecrets",
    "Step",
    "WorkerInfo",
]
