"""The HTTP API as Python: start runs, follow them through broken connections, operate on them."""

from runlane.client.client import Client
from runlane.client.retry_policy import RetryPolicy

__all__ = ["Client", "RetryPolicy"]
