"""Providers: OpenAI, Anthropic, Google, Ollama, OpenRouter and every server that speaks like OpenAI.

They are asked through pydantic-ai's models, which know the wire formats; turns, limits, retries and records are ours.
So each call is one request, streamed, never repeated in here, and every way in which it can fail has a code. A key is
the tenant's secret, or else the one of this process, and is looked up for each call: a new one counts at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from runlane.fairness import FairGate
from runlane.llm.adapter import ResponseFold, calls_of, to_messages, to_parameters, to_raw, to_settings, with_own_ids
from runlane.llm.clients import MAX_CONNECTIONS, Credential, Endpoint, ProviderClients
from runlane.llm.failures import broken_off, failure_of
from runlane.llm.models import Delta, ModelContext, ModelFactory, ModelFailed, ModelRegistry, ModelReply, ModelRequest
from runlane.llm.tool_names import ToolNames
from runlane.redaction import Redactor
from runlane.settings import Settings

if TYPE_CHECKING:
    from pydantic import SecretStr
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model as WireModel

Values = Callable[[str, Collection[str]], Awaitable[Mapping[str, str]]]

_MILLION: Final = 1_000_000


class Providers:
    """The providers of this process. `close` ends their connections."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self.clients = ProviderClients()
        # The clients share one pool of connections, in which a call that finds none fails.
        self.connections = FairGate(MAX_CONNECTIONS, MAX_CONNECTIONS // 2)
        self.places: dict[str, Endpoint] = {}

    async def access(self, place: Endpoint, tenant: str, redactor: Redactor) -> Credential | None:
        """The key for a place: the tenant's own, or else that of this process; None if there is none.

        The redactor of the run learns a key of the tenant. The key of this process is never compared with what the run
        says: a tenant could find it out that way.
        """
        found: Mapping[str, str] = await self._values(tenant, place.secrets) if place.secrets else {}
        for name in place.secrets:
            if own := found.get(name, "").strip():
                redactor.learn(own)
                return Credential(own, own=True)
        if place.key is not None:
            return Credential(place.key)
        return None if place.needs_key else Credential(None)

    async def warm_up(self, prefixes: Set[str]) -> None:
        """Import what the models with these prefixes need; prefixes of no provider are ignored."""
        for prefix in sorted(prefixes & self.places.keys()):
            # An SDK that is not installed is reported by the call that needs it.
            with contextlib.suppress(ImportError):
                await self.clients.warm_up(self.places[prefix])

    async def close(self) -> None:
        """End all connections. Safe at any time, any number of times."""
        await self.clients.close()


class ProviderModel:
    """A model of a provider, asked for one tenant. Making one costs nothing."""

    def __init__(self, name: str, place: Endpoint, scene: ModelContext, providers: Providers) -> None:
        self.name = name
        self._place = place
        self._tenant = scene.tenant
        self._redactor = scene.redactor
        self._providers = providers

    async def credential(self) -> str:
        """The provider, its host if it is another than usual, and the tenant whose key it is.

        A provider of RUNLANE_PROVIDERS is known by the name that the operator gave it.
        """
        place = self._place
        shown = place.prefix if place.api == "compatible" else place.provider
        is_proxied = place.base_url.rstrip("/") != (place.home or "").rstrip("/")
        if is_proxied and place.api not in ("compatible", "ollama"):
            shown += f":{urlsplit(place.base_url).netloc.rpartition('@')[2]}"
        access = await self._providers.access(place, self._tenant, self._redactor)
        if access is None:
            return shown
        # Its client is made here, since that takes seconds the first time: a call must not hold its place meanwhile.
        # The call reports what is wrong with it.
        with contextlib.suppress(Exception):
            await self._client(access)
        return f"{shown}@{self._tenant}" if access.own else shown

    async def answer(self, request: ModelRequest, delta: Delta | None = None) -> ModelReply:
        """One streamed call of the provider."""
        access = await self._providers.access(self._place, self._tenant, self._redactor)
        if access is None:
            names = " or ".join(self._place.secrets)
            raise ModelFailed(
                "not_authorized", f"There is no key for {self.name}. Set a secret or an environment variable {names}."
            )
        names = ToolNames(request)
        fold = ResponseFold(request, names.telling(delta))
        try:
            model = await self._client(access)
            async with (
                self._providers.connections.enter(self._tenant),
                asyncio.timeout(request.settings.timeout_seconds),
            ):
                response = await _stream(model, names.translate_request(request), fold)
        except ImportError:
            extra = f"runlane[{self._place.provider}]"
            raise ModelFailed(
                "unknown_model", f'{self.name} needs a package that is not installed here: pip install "{extra}"'
            ) from None
        except Exception as error:  # noqa: BLE001 - whatever a provider or its SDK does, it is a failure with a code
            raise failure_of(error, self.name, self._redactor, own_key=access.own) from None
        self._check(response)
        return self._reply(with_own_ids(response, request), fold, names)

    async def _client(self, access: Credential) -> WireModel[Any]:
        return await self._providers.clients.model(self._place, access, self.name.partition(":")[2])

    def _check(self, response: ModelResponse) -> None:
        """Refuse what looks like an answer and is none."""
        reason = response.finish_reason
        if reason == "content_filter":
            raise ModelFailed("content_refused", f"{self.name} refused to answer.")
        if reason == "error":
            raise ModelFailed("model_error", f"{self.name}: the provider failed while it answered.", retryable=True)
        # Without a finish reason the provider library assumes a stop. It may as well be a broken connection.
        if response.state != "complete" or not (response.provider_details or {}).get("finish_reason"):
            raise broken_off(self.name)
        if reason == "length" and not any(part.part_kind in {"text", "tool-call"} for part in response.parts):
            raise ModelFailed(
                "bad_answer", f"{self.name} came to its limit of tokens before it said anything. Raise max_tokens."
            )

    def _reply(self, response: ModelResponse, fold: ResponseFold, names: ToolNames) -> ModelReply:
        return ModelReply(
            text=fold.text,
            calls=tuple(names.ours(call) for call in calls_of(response)),
            thinking=fold.thinking,
            tokens_in=response.usage.input_tokens,
            tokens_out=response.usage.output_tokens,
            cost_usd=_cost_usd(response, self._place, self.name.partition(":")[2]),
            model=f"{self._place.prefix}:{response.model_name}" if response.model_name else self.name,
            raw=to_raw(response),
        )


def register_providers(models: ModelRegistry, settings: Settings, values: Values) -> Providers:
    """Answer for the prefixes of all providers.

    Nothing is imported or connected before a model is asked. Whoever registers has to close what is returned.
    """
    providers = Providers(values)
    for place in _places(settings):
        providers.places[place.prefix] = place
        models.register(place.prefix, _factory(place, providers), models=tuple(place.prices))
    return providers


def _factory(place: Endpoint, providers: Providers) -> ModelFactory:
    def make(name: str, scene: ModelContext) -> ProviderModel:
        if not name.partition(":")[2]:
            raise ModelFailed("unknown_model", f'"{name}" is a provider. Say which model: "{name}:NAME".')
        return ProviderModel(name, place, scene, providers)

    return make


def _places(settings: Settings) -> Iterator[Endpoint]:
    openai, key = settings.openai_base_url, _value(settings.openai_api_key)
    home = _home("openai_base_url")
    yield Endpoint("openai", "responses", "openai", openai, ("OPENAI_API_KEY",), key, home=home)
    yield Endpoint("openai-chat", "chat", "openai", openai, ("OPENAI_API_KEY",), key, home=home)
    yield Endpoint(
        "anthropic",
        "anthropic",
        "anthropic",
        settings.anthropic_base_url,
        ("ANTHROPIC_API_KEY",),
        _value(settings.anthropic_api_key),
        home=_home("anthropic_base_url"),
    )
    yield Endpoint(
        "google",
        "google",
        "google",
        settings.google_base_url,
        ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
        _value(settings.google_api_key),
        home=_home("google_base_url"),
    )
    yield Endpoint(
        "openrouter",
        "openrouter",
        "openrouter",
        settings.openrouter_base_url,
        ("OPENROUTER_API_KEY",),
        _value(settings.openrouter_api_key),
        home=_home("openrouter_base_url"),
    )
    yield Endpoint(
        "ollama",
        "ollama",
        "ollama",
        settings.ollama_base_url,
        ("OLLAMA_API_KEY",),
        _value(settings.ollama_api_key),
        needs_key=False,
    )
    for name, found in settings.providers.items():
        yield Endpoint(
            name,
            "compatible",
            "openai",
            found.base_url,
            () if found.secret is None else (found.secret,),
            _value(found.api_key),
            needs_key=found.secret is not None,
            prices=found.prices,
        )


def _value(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value().strip() or None


def _home(field: str) -> str:
    return str(Settings.model_fields[field].default)


async def _stream(model: WireModel[Any], request: ModelRequest, fold: ResponseFold) -> ModelResponse:
    stream = model.request_stream(
        to_messages(request, model.system), to_settings(request, model.unsupported_settings), to_parameters(request)
    )
    async with stream as answer:
        async for event in answer:
            fold.take(event)
        return answer.get()


def _cost_usd(response: ModelResponse, place: Endpoint, name: str) -> float | None:
    """Return what an answer cost; None if it is unknown. Prices come with the installation, not over the network."""
    usage = response.usage
    if usage.unmeasured_requests:
        return None
    own = place.prices.get(name) or place.prices.get(response.model_name or "")
    if own is not None:
        spent = usage.input_tokens * own.input_usd_per_million + usage.output_tokens * own.output_usd_per_million
        return spent / _MILLION
    if place.api in {"compatible", "ollama"}:
        return None
    told = (response.provider_details or {}).get("cost")
    if place.api == "openrouter" and isinstance(told, int | float):
        return float(told)
    try:
        return float(response.cost().total_price)
    except (LookupError, ValueError, AssertionError):
        return None
