"""Guarded HTTP requests to other servers, so that data of tenants cannot cause calls to the internal network."""

from runlane.outbound.client import Outbound, OutboundResponse
from runlane.outbound.limits import OutboundLimits
from runlane.outbound.resolve import Resolve

__all__ = ["Outbound", "OutboundLimits", "OutboundResponse", "Resolve"]
