"""Embeddings: vectors of strings, from the OpenAI-compatible endpoint of a provider.

The key is looked up for each call, as for other model calls. The caller applies the limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from runlane.errors import MissingExtra
from runlane.llm.failures import failure_of
from runlane.llm.models import ModelContext, ModelFailed, ModelRegistry
from runlane.llm.providers import ProviderModel, Values, register_providers
from runlane.settings import Settings

if TYPE_CHECKING:
    from pydantic_ai.embeddings import EmbeddingResult

    from runlane.llm.clients import Endpoint

_TIMEOUT_SECONDS: Final = 60.0
_OPENAI_COMPATIBLE: Final = frozenset({"responses", "chat", "compatible", "ollama", "openrouter"})


@dataclass(frozen=True, slots=True)
class Embedded:
    """The vectors of inputs in their order, the tokens, and the cost if the price is known."""

    vectors: Sequence[Sequence[float]]
    tokens: int
    cost_usd: float | None


class EmbeddingModels:
    """The embedding models of the providers in the settings."""

    def __init__(self, settings: Settings, values: Values) -> None:
        self._providers = register_providers(ModelRegistry(), settings, values)

    async def credential(self, model: str, tenant: str) -> str:
        """Return the credential whose limits apply to calls of the model."""
        endpoint = self._providers.endpoints.get(model.partition(":")[0])
        if endpoint is None:
            return ""
        return await ProviderModel(model, endpoint, ModelContext(tenant=tenant), self._providers).credential()

    async def embed(self, model: str, tenant: str, texts: Sequence[str], *, is_query: bool) -> Embedded:
        """Embed several inputs with one call. Raise ModelFailed if the call fails."""
        prefix, _, name = model.partition(":")
        endpoint = self._providers.endpoints.get(prefix)
        if endpoint is None or not name or endpoint.api not in _OPENAI_COMPATIBLE:
            raise ModelFailed(
                "unknown_model",
                f'"{model}" is not a valid embedding model. Name a provider with OpenAI\'s endpoint for '
                'embeddings and its model, such as "openai:text-embedding-3-small".',
            )
        redactor = ModelContext().redactor
        access = await self._providers.access(endpoint, tenant, redactor)
        if access is None:
            names = " or ".join(endpoint.secrets)
            raise ModelFailed("not_authorized", f"{model} has no key. Set a secret or an environment variable {names}.")
        try:
            client = await self._providers.clients.embedding_model(endpoint, access, name)
            async with self._providers.connections.enter(tenant), asyncio.timeout(_TIMEOUT_SECONDS):
                result = await client.embed(list(texts), input_type="query" if is_query else "document")
        except MissingExtra as error:
            raise ModelFailed("unknown_model", str(error)) from None
        except Exception as error:  # noqa: BLE001 - every error of a provider or its SDK gets a code
            raise failure_of(error, model, redactor, own_key=access.own) from None
        if len(result.embeddings) != len(texts):
            raise ModelFailed(
                "bad_answer",
                f"{model} returned {len(result.embeddings)} vectors for {len(texts)} inputs.",
                retryable=True,
            )
        return Embedded(result.embeddings, result.usage.input_tokens, _cost_usd(result, endpoint, name))

    async def close(self) -> None:
        """Close all connections."""
        await self._providers.close()


def _cost_usd(result: EmbeddingResult, endpoint: Endpoint, name: str) -> float | None:
    """Return the cost of a call; None if it is unknown. Configured prices come first, as for other models."""
    own = endpoint.prices.get(name) or endpoint.prices.get(result.model_name)
    if own is not None:
        return result.usage.input_tokens * own.input_usd_per_million / 1_000_000
    if endpoint.api in {"compatible", "ollama"}:
        return None
    try:
        return float(result.cost().total_price)
    except (LookupError, ValueError, AssertionError):
        return None
