"""A worker preloads what the definitions of its database need, and nothing else."""

from __future__ import annotations

from runlane.domain.text import dump_json
from runlane.orchestration.warm_up import WarmUpNeeds, needs_of


def test_nothing_is_needed_without_definitions() -> None:
    assert needs_of([]) == WarmUpNeeds()


def test_models_code_and_servers_are_found_at_any_depth() -> None:
    agent = {"id": "a", "model": "anthropic:x", "fallback_models": ["openai:y", "scripted:z"]}
    steps = [{"id": "s", "type": "llm", "model": "google:x"}, {"id": "c", "type": "if_else", "if_condition": "True"}]
    found = needs_of(
        [("agent", dump_json(agent)), ("orchestration", dump_json({"steps": steps})), ("mcp_server", dump_json({}))]
    )
    assert found == WarmUpNeeds({"anthropic", "google", "openai", "scripted"}, mcp=True, sandbox=True)


def test_an_agent_without_a_model_needs_the_default_one() -> None:
    assert needs_of([("agent", dump_json({"id": "a"}))]) == WarmUpNeeds(default_model=True)
