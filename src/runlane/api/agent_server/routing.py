"""Code that the routes of the agent server share: request bodies of any content type, and headers of pages."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

from fastapi import Request
from pydantic import BeforeValidator
from starlette.exceptions import HTTPException
from starlette.responses import Response

from runlane.api.agent_auth.guard import authorize
from runlane.api.body import LargeBodyRoute
from runlane.api.router import RawRouter
from runlane.api.serializers import JsonBody
from runlane.domain.wire import to_dict
from runlane.errors import InvalidRequest

T = TypeVar("T")

_JSON = (b"content-type", b"application/json")


class AgentRoute(LargeBodyRoute):
    """A route of the agent server. If an auth module is configured, it authorizes each request.

    The route reads a body of type text/plain as JSON: Studio and other browser clients use that type to avoid a
    preflight request.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        usual = super().get_route_handler()
        path = self.path_format

        async def handle(request: Request) -> Response:
            if "\x00" in request.scope["path"]:
                # No id contains NUL, and Postgres cannot store it in text.
                raise HTTPException(404)
            if request.headers.get("content-type", "").startswith("text/plain"):
                headers = [pair for pair in request.scope["headers"] if pair[0] != _JSON[0]]
                request = Request({**request.scope, "headers": [*headers, _JSON]}, request.receive)
            return await usual(await authorize(request, path))

        return handle


def agent_router(tag: str) -> RawRouter:
    """Return a router for the agent server. It reads a body without a content type as JSON."""
    return RawRouter(tags=[tag], route_class=AgentRoute, strict_content_type=False)


def page_headers(offset: int, size: int, *, more: bool) -> dict[str, str]:
    """Return the headers of a page.

    The total is the number of values up to the end of the page, plus one if more follow.
    """
    headers = {"X-Pagination-Total": str(offset + size + more)}
    if more:
        headers["X-Pagination-Next"] = str(offset + size)
    return headers


def listing(values: Sequence[object], select: Sequence[str] | None, headers: dict[str, str] | None = None) -> JsonBody:
    """Return values of `runlane.domain` as a list of JSON objects with only the selected keys."""
    return JsonBody([selected(to_dict(value), select) for value in values], headers=headers)


def selected(body: dict[str, Any], select: Sequence[str] | None) -> dict[str, Any]:
    """Return an object with only the selected keys; all keys if None is given."""
    return body if select is None else {name: body[name] for name in select if name in body}


def _from_json(given: Any) -> Any:
    values = cast("list[Any]", given) if isinstance(given, list) else None
    if values is None or len(values) != 1 or not str(values[0]).startswith("["):
        return cast("Any", given)
    try:
        return json.loads(str(values[0]))
    except ValueError:
        return values


# A list in a query string: repeated keys, or one JSON value, which the JavaScript SDK sends.
JsonList = BeforeValidator(_from_json)


def check_uuid(text: str, what: str) -> str:
    """Return the canonical form of a UUID."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise InvalidRequest(f"{text[:100]!r} is not a valid {what}. Use a UUID.") from None
