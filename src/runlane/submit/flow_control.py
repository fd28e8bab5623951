"""The flow control of a start: the declared rules and those of the request, with keys made of its input and tags."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from runlane.domain.concurrency import ConcurrencyLimit, ConcurrencyRule, shared_limit_key
from runlane.domain.flow_control import (
    DELAYS_AT_MOST,
    MAX_BATCH_BYTES,
    MAX_FLOW_KEY,
    BacklogRule,
    BatchRule,
    DebounceRule,
    FlowControl,
    RateLimitRule,
    ThrottleRule,
    UniqueRule,
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
from runlane.templates.template import RenderBudget, look_up, placeholders, render, text_of

# The input of a batch until its items are known; see `store/queue/flow_statements.py`.
EMPTY_ITEMS: dict[str, list[Any]] = {"items": []}
_BUDGET_BYTES = 4 * MAX_FLOW_KEY


class StartFlow(NamedTuple):
    """The rules of a start, and the values that their keys may refer to. `start_id` and `item` are for batches."""

    rules: FlowControl
    values: Mapping[str, Any]
    start_id: str = ""
    item: str = ""


def start_flow(
    declared: FlowControl | None,
    options: RunOptions,
    given: Mapping[str, Any],
    message: str | None = None,
    *,
    rules: FlowControl | None = None,
) -> StartFlow | None:
    """Return the rules of a start with this input, or None without any. `rules` are the merged ones, if known."""
    if declared is None and options.flow_control is None:
        return None
    if rules is None:
        rules = merge_flow_control(declared, options.flow_control)
    if rules is not declared and not rules:
        return None
    _refuse_combinations(rules, options)
    values: dict[str, Any] = {"tags": options.tags, **given}
    if message is not None:
        values.setdefault("message", message)
    flow = StartFlow(rules, values)
    return flow if rules.batch is None else flow._replace(start_id=new_id("start"))


def _refuse_combinations(rules: FlowControl, options: RunOptions) -> None:
    if rules.debounce is None and rules.batch is None and rules.throttle is None:
        return
    timed = "debounce" if rules.debounce is not None else "batch" if rules.batch is not None else "throttle"
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
    rules = flow.rules
    if rules.has_only_limits:
        return None, keys.limits()
    run = RunFlow(
        None if rules.unique is None else _unique(rules.unique, keys),
        None if rules.rate_limit is None else _rate(rules.rate_limit, keys),
        None if rules.throttle is None else _throttle(rules.throttle, keys),
        None if rules.debounce is None else _debounce(rules.debounce, keys),
        None if rules.batch is None else _batch(rules.batch, keys, flow),
        None if rules.max_backlog is None else _backlog(rules.max_backlog, keys),
        _micros(rules.expires_after_seconds),
        _micros(rules.idempotency_seconds),
    )
    return run if run != _NO_RULES else None, keys.limits() if rules.concurrency else ()


_NO_RULES = RunFlow()


def _unique(rule: UniqueRule, keys: _Keys) -> UniqueKey:
    return UniqueKey(*keys.of(FlowRule.UNIQUE, rule.key), rule.on_conflict)


def _rate(rule: RateLimitRule, keys: _Keys) -> RateKey:
    each_ns = interval_ns(rule.max, rule.per_seconds)
    return RateKey(*keys.of(FlowRule.RATE_LIMIT, rule.key), each_ns, rule.burst or rule.max, rule.on_limit)


def _throttle(rule: ThrottleRule, keys: _Keys) -> ThrottleKey:
    each_ns = interval_ns(rule.max, rule.per_seconds)
    return ThrottleKey(*keys.of(FlowRule.THROTTLE, rule.key), each_ns, rule.burst, rule.max_backlog)


def _backlog(rule: BacklogRule, keys: _Keys) -> BacklogKey:
    return BacklogKey(*keys.of(FlowRule.MAX_BACKLOG, rule.key), rule.max)


def _debounce(rule: DebounceRule, keys: _Keys) -> DebounceKey:
    most = rule.max_delay_seconds or rule.delay_seconds * DELAYS_AT_MOST
    delay_us, most_us = int(rule.delay_seconds * SECOND_US), int(most * SECOND_US)
    return DebounceKey(*keys.of(FlowRule.DEBOUNCE, rule.key), delay_us, most_us, rule.mode == "leading")


def _batch(rule: BatchRule, keys: _Keys, flow: StartFlow) -> BatchKey:
    wait_us = int(rule.max_wait_seconds * SECOND_US)
    return BatchKey(*keys.of(FlowRule.BATCH, rule.key), rule.max_size, wait_us, flow.start_id, flow.item)


def _micros(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * SECOND_US)


@lru_cache(maxsize=1024)
def _only_placeholder(template: str) -> str | None:
    """Return the path of a template that is one placeholder, the common case, which needs no rendering."""
    try:
        paths = placeholders(template)
    except TemplateError:
        return None
    return paths[0] if len(paths) == 1 and template == f"{{{{{paths[0]}}}}}" else None


class _Keys:
    """Renders the keys of one start."""

    def __init__(self, flow: StartFlow, tenant: str, target: str) -> None:
        self._flow = flow
        self._tenant = tenant
        self._target = target

    def of(self, rule: FlowRule, template: str) -> tuple[str, str]:
        """Return the key of a rule as it is stored, and as people read it."""
        label = self._rendered(template, rule)
        return scoped_flow_key(self._tenant, rule, self._target, label), label

    def limits(self) -> tuple[ConcurrencyLimit, ...]:
        """Return the concurrency limits."""
        found = self._flow.rules.concurrency or ()
        return tuple([self._limit(position, given.rule) for position, given in enumerate(found)])

    def _limit(self, position: int, rule: ConcurrencyRule) -> ConcurrencyLimit:
        if rule.limit is not None:
            return ConcurrencyLimit(
                shared_limit_key(self._tenant, rule.limit), None, rule.limit, rule.limit, rule.strategy
            )
        label = self._rendered(rule.key, FlowRule.CONCURRENCY, position)
        # The template is part of the key, because two limits of a target may have equal values.
        key = scoped_flow_key(self._tenant, FlowRule.CONCURRENCY, self._target, f"{rule.key}\x1f{label}")
        return ConcurrencyLimit(key, rule.max_running, label or self._target, None, rule.strategy)

    def _rendered(self, template: str, *location: str | int) -> str:
        """Return a key; an error names the location of its rule."""
        path = _only_placeholder(template)
        try:
            if path is not None:
                text = text_of(look_up(path, self._flow.values))
            else:
                text = render(template, self._flow.values, RenderBudget(_BUDGET_BYTES, "bytes of a key"))
            return check_text(text, "The key", MAX_FLOW_KEY) if text else text
        except UnknownPlaceholder as error:
            known = ", ".join(error.known[:20]) or "none"
            raise InvalidFlowControl(
                {
                    _where(
                        location
                    ): f'the input has no "{error.missing}", which the key {template!r} refers to. Give it in the '
                    f"input, or change the key. Known: {known}."
                }
            ) from None
        except (TemplateError, InvalidInput) as error:
            raise InvalidFlowControl({_where(location): str(error)}) from None


def _where(location: Iterable[str | int]) -> str:
    return ".".join(["flow_control", *map(str, location), "key"])
