"""The journal of one step: every model answer and every tool result, stored as soon as it arrives.

A step that is performed again, by this worker or another, finds what was kept and makes only the calls that are
missing. Keys are stored data and stay as they are: `0/model/2` is the third answer of the first round, `0/tool/2/ID`
the result of a call that it asked for, `0/begun/2/ID/1` means that a call whose effect must not be doubled was about to
be made, `0/delay/2/0/1` that the second model delays the third answer in the first try of the step and, with `/over`,
that this delay has passed, `0/tools/SERVER` is what an MCP server offered, and answers of people have the keys of their
questions.
`late/1.2/0/model/2` is an answer that came when another try of the step had asked again: it is only paid for. A failure
that asking again will not cure closes the round: the next try of the step is a new conversation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from runlane.domain.text import dump_json, load_json
from runlane.failpoints import failpoint
from runlane.llm.models import ModelReply, ToolCall, ToolOffer
from runlane.store.orchestration.calls import CallKind, CallRecord

Keep = Callable[[CallRecord], Awaitable[None]]


async def _forget(_record: CallRecord, /) -> None: ...


class _Book:
    """The rows of a step, by key."""

    def __init__(self, run_id: str, path: str, keep: Keep, records: Sequence[CallRecord]) -> None:
        self.run_id = run_id
        self.path = path
        self.keep = keep
        self.rows: dict[str, CallRecord] = {record.key: record for record in records}


class Journal:
    """What is known of a step's calls. `within` gives a part of it its own keys: the calls of an agent within one."""

    def __init__(
        self, run_id: str = "", path: str = "", keep: Keep = _forget, records: Sequence[CallRecord] = ()
    ) -> None:
        self._book = _Book(run_id, path, keep, records)
        self._prefix = ""

    def within(self, key: str) -> Journal:
        """The part of the journal that belongs to a call."""
        part = Journal()
        part._book, part._prefix = self._book, f"{self.name(key)}/"
        return part

    @property
    def run_id(self) -> str:
        """The run."""
        return self._book.run_id

    @property
    def cost_usd(self) -> float | None:
        """What all answers of models in the step have cost, those of closed rounds too; None if no price is known."""
        known = [row.cost_usd for row in self._book.rows.values() if row.cost_usd is not None]
        return sum(known) if known else None

    @property
    def tokens(self) -> int:
        """The tokens of all answers."""
        return sum(row.tokens_in + row.tokens_out for row in self._book.rows.values())

    def name(self, key: str) -> str:
        """The key in full, as it is stored."""
        return f"{self._prefix}{key}" if self._prefix else f"{self._rounds()}/{key}"

    def find(self, key: str) -> Any:
        """What was kept under a key; None if nothing was."""
        row = self._book.rows.get(self.name(key))
        return None if row is None else load_json(row.payload)

    async def keep(self, kind: CallKind, key: str, value: Any) -> None:
        """Keep a value; it is stored when this returns."""
        await self._store(CallRecord(self._book.path, self.name(key), kind, dump_json(value)))

    async def keep_answer(self, full_key: str, value: Any) -> None:
        """Store a person's answer under the key of the question."""
        await self._store(CallRecord(self._book.path, full_key, CallKind.ANSWER, dump_json(value)))

    async def keep_reply(self, full_key: str, reply: ModelReply, agent: str | None) -> None:
        """Keep an answer of a model, and what it cost whom, under the key that it had when it was asked for."""
        await self._store(
            CallRecord(
                self._book.path,
                full_key,
                CallKind.MODEL,
                dump_json(_reply_json(reply)),
                reply.model,
                agent,
                reply.tokens_in,
                reply.tokens_out,
                reply.cost_usd,
            )
        )

    def find_reply(self, key: str) -> ModelReply | None:
        """Return the answer of a model, if it is stored."""
        found = self.find(key)
        return None if found is None else _reply(found)

    def find_offers(self, key: str) -> tuple[ToolOffer, ...] | None:
        """What a server was found to offer."""
        found = self.find(key)
        if found is None:
            return None
        return tuple(ToolOffer(item["name"], item["description"], item["input_schema"]) for item in found)

    async def keep_offers(self, key: str, offers: Sequence[ToolOffer]) -> None:
        """Store what a server offers, so that a conversation continues with the same tools."""
        told = [
            {"name": offer.name, "description": offer.description, "input_schema": dict(offer.input_schema)}
            for offer in offers
        ]
        await self.keep(CallKind.DISCOVERY, key, told)

    async def close_round(self) -> None:
        """Let the next try begin a new round, unless nothing was stored in this one."""
        number = self._rounds()
        if any(key.startswith(f"{number}/") for key in self._book.rows):
            await self._store(CallRecord(self._book.path, f"closed/{number}", CallKind.CLOSED, "{}"))

    def _rounds(self) -> int:
        return sum(row.kind is CallKind.CLOSED for row in self._book.rows.values())

    async def _store(self, record: CallRecord) -> None:
        await self._book.keep(record)
        failpoint("journal.kept")
        self._book.rows[record.key] = record


def _reply_json(reply: ModelReply) -> dict[str, Any]:
    return {
        "text": reply.text,
        "thinking": reply.thinking,
        "calls": [{"id": call.id, "name": call.name, "arguments": dict(call.arguments)} for call in reply.calls],
        "tokens_in": reply.tokens_in,
        "tokens_out": reply.tokens_out,
        "cost_usd": reply.cost_usd,
        "model": reply.model,
        "raw": reply.raw,
    }


def _reply(found: Mapping[str, Any]) -> ModelReply:
    return ModelReply(
        text=found["text"],
        calls=tuple(ToolCall(call["name"], call["arguments"], call["id"]) for call in found["calls"]),
        thinking=found["thinking"],
        tokens_in=found["tokens_in"],
        tokens_out=found["tokens_out"],
        cost_usd=found["cost_usd"],
        model=found["model"],
        raw=found["raw"],
    )
