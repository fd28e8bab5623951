"""Clients of providers. They are created at the first call of a model, shared by all users of a key, and closed once.

Importing an SDK takes seconds and blocks its thread, so it runs outside the event loop and the worker can renew its
lease meanwhile. All clients share one connection pool. Values that differ between them are sent with each request.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from runlane.extras import requires_extra
from runlane.settings import Price

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI
    from pydantic_ai.embeddings import EmbeddingModel
    from pydantic_ai.models import Model
    from pydantic_ai.providers import Provider
    from pydantic_ai.providers.openrouter import OpenRouterProvider

_KEPT: Final = 500
# The size of the provider library's connection pool.
MAX_CONNECTIONS: Final = 1000
# The SDKs require a key, even for servers that do not.
_NO_KEY: Final = "none"

Api = Literal["responses", "chat", "compatible", "ollama", "openrouter", "anthropic", "google"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The API and the URL of the models of a prefix.

    `secrets` are the names under which a tenant's key is looked up. `key` is the process's own key. `home` is the
    provider's default URL; None if the provider has none.
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
    """A key, None if none is needed, and whether it belongs to the tenant."""

    key: str | None = field(repr=False)
    own: bool = False


class ProviderClients:
    """The provider library's models of this process, by endpoint, key and name."""

    def __init__(self) -> None:
        self._models: OrderedDict[tuple[str, str | None, bool, str], Model[Any]] = OrderedDict()
        self._http: httpx2.AsyncClient | None = None
        self._making = asyncio.Lock()

    async def model(self, endpoint: Endpoint, access: Credential, name: str) -> Model[Any]:
        """Return the model of this name with this key. Models that were not used for a while are evicted."""
        chosen = (endpoint.prefix, access.key, access.own, name)
        found = self._models.get(chosen)
        if found is None:
            async with self._making:
                found = self._models.get(chosen)
                if found is None:
                    found = await asyncio.to_thread(self._make, endpoint, access, name)
                    self._models[chosen] = found
                    while len(self._models) > _KEPT:
                        self._models.popitem(last=False)
        self._models.move_to_end(chosen)
        return found

    async def embedding_model(self, endpoint: Endpoint, access: Credential, name: str) -> EmbeddingModel:
        """Return the embedding model of this name with this key."""
        async with self._making:
            return await asyncio.to_thread(self._make_embedding_model, endpoint, access, name)

    def _make_embedding_model(self, endpoint: Endpoint, access: Credential, name: str) -> EmbeddingModel:
        with requires_extra("openai", f'The embedding model "{endpoint.prefix}:{name}"'):
            from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
            from pydantic_ai.providers.openai import OpenAIProvider

            return OpenAIEmbeddingModel(
                name, provider=OpenAIProvider(openai_client=_openai_client(endpoint, access, self._shared_http()))
            )

    def _shared_http(self) -> httpx2.AsyncClient:
        from pydantic_ai.models import create_async_httpx2_client

        if self._http is None:
            self._http = create_async_httpx2_client()
        return self._http

    async def warm_up(self, endpoint: Endpoint) -> None:
        """Import the packages of an endpoint, so that its first call does not wait for the import."""
        async with self._making:
            await asyncio.to_thread(self._make, endpoint, Credential(None), "warm-up")

    async def close(self) -> None:
        """Close all connections. Safe to call at any time and more than once."""
        async with self._making:
            http, self._http = self._http, None
            self._models.clear()
            if http is not None:
                await http.aclose()

    def _make(self, endpoint: Endpoint, access: Credential, name: str) -> Model[Any]:
        extra, make = _MAKERS.get(endpoint.api, ("openai", _openai))
        with requires_extra(extra, f'The model "{endpoint.prefix}:{name}"'):
            return make(endpoint, access, name, self._shared_http())


def _openai_client(endpoint: Endpoint, access: Credential, http: httpx2.AsyncClient) -> AsyncOpenAI:
    from openai import AsyncOpenAI

    client = AsyncOpenAI(api_key=access.key or _NO_KEY, base_url=endpoint.base_url, http_client=http, max_retries=0)
    if access.own or endpoint.provider != "openai":
        # The SDK reads these from the environment. They belong to the environment's key only.
        client.organization = client.project = None
    return client


def _openai(endpoint: Endpoint, access: Credential, name: str, http: httpx2.AsyncClient) -> Model[Any]:
    client = _openai_client(endpoint, access, http)
    if endpoint.api == "openrouter":
        from pydantic_ai.models.openrouter import OpenRouterModel

        return OpenRouterModel(name, provider=_openrouter(client))
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

    provider: Provider[AsyncOpenAI]
    match endpoint.api:
        case "ollama":
            from pydantic_ai.models.ollama import OllamaModel
            from pydantic_ai.providers.ollama import OllamaProvider

            return OllamaModel(name, provider=OllamaProvider(openai_client=client))
        case "compatible":
            from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

            provider = OpenAICompatibleProvider(endpoint.prefix, openai_client=client)
        case _:
            from pydantic_ai.providers.openai import OpenAIProvider

            provider = OpenAIProvider(openai_client=client)
    if endpoint.api == "responses":
        return OpenAIResponsesModel(name, provider=provider)
    return OpenAIChatModel(name, provider=provider)


def _openrouter(client: AsyncOpenAI) -> OpenRouterProvider:
    from pydantic_ai.providers.openrouter import OpenRouterProvider

    return OpenRouterProvider(openai_client=client)


def _anthropic(endpoint: Endpoint, access: Credential, name: str, http: httpx2.AsyncClient) -> Model[Any]:
    from anthropic import AsyncAnthropic
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    client = AsyncAnthropic(api_key=access.key or _NO_KEY, base_url=endpoint.base_url, http_client=http, max_retries=0)
    return AnthropicModel(name, provider=AnthropicProvider(anthropic_client=client))


def _google(endpoint: Endpoint, access: Credential, name: str, http: httpx2.AsyncClient) -> Model[Any]:
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    provider = GoogleProvider(api_key=access.key or _NO_KEY, base_url=endpoint.base_url, http_client=http)
    return GoogleModel(name, provider=provider)


# The extra and the function for each wire format. All other formats are OpenAI-compatible.
_MAKERS: Final = {"anthropic": ("anthropic", _anthropic), "google": ("google", _google)}
