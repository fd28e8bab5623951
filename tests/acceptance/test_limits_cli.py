"""The commands for provider limits, usage and caps of tenants, as processes."""

from __future__ import annotations

from tests.acceptance.test_access_cli import environment, json_of, run

__all__ = ["environment"]


def test_limits_are_set_listed_and_reset(environment: dict[str, str]) -> None:
    set_ = json_of(environment, "limits", "set", "openai", "--in-flight", "3", "--tokens-per-minute", "9000")
    assert set_["changed"] == {
        "in_flight": {"old": 8, "new": 3}, "tokens_per_minute": {"old": None, "new": 9000},
    }  # fmt: skip
    rows = {row["credential"]: row for row in json_of(environment, "limits", "list")}
    assert set(rows) == {"anthropic", "ollama", "openai"}
    assert rows["openai"]["limits"] == {"in_flight": 3, "requests_per_minute": None, "tokens_per_minute": 9000}
    assert rows["openai"]["now"] == {"in_flight": 0, "requests": 0, "tokens": 0, "waiting": 0}
    assert rows["ollama"]["updated_by"] is None
    done = run(environment, "limits", "set", "openai", "--no-limit", "in-flight")
    assert done.stdout == "openai: in_flight 3 -> None\n"
    assert "openai\t0 of no limit\t0 of no limit\t0 of 9000\t0\t" in run(environment, "limits", "list").stdout
    assert run(environment, "limits", "reset", "openai").stdout == (
        "openai: in_flight None -> 8\nopenai: tokens_per_minute 9000 -> None\n"
    )
    refused = run(environment, "limits", "set", "openai")
    assert (refused.returncode, "Nothing to change" in refused.stderr) == (1, True)
    mistyped = run(environment, "limits", "set", "opena", "--in-flight", "3")
    assert mistyped.stdout == "opena: in_flight None -> 3\n"
    assert 'No call has counted against "opena" yet (did you mean "openai"?).' in mistyped.stderr
    actions = [entry["action"] for entry in json_of(environment, "audit", "list")]
    assert actions == ["limits.set", "limits.reset", "limits.set", "limits.set"]


def test_a_limit_of_a_configured_provider_is_set_under_its_name(environment: dict[str, str]) -> None:
    with_acme = {**environment, "RUNLANE_PROVIDERS": '{"acme": {"base_url": "https://llm.example"}}'}
    done = run(with_acme, "limits", "set", "acme", "--in-flight", "2")
    assert done.stdout == "acme: in_flight None -> 2\n"
    assert "did you mean" not in done.stderr


def test_usage_and_caps(environment: dict[str, str]) -> None:
    assert json_of(environment, "usage", "--group", "model", "--from", "2026-01-01", "--to", "2026-01-31") == []
    for wrong in (["--group", "colour"], ["--from", "yesterday"], ["--from", "2026-02-01", "--to", "2026-01-31"]):
        refused = run(environment, "usage", *wrong)
        assert (refused.returncode, "Error (invalid_request)" in refused.stderr) == (1, True)
    made = json_of(environment, "tenants", "create", "acme", "--max-cost-per-day", "2.5", "--on-cap", "ask")
    assert (made["max_cost_usd_per_day"], made["on_cap"]) == (2.5, "ask")
    changed = json_of(environment, "tenants", "set", "acme", "--max-cost-per-day", "7", "--on-cap", "fail")["changed"]
    assert changed == {"max_cost_usd_per_day": {"old": 2.5, "new": 7.0}, "on_cap": {"old": "ask", "new": "fail"}}
    done = run(environment, "tenants", "set", "acme", "--no-limit", "max_cost_usd_per_day")
    assert done.stdout == "acme: max_cost_usd_per_day 7.0 -> None\n"


def test_concurrency_limits_are_set_listed_and_deleted(environment: dict[str, str]) -> None:
    (made,) = json_of(environment, "concurrency-limits", "set", "gpu", "4")
    assert (made["name"], made["max_running"], made["admitted"], made["waiting"]) == ("gpu", 4, 0, 0)
    assert json_of(environment, "concurrency-limits", "list") == [made]
    assert json_of(environment, "concurrency-limits", "list", "--tenant", "other") == []
    mistyped = run(environment, "concurrency-limits", "delete", "gpus")
    assert (mistyped.returncode, 'did you mean "gpu"?' in mistyped.stderr) == (1, True)
    assert run(environment, "concurrency-limits", "delete", "gpu").stdout == "Deleted the concurrency limit gpu.\n"
    actions = [entry["action"] for entry in json_of(environment, "audit", "list")]
    assert actions == ["concurrency_limit.delete", "concurrency_limit.set"]


def test_keys_of_flow_control_are_listed(environment: dict[str, str]) -> None:
    assert run(environment, "flow-control", "list").stdout == "rule\ttarget\tkey\tskipped\trun\tstarts\tdue\n"
    assert json_of(environment, "flow-control", "list", "--rule", "unique", "--skipped") == []
    assert run(environment, "flow-control", "list", "--rule", "colour").returncode == 2
