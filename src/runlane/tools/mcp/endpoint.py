"""An endpoint of a connection: the definition of a server with the values of its secrets.

Secrets are loaded for each use, so that a new value takes effect at once: it results in another endpoint with its own
connection. Secret values are redacted in everything that the server returns.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import quote

from runlane.definitions.schema.definition import McpServer
from runlane.definitions.secret_references import SECRET
from runlane.domain.text import clean_text, dump_json
from runlane.redaction import REDACTED, Redactor
from runlane.tools.caller import ToolFailed

# A shorter secret would match ordinary text.
_MIN_HIDDEN: Final = 4
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_MAX_DEPTH: Final = 200


@dataclass(frozen=True, slots=True)
class McpEndpoint:
    """The endpoint of a connection. `key` is the same for the same tenant, definition and secret values."""

    server: McpServer
    key: str
    url: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    forms: tuple[str, ...] = field(default=(), repr=False)
    redactor: Redactor = field(default_factory=Redactor, repr=False)

    @property
    def name(self) -> str:
        """The name of the server."""
        return self.server.name

    def redact(self, text: str, most: int | None = None) -> str:
        """Return the text without the secrets that were sent to this server, so that it can be stored."""
        text = self.redactor.clean(text)
        for form in self.forms:
            text = text.replace(form, REDACTED)
        return clean_text(text, most)

    def redact_value(self, value: Any, depth: int = 0) -> Any:
        """Return a value without the secrets, so that it can be stored. Raise ValueError if it is nested too deeply."""
        if depth > _MAX_DEPTH:
            raise ValueError("nested too deeply")
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, dict):
            table = cast("dict[Any, Any]", value)
            return {self.redact(str(key)): self.redact_value(item, depth + 1) for key, item in table.items()}
        if isinstance(value, (list, tuple)):
            return [self.redact_value(item, depth + 1) for item in cast("list[Any]", value)]
        return value


def secrets_of(server: McpServer) -> set[str]:
    """Return the secrets that a server's definition refers to."""
    return {name for text in _templates(server) for name in SECRET.findall(text)}


def target_of(tenant: str, server: McpServer, secrets: Mapping[str, str]) -> McpEndpoint:
    """Return the server with its secrets. Raise ToolFailed if a secret is missing or a header cannot be sent."""
    missing = sorted(secrets_of(server) - secrets.keys())
    if missing:
        raise ToolFailed(
            "unknown_secret",
            f'The MCP server "{server.name}" needs the secret{"s" if len(missing) > 1 else ""} {", ".join(missing)}, '
            "which this tenant does not have. Store it, or correct the name in the server's definition.",
            begun=False,
        )
    fill = _filler(secrets)
    headers = {name.lower(): fill(value) for name, value in server.headers.items()}
    if server.token is not None:
        token = fill(server.token)
        headers["authorization"] = token if token.lower().startswith("bearer ") else f"Bearer {token}"
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise ToolFailed(
                "mcp_refused",
                f'The header "{name}" of the MCP server "{server.name}" has characters that HTTP does not allow.',
                begun=False,
            )
    identity = dump_json([tenant, server.model_dump(mode="json"), sorted(secrets.items())])
    return McpEndpoint(
        server=server,
        key=hashlib.sha256(identity.encode()).hexdigest(),
        url=SECRET.sub(lambda found: quote(secrets[found[1]].strip(), safe=""), server.url or ""),
        headers=headers,
        args=tuple(fill(text) for text in server.args),
        env={name: fill(value) for name, value in server.env.items()},
        forms=tuple(sorted(_forms(secrets.values()), key=len, reverse=True)),
        redactor=Redactor(secrets.values()),
    )


def _filler(secrets: Mapping[str, str]) -> Callable[[str], str]:
    # The file of a secret often ends with a line break, which is not part of the secret.
    return lambda text: SECRET.sub(lambda found: secrets[found[1]].strip(), text)


def _templates(server: McpServer) -> Iterator[str]:
    yield from (*server.headers.values(), *server.env.values(), *server.args, server.token or "", server.url or "")


def _forms(values: Collection[str]) -> set[str]:
    """Return the forms in which a response may contain secrets: plain, within JSON, within a URL."""
    plain = {value.strip() for value in values}
    forms = plain | {dump_json(value)[1:-1] for value in plain} | {quote(value, safe="") for value in plain}
    return {form for form in forms if len(form) >= _MIN_HIDDEN}
