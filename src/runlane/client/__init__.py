"""The HTTP API as Python: start runs, follow them through broken connections, operate on them."""

from runlane.client.client import Client
from runlane.client.patience import Patience
from runlane.client.values import Health, LiveEvent, LogLine, Logs, WorkerInfo

__all__ = ["Client", "Health", "LiveEvent", "LogLine", "Logs", "Patience", "WorkerInfo"]
