"""Providers: OpenAI, Anthropic, Google, Ollama, OpenRouter and every OpenAI-compatible server.

Calls use pydantic-ai's models, which implement the wire formats. Turns, limits, retries and records are Runlane's own.
So each call is one streamed request without retries, and every failure has a code. The key is the tenant's secret, or
else the key of this process. It is looked up for each call, so a new key takes effect at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from runlane.errors import MissingExtra
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
    """The providers of this process."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self.clients = ProviderClients()
        # The clients share one connection pool. Without this gate, a call that finds no free connection would fail.
        self.connections = FairGate(MAX_CONNECTIONS, MAX_CONNECTIONS // 2)
        self.endpoints: dict[str, Endpoint] = {}

    async def access(self, endpoint: Endpoint, tenant: str, redactor: Redactor) -> Credential | None:
        """Return the key for an endpoint: the tenant's key, else the key of this process; None if neither is
        configured.

        A key of the tenant is added to the run's redactor. The key of this process is not added: a tenant could guess
        it by observing which text is redacted.
        """
        found: Mapping[str, str] = await self._values(tenant, endpoint.secrets) if endpoint.secrets else {}
        for name in endpoint.secrets:
            if own := found.get(name, "").strip():
                redactor.learn(own)
                return Credential(own, own=True)
        if endpoint.key is not None:
            return Credential(endpoint.key)
        return None if endpoint.needs_key else Credential(None)

    async def warm_up(self, prefixes: Set[str]) -> None:
        """Import the packages that the models with these prefixes need. Unknown prefixes are ignored."""
        for prefix in sorted(prefixes & self.endpoints.keys()):
            # A missing SDK is reported by the call that needs it.
            with contextlib.suppress(ImportError):
                await self.clients.warm_up(self.endpoints[prefix])

    async def close(self) -> None:
        """Close all connections. Safe to call at any time and more than once."""
        await self.clients.close()


class ProviderModel:
    """A model of a provider for one tenant. Creating one is cheap."""

    def __init__(self, name: str, endpoint: Endpoint, context: ModelContext, providers: Providers) -> None:
        self.name = name
        self._endpoint = endpoint
        self._tenant = context.tenant
        self._redactor = context.redactor
        self._providers = providers

    async def credential(self) -> str:
        """Return the provider, its host if it is not the default, and the tenant if the key belongs to the tenant.

        A provider of RUNLANE_PROVIDERS has the name that the operator chose.
        """
        endpoint = self._endpoint
        shown = endpoint.prefix if endpoint.api == "compatible" else endpoint.provider
        is_proxied = endpoint.base_url.rstrip("/") != (endpoint.home or "").rstrip("/")
        if is_proxied and endpoint.api not in ("compatible", "ollama"):
            shown += f":{urlsplit(endpoint.base_url).netloc.rpartition('@')[2]}"
        access = await self._providers.access(endpoint, self._tenant, self._redactor)
        if access is None:
            return shown
        # The client is created here because its creation can take seconds, and a call must not hold a slot meanwhile.
        # Errors are reported by the call.
        with contextlib.suppress(Exception):
            await self._client(access)
        return f"{shown}@{self._tenant}" if access.own else shown

    async def answer(self, request: ModelRequest, delta: Delta | None = None) -> ModelReply:
        """Call the provider once, with streaming, and return its answer."""
        access = await self._providers.access(self._endpoint, self._tenant, self._redactor)
        if access is None:
            names = " or ".join(self._endpoint.secrets)
            raise ModelFailed(
                "not_authorized", f"{self.name} has no key. Set a secret or an environment variable {names}."
            )
        names = ToolNames(request)
        fold = ResponseFold(request, names.translate_deltas(delta))
        try:
            model = await self._client(access)
            async with (
                self._providers.connections.enter(self._tenant),
                asyncio.timeout(request.settings.timeout_seconds),
            ):
                response = await _stream(model, names.translate_request(request), fold)
        except MissingExtra as error:
            raise ModelFailed("unknown_model", str(error)) from None
        except Exception as error:  # noqa: BLE001 - every error of a provider or its SDK gets a code
            raise failure_of(error, self.name, self._redactor, own_key=access.own) from None
        self._check(response)
        return self._reply(with_own_ids(response, request), fold, names)

    async def _client(self, access: Credential) -> WireModel[Any]:
        return await self._providers.clients.model(self._endpoint, access, self.name.partition(":")[2])

    def _check(self, response: ModelResponse) -> None:
        """Raise ModelFailed if a response is not a complete answer."""
        reason = response.finish_reason
        if reason == "content_filter":
            raise ModelFailed("content_refused", f"{self.name} refused to answer.")
        if reason == "error":
            raise ModelFailed("model_error", f"{self.name}: the provider failed while it answered.", retryable=True)
        # Without a finish reason, the provider library assumes that the answer is complete, but the connection may have
        # broken.
        if response.state != "complete" or not (response.provider_details or {}).get("finish_reason"):
            raise broken_off(self.name)
        if reason == "length" and not any(part.part_kind in {"text", "tool-call"} for part in response.parts):
            raise ModelFailed(
                "bad_answer", f"{self.name} reached its token limit before it wrote an answer. Raise max_tokens."
            )

    def _reply(self, response: ModelResponse, fold: ResponseFold, names: ToolNames) -> ModelReply:
        return ModelReply(
            text=fold.text,
            calls=tuple(names.ours(call) for call in calls_of(response)),
            thinking=fold.thinking,
            tokens_in=response.usage.input_tokens,
            tokens_out=response.usage.output_tokens,
            cost_usd=_cost_usd(response, self._endpoint, self.name.partition(":")[2]),
            model=f"{self._endpoint.prefix}:{response.model_name}" if response.model_name else self.name,
            raw=to_raw(response),
        )


def register_providers(models: ModelRegistry, settings: Settings, values: Values) -> Providers:
    """Register the prefixes of all providers.

    Nothing is imported or connected before the first call. The caller closes the returned object.
    """
    providers = Providers(values)
    for endpoint in _endpoints(settings):
        providers.endpoints[endpoint.prefix] = endpoint
        models.register(endpoint.prefix, _factory(endpoint, providers), models=tuple(endpoint.prices))
    return providers


def _factory(endpoint: Endpoint, providers: Providers) -> ModelFactory:
    def make(name: str, context: ModelContext) -> ProviderModel:
        if not name.partition(":")[2]:
            raise ModelFailed("unknown_model", f'"{name}" is a provider. Name a model: "{name}:NAME".')
        return ProviderModel(name, endpoint, context, providers)

    return make


def _endpoints(settings: Settings) -> Iterator[Endpoint]:
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


def _cost_usd(response: ModelResponse, endpoint: Endpoint, name: str) -> float | None:
    """Return the cost of an answer; None if it is unknown. Prices are part of the installation and are not fetched."""
    usage = response.usage
    if usage.unmeasured_requests:
        return None
    own = endpoint.prices.get(name) or endpoint.prices.get(response.model_name or "")
    if own is not None:
        spent = usage.input_tokens * own.input_usd_per_million + usage.output_tokens * own.output_usd_per_million
        return spent / _MILLION
    if endpoint.api in {"compatible", "ollama"}:
        return None
    reported = (response.provider_details or {}).get("cost")
    if endpoint.api == "openrouter" and isinstance(reported, int | float):
        return float(reported)
    try:
        return float(response.cost().total_price)
    except (LookupError, ValueError, AssertionError):
        return None
