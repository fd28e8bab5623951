"""Clients of providers: made when a model is first asked, shared by all who use the same key, closed once.

Importing an SDK takes seconds and blocks its thread, so it is not done in the event loop: a worker that imports keeps
renewing its lease. All clients share one pool of connections; what differs is sent with each request.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from runlane.settings import Price

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI
    from pydantic_ai.models import Model
    from pydantic_ai.providers import Provider
    from pydantic_ai.providers.openrouter import OpenRouterProvider

_KEPT: Final = 500
# The pool that the provider layer makes has this many connections.
MAX_CONNECTIONS: Final = 1000
# The SDKs want a key, also for servers that want none.
_NO_KEY: Final = "none"

Api = Literal["responses", "chat", "compatible", "ollama", "openrouter", "anthropic", "google"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the models of a prefix are asked, and how.

    `secrets` are the names under which its key is looked for, `key` the one of this process. `home` is the address that
    the provider itself has, None for those that have none.
    """

    prefix: str
    api: Api
    provider: str
    base_url: str
    secrets: tuple[str, ...] = ()
    key: str | None = field(default=None, repr=False)
    needs_key: bool = True
    home: str | None = None
    prices: Mapping[str, Price] = field(default_factory=dict[str, Price])


@dataclass(frozen=True, slots=True)
class Credential:
    """A key, None where none is needed, and whether it is a tenant's own."""

    key: str | None = field(repr=False)
    own: bool = False


class ProviderClients:
    """The provider layer's models of this process, by place, key and name."""

    def __init__(self) -> None:
        self._models: OrderedDict[tuple[str, str | None, bool, str], Model[Any]] = OrderedDict()
        self._http: httpx2.AsyncClient | None = None
        self._making = asyncio.Lock()

    async def model(self, place: Endpoint, access: Credential, name: str) -> Model[Any]:
        """The model of this name with this key. A key that is not used any more is forgotten some time later."""
        chosen = (place.prefix, access.key, access.own, name)
        found = self._models.get(chosen)
        if found is None:
            async with self._making:
                found = self._models.get(chosen)
                if found is None:
                    found = await asyncio.to_thread(self._make, place, access, name)
                    self._models[chosen] = found
                    while len(self._models) > _KEPT:
                        self._models.popitem(last=False)
        self._models.move_to_end(chosen)
        return found

    async def warm_up(self, place: Endpoint) -> None:
        """Import what a place needs, so that its first call does not wait for it."""
        async with self._making:
            await asyncio.to_thread(self._make, place, Credential(None), "warm-up")

    async def close(self) -> None:
        """End all connections. Safe at any time, any number of times."""
        async with self._making:
            http, self._http = self._http, None
            self._models.clear()
            if http is not None:
                await http.aclose()

    def _make(self, place: Endpoint, access: Credential, name: str) -> Model[Any]:
        from pydantic_ai.models import create_async_httpx2_client

        if self._http is None:
            self._http = create_async_httpx2_client()
        match place.api:
            case "anthropic":
                return _anthropic(place, access, name, self._http)
            case "google":
                return _google(place, access, name, self._http)
            case _:
                return _openai(place, access, name, self._http)


def _openai(place: Endpoint, access: Credential, name: str, http: httpx2.AsyncClient) -> Model[Any]:
    from openai import AsyncOpenAI

    client = AsyncOpenAI(api_key=access.key or _NO_KEY, base_url=place.base_url, http_client=http, max_retries=0)
    if access.own or place.provider != "openai":
        # The SDK takes these from the environment. They belong to the key that is there, and to no other.
        client.organization = client.project = None
    if place.api == "openrouter":
        from pydantic_ai.models.openrouter import OpenRouterModel

        return OpenRouterModel(name, provider=_openrouter(client))
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

    provider: Provider[AsyncOpenAI]
    match place.api:
        case "ollama":
            from pydantic_ai.models.ollama import OllamaModel
            from pydantic_ai.providers.ollama import OllamaProvider

            return OllamaModel(name, provider=OllamaProvider(openai_client=client))
        case "compatible":
            from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

            provider = OpenAICompatibleProvider(place.prefix, openai_client=client)
        case _:
            from pydantic_ai.providers.openai import OpenAIProvider

            provider = OpenAIProvider(openai_client=client)
    if place.api == "responses":
        return OpenAIResponsesModel(name, provider=provider)
    return OpenAIChatModel(name, provider=provider)


def _openrouter(client: AsyncOpenAI) -> OpenRouterProvider:
    from pydantic_ai.providers.openrouter import OpenRouterProvider

    return OpenRouterProvider(openai_client=client)


def _anthropic(place: Endpoint, access: Credential, name: str, http: httpx2.AsyncClient) -> Model[Any]:
    from anthropic import AsyncAnthropic
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    client = AsyncAnthropic(api_key=access.key or _NO_KEY, base_url=place.base_url, http_client=http, max_retries=0)
    return AnthropicModel(name, provider=AnthropicProvider(anthropic_client=client))


def _google(place: Endpoint, access: Credential, name: str, http: httpx2.AsyncClient) -> Model[Any]:
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    provider = GoogleProvider(api_key=access.key or _NO_KEY, base_url=place.base_url, http_client=http)
    return GoogleModel(name, provider=provider)
