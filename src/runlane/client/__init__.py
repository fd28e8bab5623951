"""HTTP client: start runs, follow them across broken connections, and operate on them."""

from runlane.client.client import Client
from runlane.client.retry_policy import RetryPolicy

__all__ = ["Client", "RetryPolicy"]
