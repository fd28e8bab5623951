"""Tools that are web services: a definition and arguments become one request, and the answer a value.

The request goes out through the guarded client and nowhere else. Secrets are fetched for each call, so that a new
value counts at once. The redactor of the run learns them before they are sent, and takes them out of whatever the
server sends back.
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
from runlane.offload import LARGE_BYTES, offload_if
from runlane.outbound import Outbound, OutboundLimits, OutboundResponse
from runlane.redaction import REDACTED, Redactor
from runlane.templates.url_template import fill_header, header_placeholders, parse_url
from runlane.tools.caller import ToolCaller, ToolFailed, fitting

Values = Callable[[str, Collection[str]], Awaitable[Mapping[str, str]]]

_WITH_BODY: Final = ("POST", "PUT", "PATCH")
_EXCERPT: Final = 300
# A shorter secret would be found in everything.
_MIN_HIDDEN: Final = 4
_MAX_DEPTH: Final = 200
_BLANK: Final = re.compile(r"[\s\x00-\x1f\x7f]+")
_BINARY: Final = re.compile(r"(image|audio|video|font)/|application/(octet-stream|pdf|zip|gzip|x-tar|vnd\.openxml)")


class HttpTools:
    """Calls tools of type http. `values` gives the values of a tenant's secrets by their names; those that do not
    exist are absent. One of these serves a process."""

    def __init__(self, outbound: Outbound, values: Values) -> None:
        self._outbound = outbound
        self._values = values

    def for_run(self, tenant: str, redactor: Redactor) -> ToolCaller:
        """What calls tools for a run of a tenant."""

        async def call(tool: Tool, arguments: Mapping[str, Any], key: str, /) -> Any:
            return await self.call(tenant, redactor, tool, arguments, key)

        return call

    async def call(self, tenant: str, redactor: Redactor, tool: Tool, arguments: Mapping[str, Any], key: str) -> Any:
        """Call a tool. `key` is sent along, so that a server that knows it acts once. Raises ToolFailed."""
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
        # Decoding, redaction, parsing and the check of the schema all grow with what the server sent.
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
        # Keys are made of ids; whatever else may be in one must not break the header.
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
        raise ToolFailed("tool_output", f'The tool "{tool.name}" answered with {answer.media_type}, which is no text.')
    return fitting(tool, _value(tool, answer, hidden.without(answer.text)))


def _value(tool: Tool, answer: OutboundResponse, text: str) -> Any:
    named_json = answer.media_type == "application/json" or answer.media_type.endswith("+json")
    if named_json or tool.output_schema is not None:
        try:
            return _storable(orjson.loads(text), 0)
        except (orjson.JSONDecodeError, RecursionError):
            if named_json:
                raise ToolFailed(
                    "tool_output", f'The answer of the tool "{tool.name}" is called JSON and is none.'
                ) from None
    return clean_text(text)


def _refusal(tool: Tool, answer: OutboundResponse, hidden: _Hidden) -> ToolFailed:
    told = "" if _BINARY.match(answer.media_type) else hidden.without(answer.text)
    excerpt = clean_text(_BLANK.sub(" ", told[: 10 * _EXCERPT]).strip(), _EXCERPT)
    retryable = answer.status == 429 or answer.status >= 500
    return ToolFailed(
        "tool_error",
        f'The tool "{tool.name}" was answered with {answer.status}{f": {excerpt}" if excerpt else "."}',
        retryable=retryable,
        retry_after_seconds=retry_after_seconds(answer.headers.get("retry-after")) if retryable else None,
        # "Too many requests" is said instead of acting; behind any other status something may have happened.
        begun=answer.status != 429,
    )


@dataclass(frozen=True, slots=True)
class _Hidden:
    """What must not be in an answer: the secrets of the run, and of this request also those that are short."""

    redactor: Redactor
    secrets: Mapping[str, str]

    def without(self, text: str) -> str:
        """The text without them: some servers send back what they were sent."""
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
