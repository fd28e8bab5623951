"""Each endpoint of the API has a call in Client, or a reason why it has none.

Every public method of Client and of its parts is called with placeholder arguments over a transport that records the
requests and answers 404.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, cast

import httpx2

from runlane import Client, NewEntry, RetryPolicy
from runlane.api.describe import describe
from runlane.domain.memory_archive import MemoryImport

API = "/api/v2"
# Endpoints that no program needs: pages of a browser, and older forms of others.
WITHOUT_A_CALL = {
    "GET /live": "hints for open pages of the dashboard",
    "GET /runs/export": "a download of the dashboard; Client.runs reads the same runs",
    "GET /runs/{}/status": "polling by other clients; Client.get returns more",
    "POST /runs/cancel": "Client.bulk starts the same as a job",
    "POST /runs/retry": "Client.bulk starts the same as a job",
    "DELETE /ui/session": "the session of a browser",
    "POST /ui/session": "the session of a browser",
    "GET /ui/sessions": "the sessions of browsers",
    "DELETE /ui/sessions/{}": "the sessions of browsers",
    "GET /views": "saved views of the dashboard",
    "PUT /views/{}/{}": "saved views of the dashboard",
    "DELETE /views/{}/{}": "saved views of the dashboard",
}
KINDS = ("orchestrations", "agents", "tools", "mcp-servers", "triggers")
# Paths under this one are other names of those under /runs.
ALIAS = f"{API}/orchestrations/runs/"
ARGUMENTS: dict[str, Any] = {
    "events": [{"name": "e"}],
    "answers": [{"run_id": "r", "response": "yes"}],
    "run_ids": ["r"],
    "requests": [("task", {})],
    "entry": NewEntry("text"),
    "given": MemoryImport([NewEntry("text")]),
    "entries": [NewEntry("text")],
    "settings": {"id": "s"},
    "schedule": {"id": "s"},
}


class Recorder(httpx2.AsyncBaseTransport):
    """Records requests and answers that nothing exists."""

    def __init__(self) -> None:
        self.requests: set[tuple[str, str]] = set()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.add((request.method, request.url.path))
        return httpx2.Response(404, json={"code": "not_found", "message": "It does not exist."})


def placeholder(parameter: inspect.Parameter) -> Any:
    if parameter.name in ARGUMENTS:
        return ARGUMENTS[parameter.name]
    kinds: dict[str, Any] = {
        "Mapping": {}, "dict": {}, "Sequence": ["x"], "list": ["x"], "Collection": ["x"], "Iterable": ["x"],
        "int": 1, "float": 1.0, "bool": True, "bytes": b"x",
    }  # fmt: skip
    name = re.split(r"\W", str(parameter.annotation), maxsplit=1)[0]
    return kinds.get(name, "x")


def calls_of(value: object) -> Iterator[Callable[..., Any]]:
    """Yield the public methods of a part of the client, and of its own parts."""
    for name in dir(type(value)):
        if name.startswith("_") or name in ("close", "memory_of"):
            continue
        member = inspect.getattr_static(type(value), name)
        found = getattr(value, name)
        if isinstance(member, property):
            if type(found).__module__.startswith("runlane.client"):
                yield from calls_of(found)
        elif callable(found):
            yield found


async def exercise(call: Callable[..., Any], kind: str) -> None:
    """Call a method so that it sends its first request. Its answer is an error."""
    positional, named = list[Any](), dict[str, Any]()
    for parameter in inspect.signature(call).parameters.values():
        if parameter.default is not parameter.empty or parameter.kind is parameter.VAR_KEYWORD:
            continue
        value = kind if parameter.name == "kind" else placeholder(parameter)
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = value
        else:
            positional.append(value)
    with contextlib.suppress(Exception):
        answer = call(*positional, **named)
        if isinstance(answer, AsyncGenerator):
            await anext(cast("AsyncGenerator[Any]", answer))
        elif inspect.isawaitable(answer):
            await answer


async def test_every_endpoint_has_a_call() -> None:
    recorder = Recorder()
    async with Client(
        "http://127.0.0.1:9", retry_policy=RetryPolicy(give_up_seconds=0.0), transport=recorder
    ) as client:
        for call in calls_of(client):
            for kind in KINDS if "kind" in inspect.signature(call).parameters else ("x",):
                await exercise(call, kind)
    missing: set[str] = set()
    for path, operations in json.loads(describe())["paths"].items():
        pattern = re.compile(re.sub(r"\{[^}]+\}", "[^/]+", path))
        for method in {"get", "post", "put", "patch", "delete"} & operations.keys():
            if not path.startswith(f"{API}/") or path.startswith(ALIAS):
                continue
            sent = any(verb == method.upper() and pattern.fullmatch(place) for verb, place in recorder.requests)
            if not sent:
                missing.add(f"{method.upper()} {re.sub(r'{[^}]+}', '{}', path.removeprefix(API))}")
    assert missing == WITHOUT_A_CALL.keys()
