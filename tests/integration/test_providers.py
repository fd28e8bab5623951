"""Models of real providers, against a fake one with their wire formats."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, Collection, Generator, Mapping, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog
from structlog.testing import LogCapture

from runlane.definitions.schema.definition import ModelSettings
from runlane.llm.models import (
    INVALID_JSON,
    Message,
    ModelContext,
    ModelDelta,
    ModelFailed,
    ModelRegistry,
    ModelReply,
    ModelRequest,
    ToolOffer,
)
from runlane.llm.providers import Providers, register_providers
from runlane.redaction import REDACTED, Redactor
from runlane.settings import load_settings
from runlane.testing import FakeAnswer, FakeCall, FakeControl, FakeFault, FakeServer
from runlane.testing.fake_wire import signature_of
from tests.harness import eventually

KEY = "sk-canary-0123456789abcdef"
WEATHER = ToolOffer(
    "weather",
    "What the weather is.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
# A model that each provider has a price for.
MODELS = {
    "openai": "openai:gpt-5-mini",
    "openai-chat": "openai-chat:gpt-4o-mini",
    "anthropic": "anthropic:claude-sonnet-4-6",
}
THINKERS = ["openai", "openai-chat", "anthropic"]


@dataclass
class Place:
    """A fake provider and the models that ask it."""

    fake: FakeServer
    models: ModelRegistry
    providers: Providers
    secrets: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])

    async def ask(self, model: str, request: ModelRequest | str, **more: Any) -> ModelReply:
        pieces: list[ModelDelta] = more.pop("pieces", [])
        if isinstance(request, str):
            request = ModelRequest(model, (Message("user", request),), **more)
        _, found = self.models.find(model, ModelContext())
        return await found.answer(request, pieces.append)

    @property
    def bodies(self) -> list[Any]:
        return [call.body for call in self.fake.meter.log]


@asynccontextmanager
async def provider(*answers: str | FakeAnswer, **settings: Any) -> AsyncGenerator[Place]:
    async with FakeServer(answers or ("Hello.",)) as fake:
        secrets = dict[tuple[str, str], str]()

        async def values(tenant: str, names: Collection[str]) -> Mapping[str, str]:
            return {name: secrets[tenant, name] for name in names if (tenant, name) in secrets}

        given = {
            "openai_base_url": f"{fake.url}/v1",
            "anthropic_base_url": fake.url,
            "ollama_base_url": f"{fake.url}/v1",
            "openrouter_base_url": f"{fake.url}/v1",
            "openai_api_key": KEY,
            "anthropic_api_key": KEY,
            "openrouter_api_key": KEY,
        }
        models = ModelRegistry()
        providers = register_providers(models, load_settings(**given | settings), values)
        try:
            yield Place(fake, models, providers, secrets)
        finally:
            await providers.close()


@contextmanager
def captured_logs() -> Generator[list[MutableMapping[str, Any]]]:
    """Yield what is logged in the block, even at levels that the suite leaves out."""
    before, captured = structlog.get_config(), LogCapture()
    structlog.configure(processors=[captured], wrapper_class=structlog.make_filtering_bound_logger(0))
    try:
        yield captured.entries
    finally:
        structlog.configure(**before)


@pytest.fixture(autouse=True)
def only_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the proxies and provider keys of the environment in which the suite runs."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("OPENAI", "ANTHROPIC", "GOOGLE", "GEMINI", "OLLAMA", "OPENROUTER"):
        monkeypatch.delenv(f"{name}_API_KEY", raising=False)


def folded(pieces: list[ModelDelta], kind: str) -> str:
    return "".join(piece.text for piece in pieces if piece.kind == kind)


@pytest.mark.parametrize("prefix", MODELS)
async def test_text_comes_in_pieces_with_tokens_and_a_cost(prefix: str) -> None:
    text = "Some words, ünïcödé too. 🙂\n\n  And a second line."
    async with provider(FakeAnswer(text=text, tokens_in=1000, tokens_out=200)) as place:
        pieces: list[ModelDelta] = []
        reply = await place.ask(MODELS[prefix], "Say it.", pieces=pieces)
        assert reply.text == text == folded(pieces, "text")
        assert len([piece for piece in pieces if piece.kind == "text"]) > 3
        assert (reply.tokens_in, reply.tokens_out) == (1000, 200)
        assert reply.cost_usd is not None
        assert 0 < reply.cost_usd < 1
        assert reply.model == MODELS[prefix]
        assert reply.calls == ()
        assert place.bodies[0]["stream"] is True


@pytest.mark.parametrize("prefix", THINKERS)
async def test_thoughts_are_kept_apart_and_returned_with_their_signature(prefix: str) -> None:
    answers = [
        FakeAnswer(thinking="I should look first.", calls=[FakeCall(name="weather", arguments={"city": "Bern"})]),
        FakeAnswer(text="It rains."),
    ]
    async with provider(*answers) as place:
        pieces: list[ModelDelta] = []
        asked = (Message("user", "What is the weather in Bern?"),)
        first = await place.ask(
            MODELS[prefix],
            ModelRequest(MODELS[prefix], asked, offers=(WEATHER,), settings=ModelSettings(thinking="low")),
            pieces=pieces,
        )
        assert first.thinking == "I should look first." == folded(pieces, "thinking")
        assert first.text == "" == folded(pieces, "text")
        [call] = first.calls
        assert (call.name, call.arguments, call.id) == ("weather", {"city": "Bern"}, "call_0_0")
        argument_pieces = [piece for piece in pieces if piece.kind == "arguments"]
        assert {(piece.call_id, piece.tool) for piece in argument_pieces} == {("call_0_0", "weather")}
        assert folded(pieces, "arguments") == '{"city":"Bern"}'

        lines = (
            *asked,
            Message("assistant", first.text, calls=first.calls, raw=first.raw),
            Message("tool", "rain", tool="weather", call_id=call.id),
        )
        second = await place.ask(MODELS[prefix], ModelRequest(MODELS[prefix], lines, offers=(WEATHER,), number=1))
        assert second.text == "It rains."
        sent = str(place.bodies[1])
        if prefix != "openai-chat":
            assert signature_of("I should look first.") in sent
        assert "call_0_0" in sent
        assert "rain" in sent


async def test_a_signed_thought_goes_back_to_anthropic_as_a_block_of_its_own() -> None:
    calls = [FakeCall(name="weather", arguments={"city": "Bern"})]
    async with provider(FakeAnswer(thinking="Hm.", text="Let me see.", calls=calls), "Rain.") as place:
        model = MODELS["anthropic"]
        first = await place.ask(model, "Weather?", offers=(WEATHER,), settings=ModelSettings(thinking="low"))
        lines = (
            Message("user", "Weather?"),
            Message("assistant", first.text, calls=first.calls, raw=first.raw),
            Message("tool", "it broke", tool="weather", call_id=first.calls[0].id, failed=True),
        )
        await place.ask(model, ModelRequest(model, lines, offers=(WEATHER,), settings=ModelSettings(thinking="low")))
        _, answered, result = place.bodies[1]["messages"]
        kinds = [block["type"] for block in answered["content"]]
        assert kinds == ["thinking", "text", "tool_use"]
        assert answered["content"][0]["signature"] == signature_of("Hm.")
        [block] = result["content"]
        assert (block["type"], block["tool_use_id"], block["is_error"]) == ("tool_result", "call_0_0", True)


async def test_an_answer_of_another_provider_is_sent_without_provider_specific_parts() -> None:
    calls = [FakeCall(name="weather", arguments={"city": "Bern"}, id="toolu_1")]
    async with provider(FakeAnswer(thinking="Hm.", text="Let me see.", calls=calls), "Rain.") as place:
        first = await place.ask(MODELS["anthropic"], "Weather?", offers=(WEATHER,))
        lines = (
            Message("user", "Weather?"),
            Message("assistant", first.text, calls=first.calls, raw=first.raw),
            Message("tool", "rain", tool="weather", call_id="toolu_1"),
        )
        reply = await place.ask(MODELS["openai-chat"], ModelRequest(MODELS["openai-chat"], lines, offers=(WEATHER,)))
        assert reply.text == "Rain."
        _, answered, result = place.bodies[1]["messages"]
        assert answered["content"] == "Let me see."
        assert [call["id"] for call in answered["tool_calls"]] == ["toolu_1"] == [result["tool_call_id"]]
        assert "Hm." not in str(place.bodies[1])


@pytest.mark.parametrize("prefix", MODELS)
async def test_several_tools_can_be_called_at_once(prefix: str) -> None:
    cities = ["Bern", "Oslo", "Rome"]
    calls = [FakeCall(name="weather", arguments={"city": city}) for city in cities]
    async with provider(FakeAnswer(text="Let me look.", calls=calls), "Done.") as place:
        pieces: list[ModelDelta] = []
        model = MODELS[prefix]
        first = await place.ask(model, "Weather?", offers=(WEATHER,), pieces=pieces)
        assert first.text == "Let me look."
        assert [call.arguments["city"] for call in first.calls] == cities
        assert len({call.id for call in first.calls}) == 3
        for call in first.calls:
            own = "".join(piece.text for piece in pieces if piece.call_id == call.id)
            assert own == f'{{"city":"{call.arguments["city"]}"}}'
        results = [Message("tool", f"sun in {call.id}", tool="weather", call_id=call.id) for call in first.calls]
        lines = (Message("user", "Weather?"), Message("assistant", first.text, calls=first.calls), *results)
        assert (await place.ask(model, ModelRequest(model, lines, offers=(WEATHER,), number=1))).text == "Done."
        for call in first.calls:
            assert f"sun in {call.id}" in str(place.bodies[1])


@pytest.mark.parametrize("prefix", MODELS)
async def test_arguments_that_are_not_a_json_object_arrive_as_they_were_written(prefix: str) -> None:
    calls = [
        FakeCall(name="weather", arguments='{"city": "Be'),
        FakeCall(name="weather", arguments="[1, 2]"),
        FakeCall(name="weather", arguments=""),
    ]
    async with provider(FakeAnswer(calls=calls), "I see.") as place:
        model = MODELS[prefix]
        reply = await place.ask(model, "Weather?", offers=(WEATHER,))
        assert [call.arguments for call in reply.calls] == [
            {INVALID_JSON: '{"city": "Be'},
            {INVALID_JSON: "[1, 2]"},
            {},
        ]
        for raw in (reply.raw, None):
            lines = (
                Message("user", "Weather?"),
                Message("assistant", "", calls=reply.calls, raw=raw),
                *(Message("tool", "no", tool="weather", call_id=call.id, failed=True) for call in reply.calls),
            )
            again = await place.ask(model, ModelRequest(model, lines, offers=(WEATHER,), number=1))
            assert again.text == "I see."


async def test_ids_that_a_server_uses_again_are_made_different() -> None:
    answers = [FakeAnswer(calls=[FakeCall(name="weather", id="call_0")] * 2)]
    async with provider(*answers) as place:
        model, pieces = MODELS["openai-chat"], list[ModelDelta]()
        first = await place.ask(model, "Weather?", offers=(WEATHER,), pieces=pieces)
        results = [Message("tool", "x", tool="weather", call_id=call.id) for call in first.calls]
        lines = (Message("user", "Weather?"), Message("assistant", "", calls=first.calls, raw=first.raw), *results)
        second = await place.ask(model, ModelRequest(model, lines, offers=(WEATHER,), number=1))
        ids = [call.id for call in (*first.calls, *second.calls)]
        assert ids[0] == "call_0"
        assert len(set(ids)) == 4
        sent = place.bodies[1]["messages"]
        assert [call["id"] for call in sent[1]["tool_calls"]] == ids[:2]
        assert {piece.call_id for piece in pieces} == set(ids[:2])


@pytest.mark.parametrize("prefix", MODELS)
async def test_instructions_settings_and_tools_reach_the_provider(prefix: str) -> None:
    calls = [FakeCall(name="weather", arguments={"city": "Bern"})]
    async with provider(FakeAnswer(calls=calls)) as place:
        model = {"openai": "openai:gpt-4o-mini"}.get(prefix, MODELS[prefix])
        settings = ModelSettings(temperature=0.25, max_tokens=321, parallel_tool_calls=False)
        await place.ask(
            model, "Weather?", instructions="Be brief.", offers=(WEATHER,), must_call=True, settings=settings
        )
        [body] = place.bodies
        assert "Be brief." in str(body)
        assert body["temperature"] == 0.25
        assert 321 in (body.get("max_tokens"), body.get("max_output_tokens"), body.get("max_completion_tokens"))
        choice = body["tool_choice"]
        if prefix == "anthropic":
            assert (choice["type"], choice["disable_parallel_tool_use"]) == ("any", True)
        else:
            assert (choice, body["parallel_tool_calls"]) == ("required", False)
        assert '"city"' in str(body["tools"]).replace("'", '"')
        assert "What the weather is." in str(body["tools"])


FAULTS = [
    (FakeFault(status=429, retry_after_seconds=7), "rate_limited", True, True, 7.0),
    (FakeFault(status=429, retry_after_seconds=2.5), "rate_limited", True, True, 2.5),
    (FakeFault(status=429), "rate_limited", True, True, None),
    (FakeFault(status=529), "overloaded", True, True, None),
    (FakeFault(status=503), "overloaded", True, True, None),
    (FakeFault(status=500), "model_error", True, False, None),
    (FakeFault(status=502), "model_error", True, False, None),
    (FakeFault(status=400), "invalid_request", False, False, None),
    (FakeFault(status=422), "invalid_request", False, False, None),
    (FakeFault(status=413), "context_too_long", False, False, None),
    (FakeFault(status=401), "not_authorized", False, False, None),
    (FakeFault(status=403), "not_authorized", False, False, None),
    (FakeFault(status=404), "unknown_model", False, False, None),
    (FakeFault(kind="break"), "model_unreachable", True, False, None),
    (FakeFault(kind="stop"), "model_unreachable", True, False, None),
    (FakeFault(kind="late"), "model_error", True, False, None),
    (FakeFault(kind="garbage"), "bad_answer", True, False, None),
]


def _shown(value: object) -> str:
    return f"{value.kind}-{value.status}" if isinstance(value, FakeFault) else str(value)


@pytest.mark.parametrize("prefix", MODELS)
@pytest.mark.parametrize(("fault", "code", "retryable", "throttled", "wait"), FAULTS, ids=_shown)
async def test_every_fault_has_its_code_and_is_met_once(
    prefix: str, fault: FakeFault, code: str, retryable: bool, throttled: bool, wait: float | None
) -> None:
    fault = fault.model_copy(update={"message": f"Wrong: key {KEY}, header Bearer {KEY}" + " and more" * 200})
    async with provider(FakeAnswer(text="Never all of it." * 20, fault=fault)) as place:
        with pytest.raises(ModelFailed) as caught:
            await place.ask(MODELS[prefix], "Hello?")
        failed = caught.value
        assert (failed.code, failed.retryable, failed.throttled) == (code, retryable, throttled), failed.message
        assert failed.retry_after_seconds == wait
        assert len(failed.message) < 500
        assert "canary" not in f"{failed!r} {failed.message}"
        assert place.fake.meter.calls == 1


@pytest.mark.parametrize(
    ("prefix", "fault"),
    [
        ("openai", FakeFault(status=400, code="context_length_exceeded")),
        ("openai-chat", FakeFault(status=400, code="context_length_exceeded")),
        ("anthropic", FakeFault(status=400, message="prompt is too long: 300000 tokens > 200000 maximum")),
    ],
)
async def test_a_conversation_that_is_too_long_is_reported(prefix: str, fault: FakeFault) -> None:
    async with provider(FakeAnswer(fault=fault)) as place:
        with pytest.raises(ModelFailed) as caught:
            await place.ask(MODELS[prefix], "Hello?")
        assert (caught.value.code, caught.value.retryable) == ("context_too_long", False)


async def test_a_late_overload_slows_every_caller_down() -> None:
    async with provider(FakeAnswer(text="Half of it.", fault=FakeFault(kind="late", status=529))) as place:
        with pytest.raises(ModelFailed) as caught:
            await place.ask(MODELS["anthropic"], "Hello?")
        assert (caught.value.code, caught.value.throttled) == ("overloaded", True)


async def test_credit_that_is_used_up_does_not_pass() -> None:
    async with provider(FakeAnswer(fault=FakeFault(status=429, code="insufficient_quota"))) as place:
        with pytest.raises(ModelFailed) as caught:
            await place.ask(MODELS["openai"], "Hello?")
        assert (caught.value.code, caught.value.retryable, caught.value.throttled) == ("quota_exceeded", False, False)


@pytest.mark.parametrize("prefix", MODELS)
async def test_a_refusal_and_a_cut_off_answer_are_not_answers(prefix: str) -> None:
    answers = [FakeAnswer(finish="refusal", when="harm"), FakeAnswer(thinking="Hm.", finish="length", when="room")]
    async with provider(*answers) as place:
        with pytest.raises(ModelFailed) as caught:
            await place.ask(MODELS[prefix], "Do harm.")
        assert (caught.value.code, caught.value.retryable) == ("content_refused", False)
        with pytest.raises(ModelFailed) as caught:
            await place.ask(MODELS[prefix], "Without room.")
        assert (caught.value.code, caught.value.retryable) == ("bad_answer", False)


@pytest.mark.parametrize("prefix", MODELS)
async def test_a_call_that_takes_too_long_is_given_up_and_hangs_up(prefix: str) -> None:
    async with provider(FakeAnswer(fault=FakeFault(kind="hang"))) as place:
        with pytest.raises(ModelFailed) as caught:
            await place.ask(MODELS[prefix], "Hello?", settings=ModelSettings(timeout_seconds=1))
        assert (caught.value.code, caught.value.retryable) == ("model_timeout", True)
        await eventually(lambda: place.fake.meter.outcomes["hung up"] == 1)
        assert place.fake.meter.in_flight == 0


@pytest.mark.parametrize("prefix", MODELS)
async def test_a_cancelled_call_hangs_up_in_the_middle(prefix: str) -> None:
    async with provider(FakeAnswer(text="word " * 1000, piece_delay_seconds=0.02)) as place:
        pieces: list[ModelDelta] = []
        call = asyncio.create_task(place.ask(MODELS[prefix], "Hello?", pieces=pieces))
        await eventually(lambda: len(pieces) > 2)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await eventually(lambda: place.fake.meter.outcomes["hung up"] == 1)
        assert (place.fake.meter.calls, place.fake.meter.in_flight) == (1, 0)


async def test_an_unreachable_provider_is_reported() -> None:
    async with FakeServer(["x"]) as fake:
        gone = f"{fake.url}/v1"
    async with provider(openai_base_url=gone) as place:
        with pytest.raises(ModelFailed) as caught:
            await place.ask(MODELS["openai"], "Hello?")
        assert (caught.value.code, caught.value.retryable) == ("model_unreachable", True)


async def test_a_tenants_own_key_wins_and_a_new_one_counts_at_once() -> None:
    async with provider("Hello.") as place:
        redactor = Redactor()

        async def ask(tenant: str) -> tuple[str, str]:
            _, model = place.models.find(MODELS["openai"], ModelContext(tenant=tenant, redactor=redactor))
            await model.answer(ModelRequest(MODELS["openai"], (Message("user", "Hello?"),)))
            return await model.credential(), place.fake.meter.log[-1].key

        host = place.fake.url.removeprefix("http://")
        shared, of_all = await ask("acme")
        assert shared == f"openai:{host}"
        place.secrets["acme", "OPENAI_API_KEY"] = "sk-own-1\n"
        own, first = await ask("acme")
        assert own == f"openai:{host}@acme"
        assert await ask("other") == (shared, of_all)
        place.secrets["acme", "OPENAI_API_KEY"] = "sk-own-2"
        again, second = await ask("acme")
        assert (again, len({of_all, first, second})) == (own, 3)
        del place.secrets["acme", "OPENAI_API_KEY"]
        assert await ask("acme") == (shared, of_all)
        assert [call["outcome"] for call in place.fake.meter.stats()["log"]] == ["200"] * 5
        # The run redacts the keys of its tenant. The key of the operator is not among them, even if it was used.
        assert redactor.clean(f"sk-own-1 sk-own-2 {KEY}") == f"{REDACTED} {REDACTED} {KEY}"


@pytest.mark.parametrize("status", [401, 403])
async def test_the_message_for_a_refused_operator_key_is_only_logged(status: int) -> None:
    echo = FakeFault(status=status, message=f"no such key: {KEY}", code="invalid_api_key", times=2)
    async with provider(FakeAnswer(text="x", fault=echo)) as place:
        with captured_logs() as logged, pytest.raises(ModelFailed) as caught:
            await place.ask(MODELS["openai"], "Hello?")
        assert caught.value.code == "not_authorized"
        assert caught.value.message.startswith("The provider does not accept this server's key")
        assert KEY not in caught.value.message
        assert [line["response"] for line in logged if f"no such key: {REDACTED}" in line["response"]]
        # With a key of its own the tenant gets the same code, and its key is not repeated either.
        place.secrets["default", "OPENAI_API_KEY"] = "sk-own-tenant-key"
        with captured_logs() as logged, pytest.raises(ModelFailed) as caught:
            await place.ask(MODELS["openai"], "Hello?")
        assert caught.value.code == "not_authorized"
        assert logged == []


async def test_options_of_the_operators_key_are_not_sent_with_another_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-operator")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "token-operator")
    async with provider("Hello.") as place:
        await place.ask(MODELS["openai"], "Hello?")
        place.secrets["default", "OPENAI_API_KEY"] = "sk-own"
        place.secrets["default", "ANTHROPIC_API_KEY"] = "sk-own"
        await place.ask(MODELS["openai"], "Hello?")
        await place.ask(MODELS["anthropic"], "Hello?")
        of_operator, of_tenant, of_anthropic = place.fake.meter.log
        assert "openai-organization" in of_operator.headers
        assert "openai-organization" not in of_tenant.headers
        assert of_anthropic.key == of_tenant.key != of_operator.key


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("openai:gpt-5", "OPENAI_API_KEY"),
        ("openai-chat:gpt-5", "OPENAI_API_KEY"),
        ("anthropic:claude", "ANTHROPIC_API_KEY"),
        ("google:gemini", "GOOGLE_API_KEY or GEMINI_API_KEY"),
        ("openrouter:x/y", "OPENROUTER_API_KEY"),
        ("acme:large", "ACME_KEY"),
    ],
)
async def test_the_error_for_a_missing_key_names_the_setting(model: str, names: str) -> None:
    none = dict.fromkeys(("openai_api_key", "anthropic_api_key", "openrouter_api_key"))
    acme = {"acme": {"base_url": "http://127.0.0.1:1/v1", "secret": "ACME_KEY"}}
    async with provider(**none, providers=acme) as place:
        with pytest.raises(ModelFailed) as caught:
            await place.ask(model, "Hello?")
        assert (caught.value.code, caught.value.retryable) == ("not_authorized", False)
        assert caught.value.message.endswith(f"Set a secret or an environment variable {names}.")


async def test_openai_compatible_servers_have_names_keys_and_prices_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ACME_KEY", "acme-1")
    async with FakeServer([FakeAnswer(text="Hi.", tokens_in=1000, tokens_out=100)]) as fake:
        price = {"input_usd_per_million": 2.0, "output_usd_per_million": 10.0}
        acme = {"base_url": f"{fake.url}/v1", "secret": "ACME_KEY", "prices": {"large": price}}
        async with provider(providers={"acme": acme, "free": {"base_url": f"{fake.url}/v1"}}) as place:
            reply = await place.ask("acme:large", "Hello?")
            assert (reply.text, reply.model) == ("Hi.", "acme:large")
            assert reply.cost_usd == pytest.approx(0.003)
            assert (await place.ask("acme:small", "Hello?")).cost_usd is None
            assert (await place.ask("free:any:thing", "Hello?")).text == "Hi."
            keys = [call.key for call in fake.meter.log]
            assert keys[0] == keys[1] != keys[2]
            assert {call.path for call in fake.meter.log} == {"/v1/chat/completions"}
            _, model = place.models.find("acme:large", ModelContext())
            assert await model.credential() == "acme"


async def test_ollama_needs_no_key_and_has_no_price() -> None:
    async with provider(FakeAnswer(text="Hi.", tokens_in=5)) as place:
        reply = await place.ask("ollama:llama3.2:3b", "Hello?")
        assert (reply.text, reply.cost_usd, reply.tokens_in) == ("Hi.", None, 5)
        assert reply.model == "ollama:llama3.2:3b"
        _, model = place.models.find("ollama:llama3.2", ModelContext())
        assert await model.credential() == "ollama"


async def test_openrouter_is_called_with_its_key() -> None:
    async with provider(FakeAnswer(text="Hi.")) as place:
        reply = await place.ask("openrouter:openai/gpt-4o-mini", "Hello?")
        assert (reply.text, place.bodies[0]["model"]) == ("Hi.", "openai/gpt-4o-mini")


async def test_a_provider_without_a_model_is_not_a_model() -> None:
    async with provider() as place:
        with pytest.raises(ModelFailed, match='"openai:NAME"'):
            place.models.find("openai", ModelContext())


async def test_closing_ends_connections_and_may_be_done_twice() -> None:
    async with provider("Hello.") as place:
        await place.ask(MODELS["openai"], "Hello?")
        await place.providers.close()
        await place.providers.close()
        assert (await place.ask(MODELS["openai"], "Hello?")).text == "Hello."


async def test_a_limit_of_the_fake_provider_is_met_as_throttling() -> None:
    async with provider(FakeAnswer(fault=FakeFault(kind="hang"))) as place:
        place.fake.control(FakeControl(max_in_flight=1, retry_after_seconds=3))
        first = asyncio.create_task(place.ask(MODELS["openai"], "Hello?"))
        await eventually(lambda: place.fake.meter.in_flight == 1, "the first call")
        with pytest.raises(ModelFailed) as caught:
            await place.ask(MODELS["openai"], "Hello?")
        assert (caught.value.code, caught.value.retry_after_seconds) == ("rate_limited", 3.0)
        first.cancel()
        await asyncio.wait([first])


def test_registering_imports_no_provider() -> None:
    program = (
        "import sys\n"
        "from runlane.llm.models import ModelContext, ModelRegistry\n"
        "from runlane.llm.providers import register_providers\n"
        "from runlane.settings import load_settings\n"
        "models = ModelRegistry()\n"
        "register_providers(models, load_settings(), None)\n"
        "models.find('openai:gpt-5', ModelContext())\n"
        "print([name for name in ('pydantic_ai', 'openai', 'anthropic', 'google.genai', 'mcp') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.strip() == "[]"
