"""Guarded HTTP calls to other servers, so that no text of a tenant can reach the internal network."""

from runlane.outbound.client import Outbound, OutboundResponse
from runlane.outbound.limits import OutboundLimits
from runlane.outbound.resolve import Resolve

__all__ = ["Outbound", "OutboundLimits", "OutboundResponse", "Resolve"]
