"""Parse the JSON of the API into values and errors."""

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
    """Return only the fields that differ from the defaults, because older servers do not have these fields."""
    return {**({} if source is None else {"source": source}), **({"take_over": True} if take_over else {})}


def load(content: bytes, what: str) -> Any:
    """Parse the JSON of a response."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        text = content[:_SHOWN].decode("utf-8", "replace")
        raise UnexpectedAnswer(f"{what} returned a response that is not JSON: {text!r}") from None


def load_event(text: str, what: str) -> dict[str, Any]:
    """Parse the JSON of a frame."""
    answer = load(text.encode(), what)
    if not isinstance(answer, dict) or "type" not in answer:
        raise UnexpectedAnswer(f"{what} sent an event without a type: {text[:_SHOWN]!r}")
    return cast("dict[str, Any]", answer)


def event_from(answer: Mapping[str, Any]) -> Event | LiveEvent:
    """Parse an event of a stream or a page. An event with a number is stored; an event without one is live."""
    data = {key: value for key, value in answer.items() if key not in _OWN}
    run_id, kind, attempt = str(answer.get("run_id", "")), str(answer["type"]), int(answer.get("attempt", 0))
    if answer.get("seq") is None:
        return LiveEvent(run_id, kind, attempt, data)
    return Event(run_id, int(answer["seq"]), kind, attempt, parse_timestamp(answer.get("at")) or 0, data)


def parse(kind: type[T], answer: Any) -> T:
    """Parse a value of a response. Raise UnexpectedAnswer if it does not have the fields of its class."""
    try:
        return from_json(kind, answer)
    except ValueError as error:
        raise UnexpectedAnswer(f"The server's response is not a valid {kind.__name__}: {error}") from None


def error_from(status: int, content: bytes, retry_after_seconds: float | None, what: str) -> RunlaneError:
    """Return an error of the class for the response's code, with the server's message."""
    try:
        answer: Any = orjson.loads(content)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict) or "code" not in answer:
        text = content[:_SHOWN].decode("utf-8", "replace")
        return UnexpectedAnswer(
            f"{what} returned {status} with {text!r}, which is not a response of a Runlane server. "
            "Check the URL, and any proxy in front of the server."
        )
    body = cast("dict[str, Any]", answer)
    kind = _BY_CODE.get(str(body["code"])) or _BY_STATUS.get(status, RunlaneError)
    message = str(body.get("message") or body.get("detail") or body["code"])
    # The error is created without __init__, which builds the message from values that only the server has.
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    attributes: dict[str, Any] = {
        "code": str(body["code"]),
        "retry_after_seconds": retry_after_seconds,
        "run_id": body.get("run_id"),
        "owner_url": body.get("owner_url"),
    }
    if kind is InvalidDefinitions:
        attributes["problems"] = [(str(item["field"]), str(item["message"])) for item in body.get("fields") or ()]
    if isinstance(error, InvalidInput):
        invalid: list[dict[str, str]] = body.get("fields") or []
        attributes["fields"] = {item["field"].removeprefix("body.response."): item["message"] for item in invalid}
    vars(error).update({name: value for name, value in attributes.items() if value is not None})
    return error


def _kinds(kind: type[RunlaneError]) -> Iterator[type[RunlaneError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _kinds(child)


# The classes for codes that only the API has, such as the code for an invalid JSON body.
_BY_STATUS: dict[int, type[RunlaneError]] = {
    400: InvalidRequest,
    409: Conflict,
    413: InputTooLarge,
    422: InvalidRequest,
    503: Unavailable,
}
_BY_CODE = {kind.code: kind for kind in _kinds(RunlaneError) if kind.__module__.startswith("runlane.errors")}
