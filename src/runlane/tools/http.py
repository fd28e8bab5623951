"""HTTP tools: a definition and arguments become one request, and the response becomes a value.

Requests use only the guarded client. Secrets are loaded for each call, so that a new value takes effect at once. They
are added to the run's redactor before they are sent, and redacted in the response.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import quote

import orjson

from runlane.definitions.schema.definition import Tool
from runlane.domain.retry_after import retry_after_seconds
from runlane.domain.text import clean_text, dump_json
from runlane.errors import OutboundError, OutboundTimeout, OutboundUnreachable, UrlTemplateError
from runlane.event_loop.offload import LARGE_BYTES, offload_if
from runlane.outbound import Outbound, OutboundLimits, OutboundResponse
from runlane.redaction import REDACTED, Redactor
from runlane.templates.url_template import fill_header, header_placeholders, parse_url
from runlane.tools.caller import ToolCaller, ToolFailed, fitting

Values = Callable[[str, Collection[str]], Awaitable[Mapping[str, str]]]

_WITH_BODY: Final = ("POST", "PUT", "PATCH")
_EXCERPT: Final = 300
# A shorter secret would match ordinary text.
_MIN_HIDDEN: Final = 4
_MAX_DEPTH: Final = 200
_BLANK: Final = re.compile(r"[\s\x00-\x1f\x7f]+")
_BINARY: Final = re.compile(r"(image|audio|video|font)/|application/(octet-stream|pdf|zip|gzip|x-tar|vnd\.openxml)")


class HttpTools:
    """Calls tools of type http. There is one per process. `values` returns a tenant's existing secrets by name."""

    def __init__(self, outbound: Outbound, values: Values) -> None:
        self._outbound = outbound
        self._values = values

    def for_run(self, tenant: str, redactor: Redactor) -> ToolCaller:
        """Return the caller for a run of a tenant."""

        async def call(tool: Tool, arguments: Mapping[str, Any], key: str, /) -> Any:
            return await self.call(tenant, redactor, tool, arguments, key)

        return call

    async def call(self, tenant: str, redactor: Redactor, tool: Tool, arguments: Mapping[str, Any], key: str) -> Any:
        """Call a tool and return its result. `key` is sent as the idempotency key. Raise ToolFailed."""
        secrets = await self._secrets(tenant, redactor, tool)
        try:
            request = _request(tool, arguments, secrets, key)
        except UrlTemplateError as error:
            raise ToolFailed(
                "invalid_arguments", f'The tool "{tool.name}" cannot be called. {error}', begun=False
            ) from None
        limits = OutboundLimits(
            connect_seconds=min(10.0, tool.timeout_seconds),
            read_seconds=tool.timeout_seconds,
            total_seconds=tool.timeout_seconds,
            max_body_bytes=tool.max_output_bytes,
        )
        try:
            answer = await self._outbound.request(
                tool.method, request.url, headers=request.headers, content=request.content, limits=limits
            )
        except OutboundError as error:
            retryable = isinstance(error, (OutboundTimeout, OutboundUnreachable))
            code = "tool_timeout" if isinstance(error, OutboundTimeout) else error.code
            message = f'The tool "{tool.name}" failed. {error}'
            raise ToolFailed(code, message, retryable=retryable, begun=error.sent) from None
        # The cost of decoding, redaction, parsing and validation grows with the size of the response.
        is_large = len(answer.body) > LARGE_BYTES
        hidden = _Hidden(redactor.snapshot() if is_large else redactor, secrets)
        return await offload_if(is_large, _result, tool, answer, hidden)

    async def _secrets(self, tenant: str, redactor: Redactor, tool: Tool) -> Mapping[str, str]:
        try:
            names = parse_url(tool.url or "").secrets
        except UrlTemplateError as error:
            message = f'The URL of the tool "{tool.name}" is not valid. {error}'
            raise ToolFailed("invalid_url", message, begun=False) from None
        for value in tool.headers.values():
            names |= header_placeholders(value)[1]
        if not names:
            return {}
        found = await redactor.learning(self._values)(tenant, names)
        missing = sorted(names - found.keys())
        if missing:
            raise ToolFailed(
                "unknown_secret",
                f'The tool "{tool.name}" needs the secret{"s" if len(missing) > 1 else ""} {", ".join(missing)}, '
                "which this tenant does not have. Store it, or correct the name in the tool's definition.",
                begun=False,
            )
        return found


@dataclass(frozen=True, slots=True)
class _Request:
    url: str
    headers: Mapping[str, str]
    content: bytes | None


def _request(tool: Tool, arguments: Mapping[str, Any], secrets: Mapping[str, str], key: str) -> _Request:
    template = parse_url(tool.url or "")
    placed = set(template.fields)
    headers = {
        "accept": "application/json, text/*;q=0.9, */*;q=0.1",
        # Keys consist of ids. Any other character must not break the header.
        "idempotency-key": quote(key, safe="/:@!$&'()*+,;=~-._# []"),
    }
    for name, value in tool.headers.items():
        placed |= header_placeholders(value)[0]
        filled = fill_header(name, value, arguments, secrets)
        if filled is not None:
            headers[name.lower()] = filled
    rest = {name: value for name, value in arguments.items() if name not in placed}
    if tool.method not in _WITH_BODY:
        return _Request(
            template.fill(arguments, secrets, None if template.takes_all_arguments else rest), headers, None
        )
    body: Any = {"all": dict(arguments), "rest": rest, "body": arguments.get("body")}[tool.body]
    if tool.body == "body" and body is None:
        return _Request(template.fill(arguments, secrets), headers, None)
    headers.setdefault("content-type", "application/json")
    return _Request(template.fill(arguments, secrets), headers, dump_json(body).encode())


def _result(tool: Tool, answer: OutboundResponse, hidden: _Hidden) -> Any:
    if answer.status >= 400:
        raise _refusal(tool, answer, hidden)
    if not answer.body.strip():
        return fitting(tool, None)
    if _BINARY.match(answer.media_type):
        raise ToolFailed("tool_output", f'The tool "{tool.name}" returned {answer.media_type}, which is not text.')
    return fitting(tool, _value(tool, answer, hidden.without(answer.text)))


def _value(tool: Tool, answer: OutboundResponse, text: str) -> Any:
    named_json = answer.media_type == "application/json" or answer.media_type.endswith("+json")
    if named_json or tool.output_schema is not None:
        try:
            return _storable(orjson.loads(text), 0)
        except (orjson.JSONDecodeError, RecursionError):
            if named_json:
                raise ToolFailed(
                    "tool_output", f'The result of the tool "{tool.name}" is declared as JSON but is not valid JSON.'
                ) from None
    return clean_text(text)


def _refusal(tool: Tool, answer: OutboundResponse, hidden: _Hidden) -> ToolFailed:
    text = "" if _BINARY.match(answer.media_type) else hidden.without(answer.text)
    excerpt = clean_text(_BLANK.sub(" ", text[: 10 * _EXCERPT]).strip(), _EXCERPT)
    retryable = answer.status == 429 or answer.status >= 500
    return ToolFailed(
        "tool_error",
        f'The tool "{tool.name}" returned status {answer.status}{f": {excerpt}" if excerpt else "."}',
        retryable=retryable,
        retry_after_seconds=retry_after_seconds(answer.headers.get("retry-after")) if retryable else None,
        # 429 is sent instead of executing the request. With any other status, the request may have had an effect.
        begun=answer.status != 429,
    )


@dataclass(frozen=True, slots=True)
class _Hidden:
    """The values to redact in a response: the secrets of the run, and even short secrets of this request."""

    redactor: Redactor
    secrets: Mapping[str, str]

    def without(self, text: str) -> str:
        """Return the text with secrets redacted, because some servers echo the request."""
        text = self.redactor.clean(text)
        for value in sorted(self.secrets.values(), key=len, reverse=True):
            for form in {value.strip(), dump_json(value.strip())[1:-1], quote(value.strip(), safe="")}:
                if len(form) >= _MIN_HIDDEN:
                    text = text.replace(form, REDACTED)
        return text


def _storable(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise RecursionError
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        return {clean_text(key): _storable(item, depth + 1) for key, item in table.items()}
    if isinstance(value, list):
        return [_storable(item, depth + 1) for item in cast("list[Any]", value)]
    return value
