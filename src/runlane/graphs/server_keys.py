"""The keys of a configuration file that servers apply: `auth`, `http`, `webhooks` and `checkpointer.ttl`.

A key inside of them is applied, or is reported by its name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from runlane.domain.graph import PruneStrategy
from runlane.domain.graph_registry import (
    AgentServerOptions,
    AuthSource,
    DefaultTtl,
    HttpOptions,
    WebhookUrlRules,
)

SERVER_KEYS: Final = frozenset({"auth", "http", "webhooks"})
_NO_EFFECT: Final = "It has no effect; remove it."
_SWEEP: Final = "Expired threads and items are deleted continuously, in small batches."
_LOCATION: Final = re.compile(r".+:[A-Za-z_][\w.]*", re.ASCII)

# The keys that have an effect.
_KNOWN: Final[Mapping[str, frozenset[str]]] = {
    "auth": frozenset({"path", "disable_studio_auth"}),
    "http": frozenset({"app", "enable_custom_route_auth", "cors"}),
    "http.cors": frozenset({"allow_origins", "expose_headers"}),
    "webhooks": frozenset({"url"}),
    "webhooks.url": frozenset({"require_https", "allowed_domains", "allowed_ports", "max_url_length"}),
    "checkpointer.ttl": frozenset({"strategy", "default_ttl"}),
    "store.ttl": frozenset({"default_ttl", "refresh_on_read"}),
    "store.index": frozenset({"embed", "dims", "fields"}),
}
# What to do instead of setting the other keys.
_CURES: Final[Mapping[str, str]] = {
    "auth.openapi": "Describe the credentials in the documentation of the project.",
    "auth.cache": "The module is called for each request; cache inside of it.",
    "http.configurable_headers": "Send the values in config.configurable.",
    "http.logging_headers": "Headers are not logged.",
    "http.middleware_order": "Middleware of the app applies to its own routes.",
    "http.mount_prefix": "Set the prefix in the proxy before the server.",
    "http.cors.allow_credentials": "Send the key in a header; cookies are not used.",
    "http.cors.allow_headers": "Pages of allowed origins may send every header.",
    "http.cors.allow_methods": "Pages of allowed origins may use every method.",
    "http.cors.allow_origin_regex": "List the origins in allow_origins.",
    "http.cors.max_age": "Answers to preflights are kept for 10 minutes.",
    "webhooks.env_prefix": "Webhooks have no headers of the project; check their signature.",
    "webhooks.headers": "Webhooks have no headers of the project; check their signature.",
    "webhooks.url.disable_loopback": "Internal addresses are refused; RUNLANE_OUTBOUND_ALLOW allows some.",
    "checkpointer.ttl.sweep_interval_minutes": _SWEEP,
    "checkpointer.ttl.sweep_limit": _SWEEP,
    "store.ttl.sweep_interval_minutes": _SWEEP,
}
_DISABLED: Final = "Every path of the agent server is served; refuse requests in the auth module or in a proxy."


def read_server_keys(table: Mapping[str, Any], folder: Path) -> AgentServerOptions:
    """Return the options of servers. ValueError with the key that is not valid."""
    return AgentServerOptions(
        _auth(_table(table, "auth"), folder),
        _http(_table(table, "http"), folder),
        _webhook_urls(_table(_table(table, "webhooks"), "url", "webhooks.url")),
        _thread_ttl(_table(_table(table, "checkpointer"), "ttl", "checkpointer.ttl")),
    )


def unsupported_server_keys(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys that are nested in the keys of servers and have no effect, with what to do instead."""
    for path, known in _KNOWN.items():
        inner: Any = table
        for name in path.split("."):
            inner = cast("Mapping[str, Any]", inner).get(name) if isinstance(inner, Mapping) else None
        for name in cast("Mapping[str, Any]", inner) if isinstance(inner, Mapping) else ():
            if name not in known:
                key = f"{path}.{name}"
                cure = _DISABLED if key.startswith("http.disable_") else _NO_EFFECT
                yield key, _CURES.get(key, cure)


def _auth(auth: Mapping[str, Any], folder: Path) -> AuthSource | None:
    if not auth:
        return None
    return AuthSource(
        _location(auth.get("path"), "auth.path"), folder, not _boolean(auth, "disable_studio_auth", "auth")
    )


def _http(http: Mapping[str, Any], folder: Path) -> HttpOptions:
    cors = _table(http, "cors", "http.cors")
    app = http.get("app")
    return HttpOptions(
        None if app is None else _location(app, "http.app"),
        folder,
        _boolean(http, "enable_custom_route_auth", "http"),
        tuple(_strings(cors, "allow_origins", "http.cors")),
        tuple(_strings(cors, "expose_headers", "http.cors")),
    )


def _webhook_urls(url: Mapping[str, Any]) -> WebhookUrlRules:
    ports: Any = url.get("allowed_ports") or []
    if not isinstance(ports, list) or not all(isinstance(port, int) for port in cast("list[Any]", ports)):
        raise ValueError('"webhooks.url.allowed_ports" must be a list of numbers.')
    longest = url.get("max_url_length")
    if longest is not None and (not isinstance(longest, int) or longest < 1):
        raise ValueError('"webhooks.url.max_url_length" must be a number above 0.')
    return WebhookUrlRules(
        _boolean(url, "require_https", "webhooks.url"),
        tuple(_strings(url, "allowed_domains", "webhooks.url")),
        tuple(cast("list[int]", ports)),
        longest,
    )


def _thread_ttl(ttl: Mapping[str, Any]) -> DefaultTtl | None:
    minutes, strategy = ttl.get("default_ttl"), ttl.get("strategy", PruneStrategy.DELETE.value)
    if strategy not in [known.value for known in PruneStrategy]:
        raise ValueError(f'"checkpointer.ttl.strategy" is {strategy!r}. Use "delete" or "keep_latest".')
    if minutes is None:
        return None
    if isinstance(minutes, bool) or not isinstance(minutes, int | float) or minutes <= 0:
        raise ValueError('"checkpointer.ttl.default_ttl" must be a number of minutes above 0.')
    return DefaultTtl(math.ceil(minutes), strategy)


def _table(table: Mapping[str, Any], key: str, shown: str | None = None) -> Mapping[str, Any]:
    value = table.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f'"{shown or key}" must be an object.')  # noqa: TRY004 - the value of a file
    return cast("dict[str, Any]", value)


def _location(value: Any, key: str) -> str:
    if not isinstance(value, str) or _LOCATION.fullmatch(value) is None:
        raise ValueError(f'"{key}" is not a location. Form: ./file.py:name or package.module:name')
    return value


def _boolean(table: Mapping[str, Any], key: str, parent: str) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise ValueError(f'"{parent}.{key}" must be true or false.')  # noqa: TRY004 - the value of a file
    return value


def _strings(table: Mapping[str, Any], key: str, parent: str) -> list[str]:
    value: Any = table.get(key) or []
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in cast("list[Any]", value)):
        raise ValueError(f'"{parent}.{key}" must be a list of strings.')
    return cast("list[str]", value)
