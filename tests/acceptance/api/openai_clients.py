"""OpenAI's own client against a served API, agents that it talks to, and a model whose answers a test controls."""

from __future__ import annotations

import asyncio
from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.llm.models import Delta, ModelContext, ModelDelta, ModelReply, ModelRequest
from tests.acceptance.api.serving import Api

HELPER: dict[str, Any] = {
    "id": "helper",
    "model": "scripted",
    "system_prompt": "Be kind.",
    "answers": [
        {"when": "fail", "fail": {"code": "broken", "message": "The model is away.", "retryable": False}},
        {"when": "slow", "say": "done at last", "piece_delay_seconds": 60},
        {"say": "Hello there, nice to meet you.", "tokens": 7},
    ],
}
# Asks a person before each call of its tool.
CAREFUL: dict[str, Any] = {
    "id": "careful",
    "model": "scripted",
    "tools": ["pay"],
    "answers": [{"say": "Let me pay.", "tool": "pay", "arguments": {}}, {"say": "All done."}],
}
PAY: dict[str, Any] = {"name": "pay", "tool_type": "python", "code": "result = 'paid'", "effect": "ask"}


async def bring(api: Api, *agents: dict[str, Any], tenant: str = "default") -> None:
    """Store agents, and the tool that one of them uses."""
    loaded = parse_bodies({"agents": list(agents or (HELPER,)), "tools": [PAY]})
    await sync_definitions(api.parts.database, tenant, loaded, actor="test")


async def client_of(api: Api, tenant: str = "default", role: str = "operator") -> AsyncOpenAI:
    """Return OpenAI's client with a key of a tenant."""
    return openai_client(api.url, await api.key(role, tenant))


def openai_client(url: str, key: str, **options: Any) -> AsyncOpenAI:
    """Return OpenAI's client. It does not use proxies of the environment; everything else is as shipped."""
    http_client = DefaultAsyncHttpxClient(trust_env=False)
    return AsyncOpenAI(base_url=f"{url}/v1", api_key=key, http_client=http_client, **options)


class Typist:
    """A model that writes the pieces of its answer as a test releases them, and keeps what it was asked."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces
        self.released = asyncio.Semaphore(0)
        self.requests: list[ModelRequest] = []

    def __call__(self, name: str, context: ModelContext, /) -> Typist:
        return self

    async def credential(self) -> str:
        return ""

    async def answer(self, request: ModelRequest, delta: Delta | None = None) -> ModelReply:
        self.requests.append(request)
        assert delta is not None
        for piece in self.pieces:
            await self.released.acquire()
            delta(ModelDelta("text", piece))
        return ModelReply("".join(self.pieces), tokens_in=3, tokens_out=5, model="typist")

    def release(self, pieces: int = 1) -> None:
        for _ in range(pieces):
            self.released.release()
