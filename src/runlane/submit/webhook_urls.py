"""Check the webhook URL of a run against the rules of a project's configuration file.

The guard of outgoing requests applies in any case, when a delivery is sent.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from runlane.domain.graph_registry import WebhookUrlRules
from runlane.errors import InvalidRequest

_PORTS: Final = {"http": 80, "https": 443}


def check_webhook_url(rules: WebhookUrlRules, url: str | None) -> None:
    """Raise InvalidRequest if the rules do not allow the URL."""
    if url is None:
        return
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme)
    except ValueError as error:
        raise InvalidRequest(f"The URL of the webhook is not a valid URL: {error}. Use another URL.") from None
    if rules.max_url_length is not None and len(url) > rules.max_url_length:
        raise _refused(f"has {len(url)} characters; at most {rules.max_url_length} are allowed", "max_url_length")
    if rules.require_https and parts.scheme != "https":
        raise _refused("does not begin with https://", "require_https")
    if rules.allowed_domains and not any(_belongs(host, domain) for domain in rules.allowed_domains):
        raise _refused(f'has the host "{host}", which is not allowed', "allowed_domains")
    if rules.allowed_ports and port not in rules.allowed_ports:
        raise _refused(f"has the port {port}, which is not allowed", "allowed_ports")


def _belongs(host: str, domain: str) -> bool:
    """Return whether a host is allowed: the same name, or a name below `*.domain`."""
    wanted = domain.lower()
    return host.endswith(wanted[1:]) if wanted.startswith("*.") else host == wanted


def _refused(problem: str, key: str) -> InvalidRequest:
    return InvalidRequest(f'The URL of the webhook {problem} ("webhooks.url.{key}"). Use another URL.')
