"""Redact the secrets that an attempt has read from what it stores.

Stored JSON is of two kinds. In data of users every string, number and key that is a secret is replaced. In JSON that
Runlane writes itself, field names, numbers and values of a fixed vocabulary have a meaning for readers and for the next
attempt: they stay unchanged, even if they equal a tenant's secret.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from runlane.domain.events import Delta, EventType
from runlane.redaction import Redactor
from runlane.store.orchestration.calls import CallKind, CallRecord
from runlane.store.orchestration.steps import StepOutcome, StepRecord
from runlane.store.queue.record import Finish, RecordEntry
from runlane.store.threads.graph_writes import GraphWrites

# Returns a value without secrets.
_Clean = Callable[[Any, Redactor], Any]

# Paths, ids of steps and answers, and values that readers and the next attempt compare; they contain no data.
_FIXED: Final = frozenset(
    {
        "answer",
        "answerable_by",
        "code",
        "decision",
        "orch_step_id",
        "path",
        "status",
        "step_type",
        "target_step_id",
        "waiting_for",
    }
)

_ABOUT_CALLS: Final = frozenset(
    {"arguments", "call_id", "error", "idempotency_key", "limit_usd", "scope", "spent_usd", "tool_name"}
)


def redacted(entry: RecordEntry, redactor: Redactor) -> RecordEntry:
    """Return the entry without the secrets that its attempt has used."""
    if redactor.is_empty or not any(map(redactor.occurs, _texts(entry))):
        return entry

    def clean(text: str, shape: _Clean) -> str:
        return _clean_text(text, shape, redactor)

    def maybe(text: str | None, shape: _Clean) -> str | None:
        return None if text is None else clean(text, shape)

    def clean_step(step: StepRecord) -> StepRecord:
        output = _cursor if step.outcome is StepOutcome.SNAPSHOT else _data
        return replace(
            step, output=maybe(step.output, output), error=maybe(step.error, _own), input=maybe(step.input, _table)
        )

    def clean_call(call: CallRecord) -> CallRecord:
        return replace(call, payload=clean(call.payload, _CALLS.get(call.kind, _own)))

    def clean_finish(finish: Finish) -> Finish:
        return replace(
            finish,
            result=maybe(finish.result, _data),
            error=maybe(finish.error, _own),
            state=maybe(finish.state, _data),
        )

    def clean_graph(graph: GraphWrites) -> GraphWrites:
        end = graph.thread
        if end is None:
            return graph
        cleaned = replace(end, values=maybe(end.values, _data), interrupts=maybe(end.interrupts, _data))
        return replace(graph, thread=cleaned)

    note = entry.progress_note
    return replace(
        entry,
        events=[(kind, clean(data, _EVENTS.get(kind, _event))) for kind, data in entry.events],
        checkpoint=maybe(entry.checkpoint, _data),
        progress_note=None if note is None else redactor.clean(note),
        steps=[clean_step(step) for step in entry.steps],
        calls=[clean_call(call) for call in entry.calls],
        waits=[replace(wait, request=clean(wait.request, _question)) for wait in entry.waits],
        finish=None if entry.finish is None else clean_finish(entry.finish),
        graph=None if entry.graph is None else clean_graph(entry.graph),
    )


def redacted_delta(delta: Delta, redactor: Redactor) -> Delta:
    """Return the delta without the secrets that its attempt has used."""
    if redactor.is_empty:
        return delta
    return delta._replace(data=_clean_text(delta.data, _own, redactor))


def _clean_text(text: str, shape: _Clean, redactor: Redactor) -> str:
    if not redactor.occurs(text):
        return text
    return json.dumps(shape(json.loads(text), redactor), ensure_ascii=False, separators=(",", ":"))


def _texts(entry: RecordEntry) -> Iterator[str]:
    for _, data in entry.events:
        yield data
    for step in entry.steps:
        yield from filter(None, (step.output, step.error, step.input))
    for call in entry.calls:
        yield call.payload
    for wait in entry.waits:
        yield wait.request
    yield from filter(None, (entry.checkpoint, entry.progress_note))
    if (finish := entry.finish) is not None:
        yield from filter(None, (finish.result, finish.error, finish.state))
    if entry.graph is not None and (end := entry.graph.thread) is not None:
        yield from filter(None, (end.values, end.interrupts))


# --- shapes


def _data(value: Any, redactor: Redactor) -> Any:
    """Redact everything in data of users."""
    return redactor.clean_value(value)


def _unchanged(value: Any, _redactor: Redactor) -> Any:
    return value


def _own(value: Any, redactor: Redactor) -> Any:
    """Redact a string, a number, or an object with known fields. What is nested in its fields is data."""
    match value:
        case str():
            return redactor.clean(value)
        case dict():
            return _object({})(value, redactor)
        case list():
            return _data(value, redactor)
        case _:
            return value


def _field(value: Any, redactor: Redactor) -> Any:
    """Redact the value of a known field: a fixed string or number stays, data is redacted."""
    return _data(value, redactor) if isinstance(value, (dict, list)) else _own(value, redactor)


def _object(fields: Mapping[str, _Clean]) -> _Clean:
    """Return a shape for an object with known fields; some of them have a shape of their own."""

    def clean(value: Any, redactor: Redactor) -> Any:
        if not isinstance(value, dict):
            return _own(value, redactor)
        cleaned: dict[str, Any] = {}
        for name, inner in cast("dict[str, Any]", value).items():
            shape = fields.get(name)
            if shape is None:
                shape = _unchanged if name in _FIXED else _field
            cleaned[name] = shape(inner, redactor)
        return cleaned

    return clean


def _each(shape: _Clean) -> _Clean:
    """Return a shape for a list of such values."""

    def clean(value: Any, redactor: Redactor) -> Any:
        if not isinstance(value, list):
            return _own(value, redactor)
        return [shape(inner, redactor) for inner in cast("list[Any]", value)]

    return clean


def _table(value: Any, redactor: Redactor) -> Any:
    """Redact data by names from a definition: input keys and keys of the state."""
    if not isinstance(value, dict):
        return _data(value, redactor)
    return {name: _data(inner, redactor) for name, inner in cast("dict[str, Any]", value).items()}


def _texts_only(value: Any, redactor: Redactor) -> Any:
    """Redact only the strings of a schema, since its keys and numbers have a meaning."""
    match value:
        case dict():
            table = cast("dict[str, Any]", value)
            return {key: _texts_only(inner, redactor) for key, inner in table.items()}
        case list():
            return [_texts_only(inner, redactor) for inner in cast("list[Any]", value)]
        case str():
            return redactor.clean(value)
        case _:
            return value


def _cursor(value: Any, redactor: Redactor) -> Any:
    """Redact the cursor of the step machine: a tree of known fields, some of which contain data of users."""
    match value:
        case dict():
            table = cast("dict[str, Any]", value)
            return {name: _CURSOR.get(name, _cursor)(inner, redactor) for name, inner in table.items()}
        case list():
            return [_cursor(inner, redactor) for inner in cast("list[Any]", value)]
        case _:
            return value


def _sized(value: Any, redactor: Redactor) -> Any:
    """Redact data by names, each with its size."""
    if not isinstance(value, dict):
        return value
    table = cast("dict[str, list[Any]]", value)
    return {name: [_data(pair[0], redactor), *pair[1:]] for name, pair in table.items()}


def _context(value: Any, redactor: Redactor) -> Any:
    """Redact what a person is shown: data of the run, or the description of a call or a cap."""
    if not isinstance(value, dict):
        return _data(value, redactor)
    cleaned: dict[str, Any] = {}
    for name, inner in cast("dict[str, Any]", value).items():
        if name in _ABOUT_CALLS:
            cleaned[name] = _field(inner, redactor)
        else:
            cleaned[redactor.clean(name)] = _data(inner, redactor)
    return cleaned


def _raw(value: Any, redactor: Redactor) -> Any:
    """Return a provider's answer, or None if it has a secret: its signatures would not match redacted text."""
    return None if isinstance(value, str) and redactor.occurs(value) else value


# Answers are checked by the names, types and options of a form.
_form: Final = _each(_object({"name": _unchanged, "options": _unchanged, "type": _unchanged}))
_question: Final = _object({"fields": _form, "context": _context, "arguments_schema": _texts_only})
_FIELDS: Final[Mapping[str, _Clean]] = {
    "agent_context": _context,
    "args": _data,
    "error": _own,
    "final_state": _data,
    "response": _data,
    "result": _data,
    "tool_calls": _each(_own),
    "value": _data,
}
_event: Final = _object(_FIELDS)
# Fields of a log line are data of the user; those of a question are a form that Runlane writes.
_EVENTS: Final[Mapping[str, _Clean]] = {
    EventType.LOG.value: _object({**_FIELDS, "fields": _data}),
    "human_input_required": _object({**_FIELDS, "fields": _form}),
}
_CALLS: Final[Mapping[CallKind, _Clean]] = {
    CallKind.MODEL: _object({"calls": _each(_own), "raw": _raw}),
    CallKind.TOOL: _object({"value": _data}),
    CallKind.DISCOVERY: _each(_object({"input_schema": _texts_only})),
}
_CURSOR: Final[Mapping[str, _Clean]] = {
    "entries": _table,
    "error": _own,
    "items": _data,
    "last": _data,
    "output": _data,
    "outputs": _sized,
    "response": _data,
    "values": _table,
}
