"""URL templates of tools: placeholders in path and query for arguments and secrets.

`{field}` and `{data.field}` are an argument, `{data}` is all arguments as JSON, `{secret.NAME}` is a secret. Values are
percent-encoded and stay within their segment or parameter: an argument cannot change the host, the number of segments
or the names of parameters. Headers have the same placeholders.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal, cast
from urllib.parse import quote, unquote

from runlane.domain.text import dump_json
from runlane.errors import UrlTemplateError

_PLACEHOLDER: Final = re.compile(r"\{(data|(?:data\.|secret\.)?+[A-Za-z_][A-Za-z0-9_-]{0,127}+)\}")
_ORIGIN: Final = re.compile(r"https?://[^/?#\\\s@{}]+", re.IGNORECASE)
_LITERAL: Final = "/%:@!$&'()*+,;=~-._"
_DOTS: Final = (".", "..")
_SLASHES: Final = re.compile(r"[/\\]")
_MAX_URL: Final = 16_000
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class _Part:
    """A piece of text, or a placeholder."""

    kind: Literal["text", "field", "data", "secret"]
    name: str


_Parts = tuple[_Part, ...]


@dataclass(frozen=True, slots=True)
class UrlTemplate:
    """A parsed template. A parameter consists of its name as written and the parts of its value."""

    origin: str
    segments: tuple[_Parts, ...]
    parameters: tuple[tuple[str, _Parts | None], ...]

    @property
    def fields(self) -> set[str]:
        """The arguments with a placeholder."""
        return {part.name for part in self._parts() if part.kind == "field"}

    @property
    def path_fields(self) -> set[str]:
        """The arguments with a placeholder in the path, which are required."""
        return {part.name for parts in self.segments for part in parts if part.kind == "field"}

    @property
    def secrets(self) -> set[str]:
        """The secrets with a placeholder."""
        return {part.name for part in self._parts() if part.kind == "secret"}

    @property
    def takes_all_arguments(self) -> bool:
        """Whether it has a placeholder for all arguments together."""
        return any(part.kind == "data" for part in self._parts())

    def fill(
        self, arguments: Mapping[str, Any], secrets: Mapping[str, str], rest: Mapping[str, Any] | None = None
    ) -> str:
        """Return the URL. `rest` is added as parameters. Raise UrlTemplateError for a missing or invalid argument."""
        path = _joined("/", (_segment(parts, arguments, secrets) for parts in self.segments), "The URL")
        query = _joined("&", self._query(arguments, secrets, rest or {}), "The URL")
        url = f"{self.origin}/{path}{'?' if query else ''}{query}"
        if len(url) > _MAX_URL:
            raise _too_long("The URL")
        return url

    def _query(
        self, arguments: Mapping[str, Any], secrets: Mapping[str, str], rest: Mapping[str, Any]
    ) -> Iterator[str]:
        for name, parts in self.parameters:
            yield from _parameter(name, parts, arguments, secrets)
        for name, value in rest.items():
            yield from (f"{_encoded(name)}={_encoded(item)}" for item in _items(value))

    def _parts(self) -> Iterator[_Part]:
        for parts in (*self.segments, *(value or () for _, value in self.parameters)):
            yield from parts


@lru_cache(1024)
def parse_url(text: str) -> UrlTemplate:
    """Parse a URL template. Raise UrlTemplateError if it is not valid."""
    if _CONTROL.search(text) or " " in text.strip():
        raise UrlTemplateError("A URL must not contain spaces or control characters. Write a space as %20.")
    text = text.strip().partition("#")[0]
    found = _ORIGIN.match(text)
    end = found.end() if found is not None else 0
    if found is None or (len(text) > end and text[end] not in "/?"):
        raise UrlTemplateError(
            "It must begin with http:// or https:// and a host without placeholders or credentials, such as "
            "https://api.example.com/items/{id}. Put credentials into headers."
        )
    path, _, query = text[end:].partition("?")
    segments = tuple(_parsed(segment) for segment in path.removeprefix("/").split("/"))
    if any(unquote(segment) in _DOTS for segment in path.split("/")):
        raise UrlTemplateError("Its path has a segment of dots. Write the path without it.")
    parameters = tuple(_parsed_parameter(pair) for pair in query.split("&") if pair)
    return UrlTemplate(found.group(), segments, parameters)


def header_placeholders(text: str) -> tuple[set[str], set[str]]:
    """Return the arguments and the secrets that a header uses."""
    parts = _parsed(text, strict=False)
    return (
        {part.name for part in parts if part.kind == "field"},
        {part.name for part in parts if part.kind == "secret"},
    )


def fill_header(name: str, text: str, arguments: Mapping[str, Any], secrets: Mapping[str, str]) -> str | None:
    """Return the value of a header; None if it consists of one argument that is missing."""
    parts = _parsed(text, strict=False)
    if _left_out(parts, arguments):
        return None
    filled = _joined("", (_plain(part, arguments, secrets) for part in parts), f'The header "{name}"').strip()
    if _CONTROL.search(filled):
        raise UrlTemplateError(f'The header "{name}" would contain a control character. Remove line breaks.')
    return filled


def _parsed(text: str, *, strict: bool = True) -> _Parts:
    parts: list[_Part] = []
    end = 0
    for found in _PLACEHOLDER.finditer(text):
        parts += _text(text[end : found.start()], strict=strict)
        prefix, dot, name = found[1].partition(".")
        if dot:
            parts.append(_Part("secret" if prefix == "secret" else "field", name))
        else:
            parts.append(_Part("data", "data") if prefix == "data" else _Part("field", prefix))
        end = found.end()
    parts += _text(text[end:], strict=strict)
    return tuple(parts)


def _text(text: str, *, strict: bool) -> list[_Part]:
    if strict and ("{" in text or "}" in text):
        raise UrlTemplateError(
            "It has a brace outside of a placeholder. Placeholders are {field}, {data.field}, {data} and {secret.NAME}."
        )
    return [_Part("text", text)] if text else []


def _parsed_parameter(pair: str) -> tuple[str, _Parts | None]:
    name, separator, value = pair.partition("=")
    if "{" in name or "}" in name:
        raise UrlTemplateError("The name of a parameter has a placeholder. Only values can have one: ?name={field}.")
    return quote(name, safe=_LITERAL), _parsed(value) if separator else None


def _segment(parts: _Parts, arguments: Mapping[str, Any], secrets: Mapping[str, str]) -> str:
    made = _joined("", _segment_pieces(parts, arguments, secrets), "The URL")
    if any(part.kind != "text" for part in parts):
        if not made:
            names = ", ".join(f'"{part.name}"' for part in parts)
            raise UrlTemplateError(f"{names} must not be empty, because the URL would have another path.")
        if unquote(made) in _DOTS:
            raise UrlTemplateError("The path would have a segment of dots. Change the arguments.")
    return made


def _segment_pieces(parts: _Parts, arguments: Mapping[str, Any], secrets: Mapping[str, str]) -> Iterator[str]:
    for part in parts:
        if part.kind == "text":
            yield quote(part.name, safe=_LITERAL)
            continue
        value = _plain(part, arguments, secrets)
        # Some servers decode the path before they split it.
        if any(piece in _DOTS for piece in _SLASHES.split(value)):
            raise UrlTemplateError(f'"{part.name}" cannot be part of a path: it has a segment of dots.')
        yield _encoded(value)


def _parameter(
    name: str, parts: _Parts | None, arguments: Mapping[str, Any], secrets: Mapping[str, str]
) -> Iterator[str]:
    if parts is None:
        yield name
    elif _left_out(parts, arguments):
        return
    elif len(parts) == 1 and parts[0].kind == "field":
        yield from (f"{name}={_encoded(item)}" for item in _items(arguments[parts[0].name]))
    else:
        filled = (
            quote(part.name, safe=_LITERAL) if part.kind == "text" else _encoded(_plain(part, arguments, secrets))
            for part in parts
        )
        yield f"{name}={_joined('', filled, 'The URL')}"


def _left_out(parts: Sequence[_Part], arguments: Mapping[str, Any]) -> bool:
    return len(parts) == 1 and parts[0].kind == "field" and arguments.get(parts[0].name) is None


def _plain(part: _Part, arguments: Mapping[str, Any], secrets: Mapping[str, str]) -> str:
    match part.kind:
        case "text":
            return part.name
        case "secret":
            return secrets[part.name].strip()
        case "data":
            return dump_json(dict(arguments))
        case "field":
            if arguments.get(part.name) is None:
                raise UrlTemplateError(f'The argument "{part.name}" is missing; the request needs it.')
            return _as_text(arguments[part.name])


def _items(value: Any) -> Iterator[str]:
    """Yield the values of a parameter: one for each item of a list, none for null."""
    if isinstance(value, (list, tuple)):
        yield from (_as_text(item) for item in cast("Sequence[Any]", value) if item is not None)
    elif value is not None:
        yield _as_text(value)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else dump_json(value)


def _joined(between: str, pieces: Iterable[str], what: str) -> str:
    """Join the pieces and count their characters meanwhile, because a short template may repeat a large argument."""
    made: list[str] = []
    size = 0
    for piece in pieces:
        size += len(piece) + len(between)
        if size > _MAX_URL + len(between):
            raise _too_long(what)
        made.append(piece)
    return between.join(made)


def _too_long(what: str) -> UrlTemplateError:
    return UrlTemplateError(f"{what} would have more than {_MAX_URL} characters. Send less, or send it in the body.")


def _encoded(text: str) -> str:
    if len(text) > _MAX_URL:
        raise _too_long("The URL")
    return quote(text, safe="", errors="replace")
