"""Outbound: the one way to call servers elsewhere, so that no tenant's text leads into our own network."""

from runlane.outbound.client import Answer, Outbound
from runlane.outbound.limits import Limits
from runlane.outbound.resolve import Resolve

__all__ = ["Answer", "Limits", "Outbound", "Resolve"]
