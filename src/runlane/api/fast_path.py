"""A fast path for the one request that must be cheap: accepting a run.

FastAPI resolves the parameters of a request one by one, which costs more than the rest of the request. This module
handles a request that is obviously valid in a few lines. Any other request takes the usual path, which also documents
it, so that error messages are equal and no rule is implemented twice.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from pydantic import ValidationError
from starlette.responses import Response

from runlane.access.policy import require
from runlane.api.auth import authenticate
from runlane.api.body import LargeBodyRoute
from runlane.api.idempotency import is_valid_key
from runlane.api.schemas.tasks import TaskRunRequest
from runlane.domain.access import Permission
from runlane.event_loop.offload import LARGE_BYTES, offload_if

_JSON = "application/json"


class FastPathRoute(LargeBodyRoute):
    """A route for an endpoint that needs runs:write, with a name in its path and a TaskRunRequest as its body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        usual = super().get_route_handler()

        async def handle(request: Request) -> Response:
            headers = request.headers
            key = headers.get("idempotency-key")
            if headers.get("content-type") != _JSON or not (key is None or is_valid_key(key)):
                return await usual(request)
            try:
                content = await request.body()
                body = await offload_if(len(content) > LARGE_BYTES, TaskRunRequest.model_validate_json, content)
            except ValidationError:
                return await usual(request)
            principal = await authenticate(request)
            require(principal, Permission.RUNS_WRITE)
            name: str = request.path_params["name"]
            return await self.endpoint(request, principal, name, body, key, headers.get("traceparent"))

        return handle
