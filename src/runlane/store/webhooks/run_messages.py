"""The messages about runs: their start, their end, their questions, their retries.

Each function is called by the transaction that makes the change, and only for runs whose tenant has endpoints or that
have a webhook URL of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import orjson
from sqlalchemy import func, select

from runlane.definitions.forms import ARGUMENTS, EDIT
from runlane.domain.a2a import A2A_STATES, A2A_TAG
from runlane.domain.memory import MEMORY_TASKS
from runlane.domain.run import ORCHESTRATION, RunHook, Status
from runlane.domain.text import load_json
from runlane.domain.timestamps import format_timestamp
from runlane.domain.webhook import INCLUDED
from runlane.domain.webhook_events import RUN_ENDS, WebhookType
from runlane.store.queue.tags import tags_of
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import lit, member
from runlane.store.sql.schema import (
    chat_turns,
    run_attempts,
    run_calls,
    run_inputs,
    run_results,
    run_webhooks,
    runs,
)
from runlane.store.sql.statement import Row, Statement
from runlane.store.webhooks.outbox import (
    MAX_INCLUDED_BYTES,
    NewMessage,
    RunTarget,
    included,
    read_subscriptions,
    store_messages,
)

_MAX_ERROR = 2000
_INBOX = "/api/v2/inbox"
_MAX_CHOICES = 20

_first_start = (
    select(run_attempts.c.started_at)
    .where(run_attempts.c.run_id == runs.c.id, run_attempts.c.attempt == lit(1))
    .correlate(runs)
    .scalar_subquery()
)
_cost = select(func.sum(run_calls.c.cost_usd)).where(run_calls.c.run_id == runs.c.id).correlate(runs).scalar_subquery()
_ENDED = Statement(
    "ended_runs_for_webhooks",
    select(
        runs.c.id,
        runs.c.tenant,
        runs.c.target,
        runs.c.lane,
        runs.c.status,
        runs.c.accepted_at,
        runs.c.ended_at,
        runs.c.failures,
        runs.c.losses,
        runs.c.attempt,
        runs.c.tags,
        func.coalesce(_first_start, runs.c.claimed_at).label("started_at"),
        _cost.label("cost_usd"),
        run_results.c.error,
        chat_turns.c.session_id,
        chat_turns.c.turn,
        run_webhooks.c.url,
    )
    .select_from(
        runs.outerjoin(run_results, run_results.c.run_id == runs.c.id)
        .outerjoin(chat_turns, chat_turns.c.run_id == runs.c.id)
        .outerjoin(run_webhooks, run_webhooks.c.run_id == runs.c.id)
    )
    .where(member(runs.c.id, "ids"))
    .order_by(runs.c.id),
    purpose="Read the runs whose end is reported by webhooks.",
)
_FILTERED = Statement(
    "runs_of_webhook_messages",
    select(runs.c.id, runs.c.lane, runs.c.tags).where(member(runs.c.id, "ids")),
    purpose="Read what webhook endpoints filter runs by.",
)
_CONTENT = Statement(
    "content_for_webhooks",
    select(run_inputs.c.run_id, run_inputs.c.input, run_results.c.result, run_results.c.state)
    .select_from(run_inputs.outerjoin(run_results, run_results.c.run_id == run_inputs.c.run_id))
    .where(member(run_inputs.c.run_id, "ids")),
    purpose="Read the inputs and results of runs that webhooks include.",
)


async def report_ended(session: Session, ended: Sequence[Row]) -> None:
    """Add the messages about runs that ended in this transaction. A row has id, hooks and `notifies`."""
    ids = [row["id"] for row in ended if row["notifies"] or row["hooks"] & RunHook.WEBHOOK]
    if not ids:
        return
    rows = await session.fetch(_ENDED, ids=session.texts(ids))
    subscriptions = await read_subscriptions(session, [row["tenant"] for row in rows])
    with_content = [row["id"] for row in rows if row["url"] is not None or subscriptions.includes]
    content: dict[str, Row] = {}
    if with_content:
        found = await session.fetch(_CONTENT, ids=session.texts(with_content))
        content = {row["run_id"]: row for row in found}
    messages = [message for row in rows for message in _messages_of_end(row, content.get(row["id"]))]
    await store_messages(session, messages, subscriptions)


async def report_started(session: Session, claimed: Sequence[Row]) -> None:
    """Add the messages about runs that were claimed for the first time in this transaction."""
    started = [row for row in claimed if row["notifies"] and row["attempt"] == 1]
    await _add(
        session,
        [
            NewMessage(
                row["tenant"],
                WebhookType.RUN_STARTED,
                {
                    **_run(row["id"], row["target"], row["lane"], Status.RUNNING),
                    "accepted_at": format_timestamp(row["accepted_at"]),
                    "started_at": format_timestamp(row["claimed_at"]),
                },
                row["id"],
                row["claimed_at"],
            )
            for row in started
        ],
    )


async def report_waiting(session: Session, opened: Sequence[Mapping[str, Any]]) -> None:
    """Add the messages about questions that were opened. They have run_id, tenant, target and those of a wait."""
    await _add(
        session,
        [
            NewMessage(
                wait["tenant"],
                WebhookType.RUN_WAITING,
                {
                    **_question(wait),
                    "step_id": wait["step_id"],
                    "name": wait["name"],
                    "prompt": (request := load_json(wait["request"])).get("prompt"),
                    "fields": (fields := request.get("fields") or []),
                    "inbox_url": _INBOX,
                    "actions": _actions(wait["run_id"], wait["path"], fields),
                },
                wait["run_id"],
            )
            for wait in opened
        ],
    )


async def report_answered(session: Session, run_id: str, run: Row, path: str, by: str) -> None:
    """Add the message about an answered question of a run."""
    data = {**_question({"run_id": run_id, "target": run["target"], "path": path}), "answered_by": by}
    await _add(session, [NewMessage(run["tenant"], WebhookType.RUN_ANSWERED, data, run_id)])


async def report_retried(session: Session, row: Row) -> None:
    """Add the message about a failed run that is retried."""
    data = _run(row["id"], row["target"], row["lane"], row["status"])
    await _add(session, [NewMessage(row["tenant"], WebhookType.RUN_RETRIED, data, row["id"])])


async def _add(session: Session, messages: Sequence[NewMessage]) -> None:
    """Add messages about runs, with the lanes and tags of the runs, if their tenants have endpoints."""
    if not messages:
        return
    subscriptions = await read_subscriptions(session, [message.tenant for message in messages])
    wanted = [message for message in messages if subscriptions.by_tenant.get(message.tenant)]
    ids = sorted({message.run_id for message in wanted if message.run_id is not None})
    if not ids:
        return
    found = {row["id"]: row for row in await session.fetch(_FILTERED, ids=session.texts(ids))}
    complete = [
        message._replace(data={**message.data, "lane": row["lane"], "tags": tags_of(row["tags"])})
        for message in wanted
        if (row := found.get(message.run_id or "")) is not None
    ]
    await store_messages(session, complete, subscriptions)


def _messages_of_end(row: Row, content: Row | None) -> list[NewMessage]:
    status = Status(row["status"])
    counted = row["failures"] + row["losses"]
    data = {
        **_run(row["id"], row["target"], row["lane"], status),
        "tags": tags_of(row["tags"]),
        "accepted_at": format_timestamp(row["accepted_at"]),
        "started_at": None if row["started_at"] is None else format_timestamp(row["started_at"]),
        "ended_at": format_timestamp(row["ended_at"]),
        "tries": 0 if row["attempt"] == 0 else max(1, counted) if status is Status.FAILED else counted + 1,
        "cost_usd": float(row["cost_usd"] or 0.0),
        "error": _error(row["error"]),
    }
    extras = {} if content is None else {name: content[name] for name in INCLUDED}
    if row["target"].startswith(MEMORY_TASKS):
        # The input of an import has the entries of a memory, which need memory:read.
        extras = dict.fromkeys(extras)
    url = row["url"]
    own = None if url is None or content is None else RunTarget(url, _own_fields(row, data, content))
    message = NewMessage(row["tenant"], RUN_ENDS[status], data, row["id"], row["ended_at"], extras, own)
    messages = [message]
    bare = message._replace(own=None)
    if status is Status.FAILED:
        messages.append(bare._replace(type=WebhookType.DEAD_LETTER_CREATED))
    if row["session_id"] is not None and status is not Status.CANCELLED:
        kind = WebhookType.CHAT_TURN_FAILED if status is Status.FAILED else WebhookType.CHAT_TURN_COMPLETED
        turn = {**data, "session_id": row["session_id"], "turn": row["turn"]}
        messages.append(bare._replace(type=kind, data=turn))
    return messages


def _own_fields(row: Row, data: Mapping[str, Any], content: Row) -> dict[str, Any]:
    """Return the fields that a run's own webhook has beside type, timestamp and data."""
    url = str(data["url"])
    texts = {"result": content["result"], "shared_state": content["state"]}
    found = included(texts, frozenset(texts), url)
    target: str = row["target"]
    return {
        "run_id": row["id"],
        "orchestration_id": target.removeprefix(ORCHESTRATION) if target.startswith(ORCHESTRATION) else None,
        "status": data["status"],
        "started_at": data["started_at"],
        "ended_at": data["ended_at"],
        "total_cost_usd": data["cost_usd"],
        "error": None if data["error"] is None else data["error"]["message"],
        **_task(row, data, content),
        **found,
        "shared_state": found["shared_state"] if found["shared_state"] is not None else {},
    }


def _task(row: Row, data: Mapping[str, Any], content: Row) -> dict[str, Any]:
    """Return the run as a task of A2A, for one that another agent has started."""
    if A2A_TAG not in tags_of(row["tags"]):
        return {}
    task: dict[str, Any] = {
        "id": row["id"],
        "contextId": row["session_id"] or row["id"],
        "status": {"state": A2A_STATES[Status(row["status"])], "timestamp": data["ended_at"]},
    }
    result: Any = None if content["result"] is None else orjson.loads(content["result"])
    if isinstance(result, str) and len(result) <= MAX_INCLUDED_BYTES:
        task["artifacts"] = [{"artifactId": "answer", "parts": [{"text": result, "mediaType": "text/plain"}]}]
    return {"task": task}


def _run(run_id: str, target: str, lane: str, status: str) -> dict[str, Any]:
    return {"run_id": run_id, "target": target, "lane": lane, "status": str(status), "url": f"/api/v2/runs/{run_id}"}


def _question(wait: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "run_id": wait["run_id"],
        "target": wait["target"],
        "path": wait["path"],
        "url": f"/api/v2/runs/{wait['run_id']}",
    }


def _actions(run_id: str, path: str, fields: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the requests that answer a question: a general one, and one per choice that is a complete answer."""

    def action(name: str, response: Mapping[str, Any]) -> dict[str, Any]:
        body = {"step": path, "response": response}
        return {"name": name, "method": "POST", "url": f"/api/v2/runs/{run_id}/resume", "body": body}

    required = [field for field in fields if field.get("required")]
    asked = required or fields
    choices: list[Any] = []
    if len(asked) == 1:
        choices = [True, False] if asked[0].get("type") == "boolean" else asked[0].get("options") or []
    # The answer that edits a tool call also needs its arguments.
    edits = any(field["name"] == ARGUMENTS for field in fields)
    complete = [choice for choice in choices if not (edits and choice == EDIT)]
    return [
        action("answer", {}),
        *(action(_label(choice), {asked[0]["name"]: choice}) for choice in complete[:_MAX_CHOICES]),
    ]


def _label(choice: Any) -> str:
    return ("yes" if choice else "no") if isinstance(choice, bool) else str(choice)


def _error(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    error: Any = orjson.loads(text)
    if not isinstance(error, dict):
        return {"type": "Error", "code": None, "message": str(error)[:_MAX_ERROR]}
    fields = cast("dict[str, Any]", error)
    message = str(fields.get("message", ""))[:_MAX_ERROR]
    return {"type": str(fields.get("type", "Error")), "code": fields.get("code"), "message": message}
