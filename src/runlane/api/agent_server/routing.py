"""What the routes of the agent server share: bodies of any content type, and the headers of pages."""

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
    """A route of the agent server, which an auth module may decide about.

    It reads a body of type text/plain as JSON: Studio and other browser clients send it so to avoid a preflight.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        usual = super().get_route_handler()
        path = self.path_format

        async def handle(request: Request) -> Response:
            if "\x00" in request.scope["path"]:
                # No id has it, and Postgres stores no text with it.
                raise HTTPException(404)
            if request.headers.get("content-type", "").startswith("text/plain"):
                headers = [pair for pair in request.scope["headers"] if pair[0] != _JSON[0]]
                request = Request({**request.scope, "headers": [*headers, _JSON]}, request.receive)
            return await usual(await authorize(request, path))

        return handle


def agent_router(tag: str) -> RawRouter:
    """Return a router of the agent server. A body without a content type is JSON."""
    return RawRouter(tags=[tag], route_class=AgentRoute, strict_content_type=False)


def page_headers(offset: int, size: int, *, more: bool) -> dict[str, str]:
    """Return the headers of a page: the total is the number of values up to its end, and one more if others follow."""
    headers = {"X-Pagination-Total": str(offset + size + more)}
    if more:
        headers["X-Pagination-Next"] = str(offset + size)
    return headers


def listing(values: Sequence[object], select: Sequence[str] | None, headers: dict[str, str] | None = None) -> JsonBody:
    """Return values of `runlane.domain` as a list of JSON objects, with the selected keys only."""
    return JsonBody([selected(to_dict(value), select) for value in values], headers=headers)


def selected(body: dict[str, Any], select: Sequence[str] | None) -> dict[str, Any]:
    """Return an object with the selected keys only; all of them if none are selected."""
    return body if select is None else {name: body[name] for name in select if name in body}


def _from_json(given: Any) -> Any:
    values = cast("list[Any]", given) if isinstance(given, list) else None
    if values is None or len(values) != 1 or not str(values[0]).startswith("["):
        return cast("Any", given)
    try:
        return json.loads(str(values[0]))
    except ValueError:
        return values


# A list in a query: repeated keys, or one value in JSON as the JavaScript SDK sends it.
JsonList = BeforeValidator(_from_json)


def check_uuid(text: str, what: str) -> str:
    """Return the canonical form of a UUID."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise InvalidRequest(f"{text[:100]!r} is not a valid {what}. Use a UUID.") from None
