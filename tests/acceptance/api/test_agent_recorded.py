"""Every recorded request, sent to our server: the status, keys and events of the official one, or a documented row."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, cast

import httpx2
import orjson
import pytest

from runlane.api.services import WorkerOptions
from runlane.app import App
from tests.acceptance.api import recorded_exchanges as recorded
from tests.acceptance.api.agent_graphs import add_graphs
from tests.acceptance.api.recorded_shapes import Exchange
from tests.acceptance.api.serving import Api, serving
from tests.harness import eventually

DIFFERENCES = (Path(__file__).parents[3] / "docs/reference/agent-server.md").read_text().split("## Differences")[1]
SCENES = {
    "system": recorded.SYSTEM,
    "assistants": recorded.ASSISTANTS,
    "threads": recorded.THREADS,
    "runs": recorded.RUNS,
    "interrupts": recorded.INTERRUPTS,
    "cancelled": recorded.CANCELLED,
    "crons": recorded.CRONS,
    "store": recorded.STORE,
    "streams": recorded.STREAMS,
    "errors": recorded.ERRORS,
}
# Frames that a server makes: for the first chunk of a message, and for the end of a run.
_UNNUMBERED = {"messages/metadata", "error", "end"}
_NAME = re.compile(r"\{(\w+)\}")


@pytest.fixture
async def served(own_app: App) -> AsyncGenerator[Api]:
    async with serving(add_graphs(own_app), worker=WorkerOptions()) as api:
        yield api


@pytest.mark.parametrize("scene", SCENES)
async def test_answers_have_what_the_official_ones_have(served: Api, scene: str) -> None:
    saved: dict[str, str] = {}
    for number, exchange in enumerate(SCENES[scene]):

        async def asked(exchange: Exchange = exchange) -> httpx2.Response | None:
            answer = await _send(served, exchange, saved)
            return None if exchange.until and _missing(exchange.shape, answer.json()) else answer

        answer = await eventually(asked, exchange.request)
        where = f"{scene}[{number}] {exchange.request} {exchange.body}"
        assert _problems(exchange, answer) == [], f"{where}: {answer.text}"
        for name, path in (exchange.saves or {}).items():
            saved[name] = _at(answer.json(), path)


@pytest.mark.parametrize("row", sorted({item.row for items in SCENES.values() for item in items if item.row}))
def test_a_difference_is_documented(row: str) -> None:
    assert f"\n| {row}" in DIFFERENCES


async def _send(api: Api, exchange: Exchange, saved: Mapping[str, str]) -> httpx2.Response:
    method, path = _filled(exchange.request, saved).split(" ", 1)
    if isinstance(exchange.body, str):
        return await api.client.request(
            method, path, content=exchange.body, headers={"content-type": "application/json"}
        )
    body = None if exchange.body is None else orjson.loads(_filled(orjson.dumps(exchange.body).decode(), saved))
    return await api.client.request(method, path, json=body)


def _filled(text: str, saved: Mapping[str, str]) -> str:
    return _NAME.sub(lambda name: saved.get(name[1], name[0]), text)


def _problems(exchange: Exchange, answer: httpx2.Response) -> list[str]:
    status = exchange.ours or exchange.status
    if answer.status_code != status:
        return [f"status {answer.status_code} instead of {status}"]
    if status >= 400:
        # Both, because clients read one or the other.
        body = answer.json()
        return [] if body["detail"] == body["message"] and body["code"] else [f"{body} is not a problem"]
    if exchange.ours is not None:
        return []
    found = [f"no header {name}" for name in exchange.headers if name not in answer.headers]
    if exchange.events is not None:
        return found + _other_events(exchange.events, answer.text)
    return found + (_missing(exchange.shape, answer.json()) if answer.content.strip() else [])


def _other_events(wanted: str, text: str) -> list[str]:
    """Compare the names of events. Ours also end with `end`, and those of the log have a number to resume after."""
    expected = [name for part in wanted.split() for name in _repeated(part)]
    events = [dict(line.split(": ", 1) for line in block.splitlines()) for block in _blocks(text)]
    names = [event["event"] for event in events]
    found = [] if names == [*expected, "end"] else [f"events {names} instead of {expected}"]
    found += _missing({"run_id": ..., "attempt": 1}, orjson.loads(events[0]["data"]), "metadata")
    return found + [
        f"{event['event']} has no id" for event in events if "id" not in event and event["event"] not in _UNNUMBERED
    ]


def _blocks(text: str) -> list[str]:
    return [block for block in text.split("\n\n") if block.strip() and not block.startswith(":")]


def _repeated(part: str) -> list[str]:
    name, _, times = part.partition("*")
    return [name] * int(times or 1)


def _missing(shape: Any, value: Any, path: str = "") -> list[str]:
    """Return where a value lacks something of a shape. It may have more keys."""
    if shape is ...:
        return []
    if isinstance(shape, dict) and isinstance(value, dict):
        ours = cast("dict[str, Any]", value)
        table = cast("dict[str, Any]", shape)
        return [
            problem
            for name, inner in table.items()
            for problem in (
                _missing(inner, ours[name], f"{path}.{name}") if name in ours else [f"{path}.{name} is missing"]
            )
        ]
    if isinstance(shape, list) and isinstance(value, list):
        inner_shapes, items = cast("list[Any]", shape), cast("list[Any]", value)
        if len(inner_shapes) != len(items):
            return [f"{path} has {len(items)} elements instead of {len(inner_shapes)}"]
        pairs = zip(inner_shapes, items, strict=True)
        return [
            problem for index, (one, item) in enumerate(pairs) for problem in _missing(one, item, f"{path}[{index}]")
        ]
    return [] if shape == value else [f"{path} is {value!r} instead of {shape!r}"]


def _at(value: Any, path: str) -> str:
    for part in path.split("."):
        value = value[int(part)] if part.isdecimal() else value[part]
    return str(value)
