"""The flow control of a start: the declared rules and those of the request, with keys made of its input and tags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from runlane.domain.concurrency import ConcurrencyLimit, ConcurrencyRule
from runlane.domain.flow_control import (
    DELAYS_AT_MOST,
    MAX_BATCH_BYTES,
    MAX_FLOW_KEY,
    BatchRule,
    DebounceRule,
    FlowControl,
    merge_flow_control,
)
from runlane.domain.flow_keys import (
    SECOND_US,
    BacklogKey,
    BatchKey,
    DebounceKey,
    FlowRule,
    RateKey,
    RunFlow,
    ThrottleKey,
    UniqueKey,
    interval_ns,
    scoped_flow_key,
)
from runlane.domain.ids import new_id
from runlane.domain.options import RunOptions
from runlane.domain.text import check_text
from runlane.errors import InputTooLarge, InvalidFlowControl, InvalidInput, TemplateError, UnknownPlaceholder
from runlane.templates.template import RenderBudget, render

# The input of a batch until its items are known; see `store/queue/flow_statements.py`.
EMPTY_ITEMS: dict[str, list[Any]] = {"items": []}
_BUDGET_BYTES = 4 * MAX_FLOW_KEY


class StartFlow(NamedTuple):
    """The rules of a start, and what their keys may refer to. `start_id` and `item` are for batches."""

    rules: FlowControl
    values: Mapping[str, Any]
    start_id: str = ""
    item: str = ""


def start_flow(
    declared: FlowControl | None, options: RunOptions, given: Mapping[str, Any], message: str | None = None
) -> StartFlow | None:
    """Return the rules of a start with this input, or None without any."""
    if declared is None and options.flow_control is None:
        return None
    rules = merge_flow_control(declared, options.flow_control)
    if not rules:
        return None
    _refuse_combinations(rules, options)
    values: dict[str, Any] = {"tags": list(options.tags)}
    if message is not None:
        values["message"] = message
    flow = StartFlow(rules, values | dict(given))
    return flow if rules.batch is None else flow._replace(start_id=new_id("start"))


def _refuse_combinations(rules: FlowControl, options: RunOptions) -> None:
    timed = next((name for name in ("debounce", "batch", "throttle") if getattr(rules, name) is not None), None)
    if timed is None:
        return
    refused = ["delay_seconds"]
    if timed != "throttle":
        refused.append("after")
    if timed == "batch":
        refused += ["hold", "ordering_key"]
    for name in refused:
        if getattr(options, name):
            raise InvalidFlowControl(
                {name: f"cannot be combined with {timed}, which decides when the run starts. Leave one of them out."}
            )


def batch_item(flow: StartFlow, item: Mapping[str, Any]) -> StartFlow:
    """Return the flow with the JSON of what this start adds to a batch."""
    text = orjson.dumps(item)
    if len(text) > MAX_BATCH_BYTES:
        raise InputTooLarge(
            f"The input has {len(text)} bytes as JSON; a batch has at most {MAX_BATCH_BYTES}. Store the data elsewhere "
            "and pass a reference."
        )
    return flow._replace(item=text.decode())


def rule_input(flow: StartFlow, text: str) -> tuple[str, StartFlow]:
    """Return the input of a run of a task with these rules. A batch gets the inputs of its starts as `items`."""
    if flow.rules.batch is None:
        return text, flow
    item = {"start_id": flow.start_id, "input": orjson.loads(text)}
    return orjson.dumps(EMPTY_ITEMS).decode(), batch_item(flow, item)


def resolve(flow: StartFlow, tenant: str, target: str) -> tuple[RunFlow | None, tuple[ConcurrencyLimit, ...]]:
    """Return the rules of the run with their keys, and its concurrency limits."""
    keys = _Keys(flow, tenant, target)
    rules, run = flow.rules, RunFlow()
    if rules.unique is not None:
        run = run._replace(unique=UniqueKey(*keys.of(FlowRule.UNIQUE, rules.unique.key), rules.unique.on_conflict))
    if (rate := rules.rate_limit) is not None:
        each_ns = interval_ns(rate.max, rate.per_seconds)
        key = keys.of(FlowRule.RATE_LIMIT, rate.key)
        run = run._replace(rate_limit=RateKey(*key, each_ns, rate.burst or rate.max, rate.on_limit))
    if (throttle := rules.throttle) is not None:
        each_ns = interval_ns(throttle.max, throttle.per_seconds)
        key = keys.of(FlowRule.THROTTLE, throttle.key)
        run = run._replace(throttle=ThrottleKey(*key, each_ns, throttle.burst, throttle.max_backlog))
    if rules.debounce is not None:
        run = run._replace(debounce=_debounce(rules.debounce, keys))
    if rules.batch is not None:
        run = run._replace(batch=_batch(rules.batch, keys, flow))
    if rules.max_backlog is not None:
        key = keys.of(FlowRule.MAX_BACKLOG, rules.max_backlog.key)
        run = run._replace(max_backlog=BacklogKey(*key, rules.max_backlog.max))
    run = run._replace(
        expires_us=_micros(rules.expires_after_seconds), idempotency_us=_micros(rules.idempotency_seconds)
    )
    return run if run != RunFlow() else None, keys.limits()


def _debounce(rule: DebounceRule, keys: _Keys) -> DebounceKey:
    most = rule.max_delay_seconds or rule.delay_seconds * DELAYS_AT_MOST
    delay_us, most_us = int(rule.delay_seconds * SECOND_US), int(most * SECOND_US)
    return DebounceKey(*keys.of(FlowRule.DEBOUNCE, rule.key), delay_us, most_us, rule.mode == "leading")


def _batch(rule: BatchRule, keys: _Keys, flow: StartFlow) -> BatchKey:
    wait_us = int(rule.max_wait_seconds * SECOND_US)
    return BatchKey(*keys.of(FlowRule.BATCH, rule.key), rule.max_size, wait_us, flow.start_id, flow.item)


def _micros(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * SECOND_US)


class _Keys:
    """Renders the keys of one start."""

    def __init__(self, flow: StartFlow, tenant: str, target: str) -> None:
        self._flow = flow
        self._tenant = tenant
        self._target = target

    def of(self, rule: FlowRule, template: str) -> tuple[str, str]:
        """Return the key of a rule as it is stored, and as people read it."""
        label = self._rendered(f"{rule}.key", template)
        return scoped_flow_key(self._tenant, rule, self._target, label), label

    def limits(self) -> tuple[ConcurrencyLimit, ...]:
        """Return the concurrency limits."""
        return tuple(
            self._limit(position, given.rule) for position, given in enumerate(self._flow.rules.concurrency or ())
        )

    def _limit(self, position: int, rule: ConcurrencyRule) -> ConcurrencyLimit:
        label = self._rendered(f"concurrency.{position}.key", rule.key)
        if rule.limit is not None:
            # Every target that names the limit shares it; with a key, each key has a share of its own.
            key = scoped_flow_key(self._tenant, FlowRule.CONCURRENCY, f"limit:{rule.limit}", label)
            return ConcurrencyLimit(key, None, label or rule.limit, rule.limit, rule.strategy)
        # The template is part of the key, because two limits of a target may have equal values.
        key = scoped_flow_key(self._tenant, FlowRule.CONCURRENCY, self._target, f"{rule.key}\x1f{label}")
        return ConcurrencyLimit(key, rule.max_running, label or self._target, None, rule.strategy)

    def _rendered(self, field: str, template: str) -> str:
        where = f"flow_control.{field}"
        try:
            text = render(template, self._flow.values, RenderBudget(_BUDGET_BYTES, "bytes of a key"))
            return check_text(text, "The key", MAX_FLOW_KEY) if text else text
        except UnknownPlaceholder as error:
            known = ", ".join(error.known[:20]) or "none"
            raise InvalidFlowControl(
                {
                    where: f'the input has no "{error.missing}", which the key {template!r} refers to. Give it in the '
                    f"input, or change the key. Known: {known}."
                }
            ) from None
        except (TemplateError, InvalidInput) as error:
            raise InvalidFlowControl({where: str(error)}) from None
