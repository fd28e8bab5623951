"""The allowed destinations of webhooks: https on the usual ports, and exceptions by the operator.

These rules are checked first; the guard of outbound calls then checks the addresses of the host at each connection.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from runlane.addresses import AllowList, literal, normal_host, odd_number, refusal
from runlane.domain.webhook import check_url
from runlane.errors import OutboundRefused

PORTS: Final = frozenset({80, 443, 8080, 8443})
# The message is the same for every cause, so that it reveals nothing about the operator's network.
REFUSED: Final = (
    "The address of the webhook is not allowed. Use https and a public host on port 443 or 8443, or ask the operator "
    "to allow it in RUNLANE_OUTBOUND_ALLOW."
)


def check_destination(url: str, allowed: AllowList) -> None:
    """Raise OutboundRefused unless webhooks may be sent to this URL. The host is not resolved here."""
    parts = urlsplit(check_url(url))
    secure = parts.scheme.lower() == "https"
    host = normal_host(parts.hostname or "")
    port = parts.port or (443 if secure else 80)
    address = literal(host)
    if allowed.has_host(host, port) or (address is not None and allowed.has_address(address, port)):
        return
    if not secure or port not in PORTS or odd_number(host) or (address is not None and refusal(address) is not None):
        raise OutboundRefused(REFUSED)
