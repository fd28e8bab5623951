"""A bare model name belongs to its provider where only one serves it, and to none otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from runlane.definitions.schema.definition import Agent
from runlane.domain.model_names import resolve_model
from runlane.llm.models import Model, ModelContext, ModelFailed, ModelRegistry
from runlane.settings import OWN_PROVIDERS

OWN: dict[str, tuple[str, ...]] = dict.fromkeys(OWN_PROVIDERS, ())


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("gpt-5-mini", "openai:gpt-5-mini"),
        ("chatgpt-4o-latest", "openai:chatgpt-4o-latest"),
        ("o3", "openai:o3"),
        ("o4-mini", "openai:o4-mini"),
        ("claude-sonnet-4-5", "anthropic:claude-sonnet-4-5"),
        ("gemini-2.5-flash", "google:gemini-2.5-flash"),
        ("openai-chat:gpt-5-mini", "openai-chat:gpt-5-mini"),
        ("ollama:llama3:8b", "ollama:llama3:8b"),
        ("scripted", "scripted"),
    ],
)
def test_a_name_that_one_provider_serves_is_resolved(name: str, full: str) -> None:
    assert resolve_model(name, OWN).name == full


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("gpt-oss", ("ollama:gpt-oss", "openrouter:gpt-oss")),
        ("llama3", ("ollama:llama3", "openrouter:llama3")),
        ("llama3:8b", ("ollama:llama3:8b", "openrouter:llama3:8b")),
        ("openai/gpt-5-mini", ("ollama:openai/gpt-5-mini", "openrouter:openai/gpt-5-mini")),
        ("gemma-3-27b-it", ("google:gemma-3-27b-it", "ollama:gemma-3-27b-it", "openrouter:gemma-3-27b-it")),
        ("o5x", ()),
        ("house-model", ()),
        ("acme:gpt-5-mini", ()),
    ],
)
def test_other_names_are_not_guessed(name: str, candidates: tuple[str, ...]) -> None:
    found = resolve_model(name, OWN)
    assert (found.name, found.candidates) == (None, candidates)


def test_a_provider_that_lists_the_model_counts() -> None:
    known = {**OWN, "acme": ("house-model", "gpt-5-mini")}
    assert resolve_model("house-model", known).name == "acme:house-model"
    assert resolve_model("gpt-5-mini", known).candidates == ("openai:gpt-5-mini", "acme:gpt-5-mini")


class _Found:
    async def credential(self) -> str:
        return ""

    async def answer(self, request: Any, delta: Any = None) -> Any:
        raise NotImplementedError


def agent(**fields: str) -> Agent:
    return Agent.model_validate({"id": "a", **fields})


def _models(**prefixes: tuple[str, ...]) -> ModelRegistry:
    def make(name: str, scene: ModelContext) -> Model:
        return _Found()

    models = ModelRegistry()
    for prefix, names in prefixes.items():
        models.register(prefix, make, models=names)
    return models


def test_steps_and_agents_may_leave_the_provider_out() -> None:
    models = _models(openai=(), anthropic=())
    assert models.find("gpt-5-mini", ModelContext())[0] == "openai:gpt-5-mini"
    assert models.find(None, ModelContext(agent=agent(model="claude-opus-4-1")))[0] == "anthropic:claude-opus-4-1"


def test_a_provider_of_the_agent_wins() -> None:
    models = _models(openai=(), acme=(), ollama=())
    assert models.find(None, ModelContext(agent=agent(model="gpt-5", provider="acme")))[0] == "acme:gpt-5"
    tagged = agent(model="llama3:8b", provider="ollama")
    assert models.find(None, ModelContext(agent=tagged))[0] == "ollama:llama3:8b"


def test_an_ambiguous_name_fails_with_the_candidates() -> None:
    with pytest.raises(ModelFailed) as caught:
        _models(ollama=(), openrouter=()).find("llama3", ModelContext())
    assert caught.value.code == "unknown_model"
    assert "Write ollama:llama3 or openrouter:llama3." in caught.value.message


def test_an_unknown_name_fails_with_the_known_ones() -> None:
    with pytest.raises(ModelFailed, match="Known prefixes: openai"):
        _models(openai=()).find("house-model", ModelContext())
