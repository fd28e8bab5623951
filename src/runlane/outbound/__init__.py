"""Outbound: the one way to call servers elsewhere, so that no tenant's text leads into our own network."""

from runlane.outbound.client import Outbound, OutboundResponse
from runlane.outbound.limits import OutboundLimits
from runlane.outbound.resolve import Resolve

__all__ = ["Outbound", "OutboundLimits", "OutboundResponse", "Resolve"]
