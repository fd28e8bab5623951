"""pydantic-ai alone: the same answers and the same tasks, neither stored nor published.

A separate program, so that its CPU time can be measured. It prints one line of JSON: seconds and CPU seconds of the
work, without imports and the first call.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import uvloop
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

IN_FLIGHT = 8


def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call the tool first, then answer."""
    if len(messages) == 1:
        return ModelResponse([ToolCallPart("look_up", {"key": "a"})])
    return ModelResponse([TextPart("It is done.")])


async def look_up(key: str) -> str:
    """Look up a key."""
    return f"{key} is known"


async def tokens(url: str, prompt: str) -> None:
    """Read one streamed answer."""
    model = _model(url)
    request: list[ModelMessage] = [ModelRequest.user_text_prompt(prompt)]
    async with model.request_stream(request, None, ModelRequestParameters()) as answer:
        async for _ in answer:
            pass


async def agents(url: str, count: int) -> None:
    """Run tasks of an agent, with two answers and one tool call each."""
    agent = Agent(_model(url) if url else FunctionModel(scripted), tools=[look_up], instructions="You look things up.")
    waiting = iter(range(count))

    async def work() -> None:
        for _ in waiting:
            if url:
                # Stream the answer, as a worker does.
                async with agent.run_stream_events("Look it up.") as events:
                    async for _ in events:
                        pass
            else:
                await agent.run("Look it up.")

    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))


def _model(url: str) -> OpenAIChatModel:
    return OpenAIChatModel("bench", provider=OpenAIProvider(base_url=url, api_key="bench"))


async def _timed(warm: Callable[[], Awaitable[None]], work: Callable[[], Awaitable[None]]) -> dict[str, Any]:
    await warm()
    started, cpu = time.perf_counter(), time.process_time()
    await work()
    return {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}


def main() -> None:
    match sys.argv[1:]:
        case ["tokens", url, prompt]:
            output = uvloop.run(_timed(lambda: tokens(url, "warm up"), lambda: tokens(url, prompt)))
        case ["agents", url, count]:
            output = uvloop.run(_timed(lambda: agents(url, 1), lambda: agents(url, int(count))))
        case words:
            sys.exit(f"{words} is not a valid measurement")
    sys.stdout.buffer.write(orjson.dumps(output))


if __name__ == "__main__":
    main()
