"""A reader that joins in the middle of an answer gets its beginning, in the worker's process and in another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from runlane.agents.delta_stream import TOGETHER_SECONDS
from runlane.api.services import WorkerOptions
from runlane.app import App
from runlane.llm.models import Delta, ModelContext, ModelDelta, ModelReply, ModelRequest
from runlane.settings import Settings
from runlane.worker import open_answers
from tests.acceptance.api.serving import API, Api, copy_of, frames, serving
from tests.acceptance.api.shop import app as shop
from tests.acceptance.api.test_chat import bring, say
from tests.harness import eventually

BEGINNING = [ModelDelta("thinking", "Hm."), ModelDelta("text", "Once upon "), ModelDelta("text", "a time ")]
END = [ModelDelta("text", "there was "), ModelDelta("text", "a lane.")]
TEXT = "Once upon a time there was a lane."


class SlowModel:
    """Sends the beginning of its answer, and the end once it is let."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()

    def __call__(self, name: str, scene: ModelContext, /) -> SlowModel:
        return self

    async def credential(self) -> str:
        return ""

    async def answer(self, request: ModelRequest, delta: Delta | None = None) -> ModelReply:
        assert delta is not None
        for piece in BEGINNING:
            delta(piece)
        # Pieces that come together are sent by a timer of this loop, which fires before a later one.
        await asyncio.sleep(2 * TOGETHER_SECONDS)
        self.begun.set()
        await self.may_end.wait()
        for piece in END:
            delta(piece)
        return ModelReply(TEXT, thinking="Hm.", model="slow")


class Reader:
    """Follows a conversation, and folds the pieces of its answer by their offsets."""

    def __init__(self, api: Api, path: str) -> None:
        self._api = api
        self._path = path
        self.seen: list[dict[str, Any]] = []

    def pieces(self, kind: str) -> list[tuple[int, str]]:
        return [(event["offset"], event["text"]) for event in self.seen if event["type"] == kind and "_id" not in event]

    def folded(self, kind: str) -> str:
        text = ""
        # A live piece may arrive before the text so far, which comes at 0: it belongs behind it.
        for offset, piece in sorted(self.pieces(kind)):
            if offset <= len(text):
                text = text[:offset] + piece + text[offset + len(piece) :]
        return text

    async def follow(self) -> None:
        async with self._api.client.stream("GET", self._path) as answer:
            text = ""
            async for piece in answer.aiter_text():
                text += piece
                *whole, text = text.split("\n\n")
                self.seen.extend(frames("\n\n".join(whole)))
                if any(event["type"] == "done" for event in self.seen):
                    return


@asynccontextmanager
async def another_server(api: Api, settings: Settings) -> AsyncGenerator[Api]:
    """A server without a worker: what it shows live comes over Redis. Without Redis there is only the first one."""
    if settings.redis_url is None:
        yield api
        return
    async with serving(copy_of(shop, settings)) as other:
        yield other


@pytest.fixture
async def served(settings: Settings) -> AsyncGenerator[tuple[Api, Api, SlowModel]]:
    app: App = copy_of(shop, settings)
    async with serving(app, worker=WorkerOptions()) as api, another_server(api, settings) as other:
        model = SlowModel()
        app.models.register("slow", model)
        await bring(api, model="slow", answers=[])
        yield api, other, model
        model.may_end.set()


async def test_a_late_reader_gets_what_the_open_answer_has_so_far(served: tuple[Api, Api, SlowModel]) -> None:
    api, other, model = served
    post = await say(api, "write a story")
    await model.begun.wait()
    path = f"{API}/chat/{post['session_id']}/stream"
    late = Reader(other, path)
    async with asyncio.TaskGroup() as group:
        group.create_task(late.follow())
        await eventually(lambda: late.folded("text") == "Once upon a time ", "the beginning")
        await eventually(lambda: late.folded("thinking") == "Hm.", "the thoughts")
        # The run's own stream, in the process of the worker.
        later = Reader(api, f"{API}/runs/{post['run_id']}/stream")
        group.create_task(later.follow())
        await eventually(lambda: later.folded("text") == "Once upon a time ", "the beginning, for the second reader")
        model.may_end.set()
    assert late.folded("text") == later.folded("text") == TEXT


async def test_an_answer_that_is_too_long_is_not_repeated(
    served: tuple[Api, Api, SlowModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_answers, "MAX_CHARACTERS", 5)
    api, other, model = served
    post = await say(api, "write a story")
    await model.begun.wait()
    late = Reader(other, f"{API}/chat/{post['session_id']}/stream")
    async with asyncio.TaskGroup() as group:
        group.create_task(late.follow())
        await eventually(lambda: late.folded("thinking") == "Hm.", "the thoughts, which are short")
        model.may_end.set()
    assert all(offset > 0 for offset, _ in late.pieces("text"))
    (whole,) = [event for event in late.seen if event["type"] == "model_response"]
    assert whole["text"] == TEXT
