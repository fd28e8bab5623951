"""Flow control without a database: rates, plans and the merge of rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlane.domain.flow_control import FlowControl, merge_flow_control, parse_flow_control
from runlane.domain.flow_keys import RunFlow, backlog_of, interval_ns, next_tat_ns, wait_ns
from runlane.domain.options import RunOptions
from runlane.domain.text import dump_json, load_json
from runlane.errors import ConfigurationError, InvalidFlowControl
from runlane.store.schedules.starting import PreparedRun
from runlane.store.webhooks.run_webhooks import RunWebhook
from runlane.submit.flow_control import resolve, start_flow
from tests.flow_control import start


@given(
    most=st.integers(1, 50),
    period=st.floats(0.01, 100),
    burst=st.integers(1, 20),
    gaps=st.lists(st.integers(0, 5_000_000_000), min_size=1, max_size=60),
)
def test_in_any_span_at_most_the_burst_and_the_rate_conform(
    most: int, period: float, burst: int, gaps: list[int]
) -> None:
    each = interval_ns(most, period)
    now = tat = 0
    accepted: list[int] = []
    for gap in gaps:
        now += gap
        if wait_ns(tat, now, each, burst) <= 0:
            accepted.append(now)
            tat = next_tat_ns(tat, now, each)
    for first, since in enumerate(accepted):
        for last in range(first, len(accepted)):
            span = accepted[last] - since
            assert last - first + 1 <= burst + span // each


@given(st.integers(1, 20), st.integers(1, 5), st.lists(st.integers(0, 30), min_size=1, max_size=40))
def test_throttled_starts_are_in_order_and_at_most_the_rate(each: int, burst: int, gaps: list[int]) -> None:
    now = tat = 0
    dues: list[int] = []
    for gap in gaps:
        now += gap
        wait = wait_ns(tat, now, each, burst)
        tat = next_tat_ns(tat, now, each)
        dues.append(now + max(0, wait))
        assert backlog_of(wait, each) <= len(dues)
    assert dues == sorted(dues)
    for first, since in enumerate(dues):
        assert sum(due < since + each for due in dues[first:]) <= burst


def test_a_start_replaces_rules_by_name_and_null_removes_one() -> None:
    declared = parse_flow_control({"unique": {"key": "{{a}}"}, "expires_after_seconds": 5})
    merged = merge_flow_control(declared, {"unique": None, "rate_limit": {"max": 1, "per_seconds": 1}})
    assert (merged.unique, merged.expires_after_seconds) == (None, 5)
    assert merged.rate_limit is not None
    assert merge_flow_control(declared, None) is declared
    assert not merge_flow_control(None, None)


def test_rules_that_exclude_each_other_are_refused_after_the_merge() -> None:
    declared = parse_flow_control({"debounce": {"delay_seconds": 5}})
    with pytest.raises(InvalidFlowControl, match="debounce and throttle exclude each other"):
        merge_flow_control(declared, {"throttle": {"max": 1, "per_seconds": 1}})
    merged = merge_flow_control(declared, {"throttle": {"max": 1, "per_seconds": 1}, "debounce": None})
    assert merged.throttle is not None


def test_an_unknown_rule_is_refused_with_a_suggestion() -> None:
    with pytest.raises(InvalidFlowControl, match=r'flow_control\.uniqe: is not a rule.*"unique"'):
        parse_flow_control({"uniqe": {}})


def test_a_task_with_an_invalid_rule_cannot_be_registered() -> None:
    from runlane import App, Context

    app = App()
    with pytest.raises(ConfigurationError, match=r"rate_limit\.max"):

        @app.task("x", flow_control={"rate_limit": {"max": 0, "per_seconds": 1}})
        async def x(ctx: Context) -> None: ...


def test_resolved_rules_can_be_stored_as_json() -> None:
    rules: dict[str, Any] = {
        "unique": {"key": "{{k}}"},
        "rate_limit": {"max": 2, "per_seconds": 3},
        "batch": {"max_size": 2, "max_wait_seconds": 1},
        "max_backlog": {"max": 5},
        "expires_after_seconds": 9,
    }
    flow = start(rules, {"k": "x"}).flow
    assert flow is not None
    assert RunFlow.of_list(load_json(dump_json(flow))) == flow


def test_a_run_of_a_buffered_slot_keeps_its_rules_limits_and_webhook() -> None:
    rules: dict[str, Any] = {"unique": {"key": "{{k}}"}, "concurrency": [{"max_running": 2}]}
    run = start(rules, {"k": "x"}, webhook=RunWebhook("https://example.com/hook"))
    read = PreparedRun.of_text(PreparedRun(run).to_text()).run
    assert (read.flow, read.limits, read.webhook) == (run.flow, run.limits, run.webhook)


def test_concurrency_limits_have_a_key_of_tenant_target_and_rule() -> None:
    rules = {
        "concurrency": [{"key": "{{k}}", "max_running": 3}, {"key": "{{k}}-all", "max_running": 5}, {"limit": "gpu"}]
    }
    flow = start_flow(None, RunOptions(flow_control=rules), {"k": "c7"})
    assert flow is not None
    by_key, limits = resolve(flow, "acme", "sync")
    assert by_key is None
    assert [(limit.max_running, limit.label, limit.limit) for limit in limits] == [
        (3, "c7", None), (5, "c7-all", None), (None, "gpu", "gpu"),
    ]  # fmt: skip
    assert len({limit.key for limit in limits}) == 3
    assert all(limit.key.startswith("acme\x1f") for limit in limits)
    assert limits[2].key == resolve(flow, "acme", "other")[1][2].key


def test_keys_may_refer_to_tags_and_the_message() -> None:
    rules = FlowControl.model_validate({"unique": {"key": "{{tags.0}}-{{message}}"}})
    flow = start_flow(rules, RunOptions(tags=("eu",)), {}, "hello")
    assert flow is not None
    by_key, _ = resolve(flow, "default", "orchestration:x")
    assert by_key is not None
    assert by_key.unique is not None
    assert by_key.unique.label == "eu-hello"
