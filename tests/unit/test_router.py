"""Routes are prepared with their first request, once and off the event loop."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from types import UnionType
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

import httpx2
from fastapi import FastAPI, Query, Request
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.responses import JSONResponse, Response

from runlane import App
from runlane.api.route_table import RouteTable
from runlane.api.router import RawRoute, RawRouter
from runlane.api.server import build_api

# FastAPI's own initialization of a route is what a start must not do.
START = """
from fastapi.routing import APIRoute
prepared = []
initialize = APIRoute.__init__
def count(self, path, *args, **options):
    prepared.append(path)
    initialize(self, path, *args, **options)
APIRoute.__init__ = count
from runlane import App
from runlane.api.server import build_api
build_api(App())
print(prepared)
"""


def test_a_server_prepares_no_route_when_it_starts() -> None:
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_route_returns_a_response() -> None:
    described = [context.original_route for context in iter_route_contexts(build_api(App()).routes)]
    routes = [route for route in described if isinstance(route, APIRoute)]
    assert len(routes) > 300
    assert [route.path for route in routes if not isinstance(route, RawRoute)] == []
    assert {route.endpoint for route in routes if not _returns_response(route.endpoint)} == set()


def _returns_response(endpoint: Callable[..., Any]) -> bool:
    returned = get_type_hints(inspect.unwrap(endpoint))["return"]
    kinds = get_args(returned) if isinstance(returned, UnionType) else (returned,)
    return all(issubclass(kind, Response) for kind in kinds)


class CountedRoute(RawRoute):
    """A route that records the threads which prepare it."""

    threads: ClassVar[list[int]] = []

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        self.threads.append(threading.get_ident())
        return super().get_route_handler()


async def test_a_route_is_prepared_once_and_off_the_loop() -> None:
    async def double(number: Annotated[int, Query(ge=1)]) -> JSONResponse:
        return JSONResponse(2 * number)

    router = RawRouter(route_class=CountedRoute)
    router.add_api_route("/double", double, response_model=int)
    api = FastAPI()
    table = RouteTable(api)
    table.include(router, "/api/v2/one")
    table.include(router, "/api/v2/other")
    CountedRoute.threads.clear()
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=api), base_url="http://test") as client:
        paths = ["/api/v2/one/double", "/api/v2/other/double"]
        answers = await asyncio.gather(*(client.get(path, params={"number": 4}) for path in paths * 3))
        refused = await client.get(paths[0], params={"number": 0})
    assert [answer.json() for answer in answers] == [8] * 6
    assert (refused.status_code, refused.json()["detail"][0]["loc"]) == (422, ["query", "number"])
    assert len(CountedRoute.threads) == 1
    assert CountedRoute.threads[0] != threading.get_ident()
