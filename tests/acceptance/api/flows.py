"""Orchestrations that tests of the API run."""

from __future__ import annotations

from typing import Any

from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.store.sql.database import Database

ASK = {
    "id": "ask",
    "name": "Approve",
    "type": "human",
    "human_prompt": "Publish {state.draft}?",
    "human_fields": [
        {"name": "decision", "type": "select", "options": "approve,reject", "required": True},
        {"name": "notes", "type": "text"},
    ],
    "output_key": "answer",
}


def say(name: str, text: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "type": "print", "print_content": text, "output_key": name, **more}


ARTICLE: dict[str, Any] = {
    "id": "article",
    "name": "Article",
    "steps": [
        say("draft", "an article on {state.user_input}", next_step_id="ask"),
        {**ASK, "next_step_id": "publish"},
        say("publish", "{state.answer.decision}: {state.draft}"),
    ],
}
PAYMENT: dict[str, Any] = {
    "id": "payment",
    "state_schema": {"item": {"type": "string"}},
    "steps": [
        {"id": "paid", "type": "wait", "event": "payment", "output_key": "payment", "next_step_id": "end"},
        say("end", "got {state.payment.amount} for {state.item}"),
    ],
}
TWO: dict[str, Any] = {
    "id": "two",
    "entry_step_id": "split",
    "steps": [
        {"id": "split", "type": "parallel", "parallel_branches": [["left"], ["right"]], "next_step_id": "end"},
        {"id": "left", "type": "human", "human_prompt": "Left?", "output_key": "left", "next_step_id": "end"},
        {"id": "right", "type": "human", "human_prompt": "Right?", "output_key": "right", "next_step_id": "end"},
        say("end", "{state.left.response} and {state.right.response}"),
    ],
}


async def bring(database: Database, *orchestrations: dict[str, Any], tenant: str = "default") -> None:
    """Store these orchestrations in a tenant."""
    await sync_definitions(database, tenant, parse_bodies({"orchestrations": list(orchestrations)}), actor="test")
