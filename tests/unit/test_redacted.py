"""What an attempt stores, without the secrets it used: data of users is cleaned, Runlane's own fields never are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from runlane.domain.events import Delta, EventType
from runlane.domain.run import Status
from runlane.redaction import REDACTED, Redactor, is_hidable
from runlane.store.orchestration.calls import CallKind, CallRecord
from runlane.store.orchestration.steps import StepOutcome, StepRecord
from runlane.store.orchestration.waits import NewWait
from runlane.store.queue.record import AttemptOutcome, Finish, RecordEntry
from runlane.store.queue.redaction import redacted, redacted_delta

DOCS = Path(__file__).parents[2] / "docs/reference/events.md"
SECRET = "canary-0123456789"


def documented() -> dict[str, list[str]]:
    """Each type of event with all names in its row of the reference."""
    found: dict[str, list[str]] = {}
    for line in DOCS.read_text().splitlines():
        if line.startswith("| `") and line.count("|") >= 4:
            cells = line.split("|")
            names = re.findall(r"`([a-z_]+)`", "|".join(cells[2:]))
            for kind in re.findall(r"`([a-z_]+)`", cells[1]):
                found[kind] = names
    return found


EVENTS = documented()
FIELDS = sorted({name for names in EVENTS.values() for name in names} | {"orch_step_id", "step_name", "traceback"})
# What has fields of Runlane's own inside.
CONTEXT = ("tool_name", "call_id", "arguments", "idempotency_key", "limit_usd", "spent_usd", "scope", "error")
LISTS = ("fields", "tool_calls")


def entry(**parts: Any) -> RecordEntry:
    return RecordEntry("run_1", 1, "default", **parts)


def test_the_reference_was_understood() -> None:
    assert {*EventType, "model_response", "human_input_required", "tool_result", "final"} <= EVENTS.keys()
    assert {"duration_seconds", "final_state", "tool_calls", "agent_context"} <= set(FIELDS)


@pytest.mark.parametrize("kind", sorted(EVENTS))
def test_names_numbers_and_paths_of_an_event_stay_whatever_is_secret(kind: str) -> None:
    """A tenant that stores words of Runlane's own as secrets, and uses them, still has events that can be read."""
    nested = {"type": "ValueError", "message": "m", "traceback": "t", "tool_name": "n", "description": "d"}
    data: dict[str, Any] = {name: f"a {name}" for name in FIELDS}
    data |= {name: [nested] for name in LISTS} | {"cost_usd": 0.12345678, "turn": 1, "error": nested}
    data["agent_context"] = dict.fromkeys(CONTEXT, 1)
    data |= {"path": "approved", "orch_step_id": "approved", "status": "completed", "code": "cost_limit"}
    if kind == EventType.LOG:
        data["fields"] = {"mine": 1}
    known = Redactor([name for name in FIELDS if is_hidable(name)] + ["0.12345678", "approved", "completed"])
    stored = redacted(entry(events=[(kind, json.dumps(data))]), known)
    ((kind_after, text),) = stored.events
    after = json.loads(text)
    assert kind_after == kind
    assert after.keys() == data.keys()
    for name in ("path", "orch_step_id", "status", "code", "cost_usd", "turn"):
        assert after[name] == data[name]
    assert after["error"].keys() == nested.keys()
    assert after["agent_context"] == data["agent_context"]
    if kind == "human_input_required":
        assert after["fields"][0].keys() == nested.keys()
    if kind == "model_response":
        assert after["tool_calls"][0].keys() == nested.keys()
    # Strings are still cleaned.
    assert after["duration_seconds"] == f"a {REDACTED}"


def test_data_of_users_is_cleaned_with_its_keys_and_numbers() -> None:
    known = Redactor([SECRET, "12345678"])
    data = {"args": {SECRET: SECRET, "n": 12345678}, "final_state": {"a": {SECRET: 1}}, "response": 12345678}
    clean = {"args": {REDACTED: REDACTED, "n": REDACTED}, "final_state": {"a": {REDACTED: 1}}, "response": REDACTED}
    stored = redacted(entry(events=[("final", json.dumps(data))]), known)
    assert json.loads(stored.events[0][1]) == clean
    log = {"message": SECRET, "fields": {SECRET: [SECRET]}}
    stored = redacted(entry(events=[("log", json.dumps(log))]), known)
    assert json.loads(stored.events[0][1]) == {"message": REDACTED, "fields": {REDACTED: [REDACTED]}}


def test_a_journal_can_be_read_again_whatever_is_secret() -> None:
    known = Redactor(["thinking", "tokens_in", "arguments", "input_schema", "description", "properties", SECRET])
    reply = {
        "text": f"thinking {SECRET}", "thinking": "", "calls": [{"id": "1", "name": "n", "arguments": {SECRET: 1}}],
        "tokens_in": 1, "tokens_out": 2, "cost_usd": None, "model": "m", "raw": f'[{{"thinking": "{SECRET}"}}]',
    }  # fmt: skip
    offer = {"name": "n", "description": SECRET, "input_schema": {"properties": {"description": {"title": SECRET}}}}
    calls = [
        CallRecord("a", "0/model/0", CallKind.MODEL, json.dumps(reply)),
        CallRecord("a", "0/tool/0/1", CallKind.TOOL, json.dumps({"value": {SECRET: 1}, "failed": False})),
        CallRecord("a", "0/tools/s", CallKind.DISCOVERY, json.dumps([offer])),
        CallRecord("a", "0/approve/0/1", CallKind.ANSWER, json.dumps({"decision": "call_again", "reason": SECRET})),
    ]
    model, tool, offers, answer = (json.loads(call.payload) for call in redacted(entry(calls=calls), known).calls)
    assert model == reply | {
        "text": f"{REDACTED} {REDACTED}", "calls": [{"id": "1", "name": "n", "arguments": {REDACTED: 1}}], "raw": None,
    }  # fmt: skip
    assert tool == {"value": {REDACTED: 1}, "failed": False}
    assert offers == [
        offer | {"description": REDACTED, "input_schema": {"properties": {"description": {"title": REDACTED}}}}
    ]
    assert answer == {"decision": "call_again", "reason": REDACTED}


def test_a_snapshot_keeps_its_form() -> None:
    known = Redactor(["orchestration", "position", "collected", "12345678", SECRET])
    line: dict[str, Any] = {
        "position": "collected",
        "visits": {"collected": 1},
        "output": {SECRET: 12345678},
        "outputs": {"k": [SECRET, 12345678]},
    }
    cursor: dict[str, Any] = {
        "version": 1, "serial": 12345678, "tokens": 12345678, "agents": {"position": "orchestration"},
        "root": {
            "orchestration": "position", "cost": 12345678, "line": line,
            "state": {"values": {"position": {SECRET: SECRET}}, "sizes": {"position": 12345678}},
        },
    }  # fmt: skip
    step = StepRecord("", 1, "", "snapshot", StepOutcome.SNAPSHOT, output=json.dumps(cursor))
    (stored,) = redacted(entry(steps=[step]), known).steps
    line |= {"output": {REDACTED: REDACTED}, "outputs": {"k": [REDACTED, 12345678]}}
    cursor["root"]["state"]["values"] = {"position": {REDACTED: REDACTED}}
    assert json.loads(stored.output or "") == cursor


def test_steps_questions_ends_and_live_pieces_keep_their_names() -> None:
    known = Redactor(
        ["traceback", "arguments_schema", "properties", "progress", "channel_id", "platform", SECRET, "12345678"]
    )
    step = StepRecord(
        "a", 1, "a", "task", StepOutcome.DONE, output=json.dumps({SECRET: 12345678}),
        error=json.dumps({"code": "c", "message": SECRET}), input=json.dumps({"progress": {SECRET: 1}}),
    )  # fmt: skip
    question = {
        "answerable_by": "platform",
        "prompt": SECRET, "fields": [{"name": "progress", "label": SECRET, "options": ["progress"]}],
        "context": {"arguments": {SECRET: 1}, SECRET: 12345678},
        "channel_id": None, "arguments_schema": {"properties": {"progress": {"type": "string"}}},
    }  # fmt: skip
    error = json.dumps({"type": "E", "message": SECRET, "traceback": SECRET})
    finish = Finish(AttemptOutcome.FAILED, Status.FAILED, result=json.dumps({SECRET: 1}), error=error)
    stored = redacted(
        entry(steps=[step], waits=[NewWait("a", "human", "a", "a", json.dumps(question))], finish=finish), known
    )
    (after,) = stored.steps
    assert json.loads(after.output or "") == {REDACTED: REDACTED}
    assert json.loads(after.error or "") == {"code": "c", "message": REDACTED}
    assert json.loads(after.input or "") == {"progress": {REDACTED: 1}}
    assert json.loads(stored.waits[0].request) == question | {
        "prompt": REDACTED, "fields": [{"name": "progress", "label": REDACTED, "options": ["progress"]}],
        "context": {"arguments": {REDACTED: 1}, REDACTED: REDACTED},
    }  # fmt: skip
    assert stored.finish is not None
    assert json.loads(stored.finish.error or "") == {"type": "E", "message": REDACTED, "traceback": REDACTED}
    assert json.loads(stored.finish.result or "") == {REDACTED: 1}
    piece = {"progress": 0.5, "offset": 12345678, "text": f"x {SECRET}", "path": "progress"}
    cleaned = redacted_delta(Delta("run_1", 1, "text", json.dumps(piece)), known)
    assert json.loads(cleaned.data) == piece | {"text": f"x {REDACTED}"}
