"""Requests for runs of tasks: check them and make the rows that the store accepts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from operator import itemgetter
from typing import Any, NamedTuple, TypedDict, cast

import orjson

from runlane.domain.flow_control import merge_flow_control, parse_flow_control
from runlane.domain.ids import is_whole_run_id, new_id
from runlane.domain.options import RunOptions
from runlane.domain.run import MAX_PRIORITY, MIN_PRIORITY, AfterOn, OnDead, RunHook
from runlane.domain.start_tags import MAX_FAIRNESS_KEY
from runlane.domain.tags import check_tags
from runlane.domain.task import Task, input_json
from runlane.domain.tenant import DEFAULT_TENANT, check_tenant_id, scoped_key
from runlane.domain.text import check_text, shown
from runlane.domain.webhook import check_url
from runlane.errors import InvalidRequest, RunNotFound
from runlane.observability.tracing import valid_parent
from runlane.store.queue.accept import NewRun
from runlane.store.webhooks.run_webhooks import RunWebhook
from runlane.submit.flow_control import StartFlow, resolve, rule_input, start_flow

MAX_KEY = 512
MAX_DELAY_SECONDS = 366 * 86400
# Runs that one run may start after.
MAX_PARENTS = 1000
_AFTER_ON = {choice.value: choice.value for choice in AfterOn}
WEBHOOK_SECRET_CHARACTERS = (8, 512)
_ON_DEAD = {choice.value: choice.value for choice in OnDead}


class SubmitRules(TypedDict):
    """The rules that a request for a definition is checked against, its tenant and its trace."""

    tasks: Collection[str]
    max_input_bytes: int
    max_losses: int
    tenant: str
    trace: str | None


class TaskRequest(NamedTuple):
    """A run of a task to accept. A tuple, because a bulk request creates thousands of them."""

    task: str
    input: Mapping[str, Any] | None = None
    options: RunOptions = RunOptions()


def task_run(
    task: Task,
    request: TaskRequest,
    max_input_bytes: int,
    max_losses: int,
    *,
    tenant: str = DEFAULT_TENANT,
    trace: str | None = None,
) -> NewRun:
    """Return a run of a task, after checking that the arguments fit its function."""
    given: Mapping[str, Any] = {} if request.input is None else request.input
    flow = None
    if task.flow_control is not None or request.options.flow_control is not None:
        text, flow = _by_rules(task, request, given, max_input_bytes)
    else:
        text = task.check(given, max_input_bytes)
    return new_run(
        request.task,
        text,
        request.options,
        lane=task.lane,
        max_attempts=task.max_attempts,
        max_losses=capped_losses(task.max_losses, max_losses),
        tenant=tenant,
        trace=trace,
        flow=flow,
    )


def _by_rules(
    task: Task, request: TaskRequest, given: Mapping[str, Any], max_input_bytes: int
) -> tuple[str, StartFlow | None]:
    """Return the input of a run with flow control. The function of a batch gets the inputs of its starts as `items`."""
    rules = merge_flow_control(task.flow_control, request.options.flow_control)
    if rules.batch is None:
        text = task.check(given, max_input_bytes)
        return text, start_flow(task.flow_control, request.options, orjson.loads(text), rules=rules)
    values: dict[str, Any] = orjson.loads(input_json(given, task.name))
    flow = start_flow(task.flow_control, request.options, values, rules=rules)
    if flow is None:
        return task.check(given, max_input_bytes), None
    # The function must accept a batch that consists of this start.
    task.check({"items": [{"start_id": flow.start_id, "input": values}]}, max_input_bytes)
    return rule_input(flow, orjson.dumps(values).decode())


def capped_losses(requested: int | None, most: int) -> int:
    """Return the losses that a run may have: the requested number within the operator's bound, which is the default."""
    return most if requested is None else min(requested, most)


def new_run(
    target: str,
    text: str,
    options: RunOptions,
    *,
    lane: str,
    max_attempts: int,
    max_losses: int,
    tenant: str,
    trace: str | None,
    plan: str | None = None,
    mark: Any = None,
    flow: StartFlow | None = None,
) -> NewRun:
    """Return a run whose input is this JSON, after checking that its options are within their bounds.

    `mark` is compared, besides target, input and options, with other requests of the same idempotency key.
    """
    idempotency_key, priority, ordering_key, on_dead, delay_seconds, hold = options[:6]
    check_priority(priority)
    delay_us = _delay_us(delay_seconds)
    if hold not in (True, False):
        raise InvalidRequest(f"hold={shown(hold)} must be true or false.")
    if ordering_key is not None:
        check_text(ordering_key, "The ordering key", MAX_KEY)
    rare = _rare_fields(options)
    by_key, limits = (None, ()) if flow is None else resolve(flow, tenant, target)
    fingerprint = ""
    if idempotency_key is not None:
        check_text(idempotency_key, "The idempotency key", MAX_KEY)
        given = orjson.loads(text) if flow is None or not flow.item else flow.values
        # Sorted and in stored units, so that equal requests have equal fingerprints however they are written.
        body = [target, given, priority, ordering_key, delay_us, bool(hold), _on_dead(on_dead)]
        body += [] if mark is None else [mark]
        body += _compared(rare, options)
        fingerprint = sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()
    return NewRun(
        id=new_id("run"),
        target=target,
        lane=lane,
        input=text,
        priority=priority,
        max_attempts=max_attempts,
        max_losses=max_losses,
        delay_us=delay_us,
        hold=bool(hold),
        ordering_key=None if ordering_key is None else scoped_key(tenant, ordering_key),
        on_dead=_on_dead(on_dead),
        idempotency_key=None if idempotency_key is None else scoped_key(tenant, idempotency_key),
        fingerprint=fingerprint,
        tenant=check_tenant_id(tenant),
        trace=None if trace is None else _trace(trace),
        plan=plan,
        flow=by_key,
        limits=limits,
        **rare,
    )


# The options that are read elsewhere. All others are rare, and a request without them is checked by one comparison.
_READ_ELSEWHERE = {*RunOptions._fields[:6], "webhook_url", "session_id", "flow_control"}
_rare = itemgetter(*(number for number, name in enumerate(RunOptions._fields) if name not in _READ_ELSEWHERE))
_NO_RARE = _rare(RunOptions())


def _rare_fields(options: RunOptions) -> dict[str, Any]:
    """Return the fields of a run that few requests set, after checking them."""
    if options.webhook_url is None and _rare(options) == _NO_RARE:
        return {}
    if options.fairness_key is not None:
        check_text(options.fairness_key, "The fairness key", MAX_FAIRNESS_KEY)
    parents, after_on = _dependencies(options.after, options.after_on)
    webhook = _webhook(options)
    return {
        "fairness_key": options.fairness_key,
        "after": parents,
        "after_on": after_on,
        "tags": check_tags(options.tags),
        "hooks": 0 if webhook is None else RunHook.WEBHOOK.value,
        "webhook": webhook,
    }


def _compared(rare: Mapping[str, Any], options: RunOptions) -> list[Any]:
    """Return the other values that requests with the same idempotency key must have in common."""
    found: list[Any] = []
    if rare:
        webhook: RunWebhook | None = rare["webhook"]
        url = None if webhook is None else webhook.url
        found.append([rare["fairness_key"], sorted(rare["after"]), rare["after_on"], sorted(rare["tags"]), url])
    if options.flow_control is not None:
        found.append(parse_flow_control(options.flow_control).model_dump(mode="json", exclude_unset=True))
    return found


def _dependencies(after: Sequence[str], after_on: str) -> tuple[tuple[str, ...], str]:
    if not isinstance(cast("object", after_on), str) or after_on not in _AFTER_ON:
        raise InvalidRequest(f"after_on={after_on!r} must be one of {', '.join(_AFTER_ON)}.")
    if not isinstance(cast("object", after), (list, tuple)) or not all(
        isinstance(cast("object", parent), str) for parent in after
    ):
        raise InvalidRequest(f"after={after!r} must be a list of run ids."[:500])
    parents = tuple(dict.fromkeys(after))
    if len(parents) > MAX_PARENTS:
        raise InvalidRequest(
            f"after names {len(parents)} runs; at most {MAX_PARENTS} are allowed. Let another run wait for some."
        )
    if not parents and after_on != AfterOn.SUCCESS:
        raise InvalidRequest(f'after_on="{after_on}" has no effect without after. Name the runs in after.')
    for parent in parents:
        if not is_whole_run_id(parent):
            raise RunNotFound(parent[:MAX_KEY])
    return parents, _AFTER_ON[after_on]


def _webhook(options: RunOptions) -> RunWebhook | None:
    url, secret = options.webhook_url, options.webhook_secret
    if url is None:
        if secret is not None:
            raise InvalidRequest("webhook_secret is given without webhook_url. Give both, or none.")
        return None
    least, most = WEBHOOK_SECRET_CHARACTERS
    if secret is not None and not (least <= len(secret) <= most and secret.isascii() and secret.isprintable()):
        raise InvalidRequest(f"webhook_secret must have {least} to {most} printable ASCII characters.")
    return RunWebhook(check_url(url), secret)


def _delay_us(seconds: float) -> int:
    if not isinstance(cast("object", seconds), (int, float)) or not 0 <= seconds <= MAX_DELAY_SECONDS:
        raise InvalidRequest(f"delay_seconds={shown(seconds)} must be between 0 and {MAX_DELAY_SECONDS} (a year).")
    return int(seconds * 1_000_000)


def _trace(traceparent: str) -> str:
    checked = valid_parent(traceparent) if isinstance(cast("object", traceparent), str) else None
    if checked is None:
        raise InvalidRequest(
            f"trace={shown(traceparent)} is not a W3C traceparent. Pass one such as "
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01, or leave it out."
        )
    return checked


def check_priority(priority: int) -> None:
    """Raise InvalidRequest unless it is a whole number within its bounds."""
    if isinstance(priority, bool) or not isinstance(cast("object", priority), int):
        raise InvalidRequest(f"priority={priority!r} must be a whole number.")
    if not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidRequest(f"priority={priority} must be between {MIN_PRIORITY} and {MAX_PRIORITY}.")


def _on_dead(value: str) -> str:
    if not isinstance(cast("object", value), str) or value not in _ON_DEAD:
        raise InvalidRequest(f'on_dead={value!r} must be "skip" or "block".')
    return _ON_DEAD[value]
