"""Warnings about what an installation does not have, and about strings that only look right."""

from __future__ import annotations

from typing import Any

import pytest

from runlane.definitions.checks.environment import environment_of
from runlane.definitions.loader import check_loaded, parse_bodies
from runlane.settings import Settings


def messages(settings: dict[str, Any] | None = None, /, **bodies: list[Any]) -> list[str]:
    """Return the problems; every one of them must be a warning."""
    parsed = parse_bodies(bodies)
    assert parsed.errors == [], [str(problem) for problem in parsed.errors]
    loaded = check_loaded(parsed, (), environment=environment_of(Settings(**settings or {})))
    assert loaded.errors == [], [str(problem) for problem in loaded.errors]
    return [str(problem) for problem in loaded.warnings]


def only(found: list[str]) -> str:
    assert len(found) == 1, found
    return found[0]


def flow(*steps: dict[str, Any], **fields: Any) -> dict[str, list[Any]]:
    return {"orchestrations": [{"id": "o", "steps": list(steps), **fields}]}


def llm(**fields: Any) -> dict[str, Any]:
    return {"id": "s", "type": "llm", "prompt_template": "x", **fields}


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("house-model", 'The model "house-model" has no provider. Write PROVIDER:house-model.'),
        ("opnai:gpt-5", 'unknown provider "opnai" (did you mean "openai"?)'),
        ("llama3", "Write ollama:llama3 or openrouter:llama3."),
    ],
)
def test_a_model_without_a_known_provider_is_a_warning(model: str, expected: str) -> None:
    found = only(messages(**flow(llm(model=model))))
    assert found.startswith('orchestration "o", step "s", field model: ')
    assert expected in found
    assert expected in only(messages(agents=[{"id": "a", "model": model}]))
    assert expected in only(messages(agents=[{"id": "a", "fallback_models": [model]}]))


def test_models_that_can_be_found_are_fine() -> None:
    providers: dict[str, Any] = {"providers": {"acme": {"base_url": "https://llm.example", "prices": {}}}}
    for model in ("gpt-5-mini", "openai:gpt-5", "acme:anything", "claude-opus-4-1"):
        assert messages(providers, **flow(llm(model=model))) == []
    assert messages(providers, agents=[{"id": "a", "model": "anything", "provider": "acme"}]) == []
    assert 'unknown provider "acm"' in only(messages(providers, agents=[{"id": "a", "model": "x", "provider": "acm"}]))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:8080/x", "loopback"),
        ("http://10.1.2.3/x", "private"),
        ("http://[::1]/x", "loopback"),
        ("http://169.254.169.254/latest", "link-local"),
        ("http://localhost:3000/x", "this machine"),
        ("http://2130706433/x", "a number"),
    ],
)
def test_an_address_that_is_refused_is_a_warning(url: str, why: str) -> None:
    found = only(messages(tools=[{"name": "t", "url": url}]))
    assert found.startswith('tool "t", field url: Calls to ')
    assert why in found
    assert "RUNLANE_OUTBOUND_ALLOW=" in found
    assert why in only(messages(mcp_servers=[{"name": "m", "url": url}]))


@pytest.mark.parametrize(
    ("url", "allow"),
    [
        ("https://api.example.com/{id}", None),
        ("https://8.8.8.8/x", None),
        ("http://10.1.2.3/x", "10.0.0.0/8"),
        ("http://127.0.0.1:8080/x", "127.0.0.1:8080"),
        ("http://localhost:8080/x", "localhost"),
        ("http://localhost:8080/x", "127.0.0.1:8080"),
    ],
)
def test_an_address_that_may_be_called_is_fine(url: str, allow: str | None) -> None:
    schema = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
    assert messages({"outbound_allow": allow}, tools=[{"name": "t", "url": url, "inputSchema": schema}]) == []


def test_scripted_models_need_answers() -> None:
    assert 'Add "answers": {"s": [...]}' in only(messages(**flow(llm(model="scripted"))))
    found = only(messages(**flow(llm(model="scripted:polit"), answers={"polite": ["hi"]})))
    assert 'The model "scripted:polit" has no answers (did you mean "polite"?)' in found
    agent = {"id": "a", "model": "scripted"}
    step = {"id": "s", "type": "agent", "agent_id": "a"}
    assert 'step "s", field agent_id' in only(messages(agents=[agent], **flow(step)))
    assert "Add a list of answers to the agent" in only(messages(agents=[agent]))


def test_scripted_models_with_answers_are_fine() -> None:
    agent = {"id": "a", "model": "scripted"}
    step = {"id": "s", "type": "agent", "agent_id": "a"}
    assert messages(**flow(llm(model="scripted"), answers={"s": ["hi"]})) == []
    assert messages(**flow(llm(model="scripted:polite"), answers={"polite": ["hi"]})) == []
    assert messages(**flow(llm(model="scripted:answers.json"))) == []
    assert messages(agents=[{**agent, "answers": ["hi"]}], **flow(step)) == []
    assert messages(agents=[agent], **flow(step, answers={"s": ["hi"]})) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "About {topic}",
            '"{topic}" is plain text, not a placeholder. To insert a value of the state, write {state.topic}',
        ),
        (
            "About {topic.name} and { topic }",
            '"{topic.name}" is plain text, not a placeholder. To insert a value of the state, write {state.topic.name}',
        ),
        (
            "About ${topic}",
            '"${topic}" is plain text, not a placeholder. To insert a value of the state, write {state.topic}',
        ),
        ("{{#each items}}", '"{{#each items}}" is plain text'),
        ("{% if x %}", '"{% if x %}" is plain text'),
    ],
)
def test_text_that_looks_like_a_placeholder_is_a_warning(text: str, expected: str) -> None:
    found = messages(**flow(llm(prompt_template=text)))
    assert found[0].startswith('orchestration "o", step "s", field prompt_template: ')
    assert expected in found[0]


@pytest.mark.parametrize(
    "text",
    [
        "{state.user_input} {{user_input}} {{ state.user_input }}",
        '{"name": "x", "list": [{"a": {}}]}',
        r"\{{user_input}}",
        r"\frac{a}{b} x{n} [0-9]{3}",
        "{ a: 1 }",
        "{}",
    ],
)
def test_other_braces_are_fine(text: str) -> None:
    assert messages(**flow(llm(prompt_template=text))) == []


def test_instructions_of_agents_have_no_placeholders() -> None:
    for text in ("Be {state.tone}.", "Be {{tone}}."):
        found = only(messages(agents=[{"id": "a", "system_prompt": text}]))
        assert found.startswith('agent "a", field system_prompt: ')
        assert "is sent to the model unchanged" in found


def test_a_script_that_never_sets_its_result_is_a_warning() -> None:
    step = {"id": "s", "type": "transform", "transform_code": "x = 1\nprint(x)"}
    assert "The script never sets result" in only(messages(**flow(step)))
    step = {"id": "s", "type": "transform", "transform_code": "for result in [1]:\n    pass"}
    assert messages(**flow(step)) == []
