"""From the API's JSON to values and errors, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, cast

import orjson

from runlane.domain.events import Event
from runlane.domain.timestamps import parse_timestamp
from runlane.domain.views import LiveEvent
from runlane.domain.wire import from_json
from runlane.errors import (
    Conflict,
    InputTooLarge,
    InvalidDefinitions,
    InvalidInput,
    InvalidRequest,
    RunlaneError,
    Unavailable,
    UnexpectedAnswer,
)

T = TypeVar("T")

_OWN = frozenset({"type", "seq", "run_id", "attempt", "at"})
_SHOWN = 200


def ownership(source: str | None, take_over: bool) -> dict[str, Any]:
    """Return the fields that differ from the server's defaults, because an older server does not have them."""
    return {**({} if source is None else {"source": source}), **({"take_over": True} if take_over else {})}


def load(content: bytes, what: str) -> Any:
    """The JSON of an answer."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        text = content[:_SHOWN].decode("utf-8", "replace")
        raise UnexpectedAnswer(f"{what} answered with something that is not JSON: {text!r}") from None


def load_event(text: str, what: str) -> dict[str, Any]:
    """The JSON of a stream's frame."""
    told = load(text.encode(), what)
    if not isinstance(told, dict) or "type" not in told:
        raise UnexpectedAnswer(f"{what} sent an event without a type: {text[:_SHOWN]!r}")
    return cast("dict[str, Any]", told)


def event_from(told: Mapping[str, Any]) -> Event | LiveEvent:
    """An event of a stream or a page: with a number it is stored, without one it is live."""
    data = {key: value for key, value in told.items() if key not in _OWN}
    run_id, kind, attempt = str(told.get("run_id", "")), str(told["type"]), int(told.get("attempt", 0))
    if told.get("seq") is None:
        return LiveEvent(run_id, kind, attempt, data)
    return Event(run_id, int(told["seq"]), kind, attempt, parse_timestamp(told.get("at")) or 0, data)


def parse(kind: type[T], told: Any) -> T:
    """Parse a value of an answer. UnexpectedAnswer if it does not have the fields of its class."""
    try:
        return from_json(kind, told)
    except ValueError as error:
        raise UnexpectedAnswer(f"The server's answer is not a valid {kind.__name__}: {error}") from None


def error_from(status: int, content: bytes, retry_after_seconds: float | None, what: str) -> RunlaneError:
    """The error class that the answer's code names, with the server's words."""
    try:
        told: Any = orjson.loads(content)
    except orjson.JSONDecodeError:
        told = None
    if not isinstance(told, dict) or "code" not in told:
        text = content[:_SHOWN].decode("utf-8", "replace")
        return UnexpectedAnswer(
            f"{what} answered {status} with {text!r}, which is no answer of a Runlane server. "
            "Check the URL, and what stands between you and the server."
        )
    body = cast("dict[str, Any]", told)
    kind = _BY_CODE.get(str(body["code"])) or _BY_STATUS.get(status, RunlaneError)
    message = str(body.get("message") or body.get("detail") or body["code"])
    # Not through __init__: that makes the message from facts which only the server has.
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    said: dict[str, Any] = {
        "code": str(body["code"]),
        "retry_after_seconds": retry_after_seconds,
        "run_id": body.get("run_id"),
    }
    if kind is InvalidDefinitions:
        said["problems"] = [(str(item["field"]), str(item["message"])) for item in body.get("fields") or ()]
    if isinstance(error, InvalidInput):
        told_fields: list[dict[str, str]] = body.get("fields") or []
        said["fields"] = {item["field"].removeprefix("body.response."): item["message"] for item in told_fields}
    vars(error).update({name: value for name, value in said.items() if value is not None})
    return error


def _kinds(kind: type[RunlaneError]) -> Iterator[type[RunlaneError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _kinds(child)


# For codes that only the API has, such as one for a body that is not JSON.
_BY_STATUS: dict[int, type[RunlaneError]] = {
    400: InvalidRequest,
    409: Conflict,
    413: InputTooLarge,
    422: InvalidRequest,
    503: Unavailable,
}
_BY_CODE = {kind.code: kind for kind in _kinds(RunlaneError) if kind.__module__.startswith("runlane.errors")}
