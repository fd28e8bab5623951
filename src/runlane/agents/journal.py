"""The journal of one step: every model answer and every tool result, stored as soon as it arrives.

A step that is performed again, by this worker or another, reads what is stored and makes only the missing calls. A
failure that is not retryable closes the round: the next try of the step is a new conversation.

Keys are stored data and must not change:

- `0/model/2`: the third answer of the first round
- `0/tool/2/ID`: the result of a call in that answer
- `0/begun/2/ID/1`: the announcement of such a call, if it must not be repeated
- `0/delay/2/0/1`: in the first try of the step, the second model delays the third answer; with `/over`, the delay has
  passed
- `0/tools/SERVER`: the list of tools of an MCP server
- `late/1.2/0/model/2`: an answer that arrived after another try of the step had repeated the call; it is only billed
- `earlier/RUN/KEY`: an announced call without a result, which a fork has copied from its source
- `settled/KEY`: a person has decided about such a call, or about one of a closed round
- the key of a question: the answer of a person
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from runlane.domain.text import dump_json, load_json
from runlane.failpoints import failpoint
from runlane.llm.models import ModelReply, ToolCall, ToolOffer
from runlane.store.orchestration.calls import EARLIER, SETTLED, CallKind, CallRecord

Keep = Callable[[CallRecord], Awaitable[None]]


async def _discard(_record: CallRecord, /) -> None: ...


class UnsettledCall(NamedTuple):
    """An announced call of an earlier conversation, whose effect is unknown."""

    key: str
    idempotency_key: str


class _StepCalls:
    """The rows of a step, by key."""

    def __init__(self, run_id: str, path: str, keep: Keep, records: Sequence[CallRecord]) -> None:
        self.run_id = run_id
        self.path = path
        self.keep = keep
        self.rows: dict[str, CallRecord] = {record.key: record for record in records}


class Journal:
    """The stored calls of a step. `within` returns a part with its own keys, for an agent that is called as a tool."""

    def __init__(
        self, run_id: str = "", path: str = "", keep: Keep = _discard, records: Sequence[CallRecord] = ()
    ) -> None:
        self._calls = _StepCalls(run_id, path, keep, records)
        self._prefix = ""

    def within(self, key: str) -> Journal:
        """Return the part of the journal that belongs to a call."""
        part = Journal()
        part._calls, part._prefix = self._calls, f"{self.name(key)}/"
        return part

    @property
    def run_id(self) -> str:
        return self._calls.run_id

    @property
    def cost_usd(self) -> float | None:
        """The cost of all model answers of the step, including closed rounds; None if no price is known."""
        known = [row.cost_usd for row in self._calls.rows.values() if row.cost_usd is not None]
        return sum(known) if known else None

    @property
    def tokens(self) -> int:
        """The tokens of all answers."""
        return sum(row.tokens_in + row.tokens_out for row in self._calls.rows.values())

    def name(self, key: str) -> str:
        """Return the full key, as stored."""
        return f"{self._prefix}{key}" if self._prefix else f"{self._rounds()}/{key}"

    def find(self, key: str) -> Any:
        """Return the value stored under a key; None if there is none."""
        row = self._calls.rows.get(self.name(key))
        return None if row is None else load_json(row.payload)

    def unsettled(self, tool: str, arguments: Mapping[str, Any]) -> list[UnsettledCall]:
        """Return the calls of this tool with these arguments that closed rounds and earlier runs left without a result.

        Calls about which a person has decided are left out.
        """
        rows, announced = self._calls.rows, {"tool": tool, "args": dict(arguments)}
        found: list[UnsettledCall] = []
        for key, row in rows.items():
            if row.kind is not CallKind.BEGUN or load_json(row.payload) != announced or not self._is_earlier(key):
                continue
            before, _, rest = key.rpartition("/begun/")
            place = rest.rpartition("/")[0]
            if f"{before}/tool/{place}" in rows or f"{SETTLED}{key}" in rows:
                continue
            run_id, own = self.run_id, before
            if key.startswith(EARLIER):
                run_id, _, own = before.removeprefix(EARLIER).partition("/")
            found.append(UnsettledCall(key, f"{run_id}/{self._calls.path}#{own}/{place}"))
        return found

    async def settle(self, call: UnsettledCall) -> None:
        """Store that a person has decided about a call."""
        await self._store(CallRecord(self._calls.path, f"{SETTLED}{call.key}", CallKind.ANSWER, "{}"))

    def _is_earlier(self, key: str) -> bool:
        return key.startswith(EARLIER) or int(key.partition("/")[0]) < self._rounds()

    async def keep(self, kind: CallKind, key: str, value: Any) -> None:
        """Store a value; it is durable when this returns."""
        await self._store(CallRecord(self._calls.path, self.name(key), kind, dump_json(value)))

    async def keep_answer(self, full_key: str, value: Any) -> None:
        """Store a person's answer under the key of the question."""
        await self._store(CallRecord(self._calls.path, full_key, CallKind.ANSWER, dump_json(value)))

    async def keep_reply(self, full_key: str, reply: ModelReply, agent: str | None) -> None:
        """Store an answer of a model and its cost under the key of the call."""
        await self._store(
            CallRecord(
                self._calls.path,
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
        """Return the stored tools of a server."""
        found = self.find(key)
        if found is None:
            return None
        return tuple(ToolOffer(item["name"], item["description"], item["input_schema"]) for item in found)

    async def keep_offers(self, key: str, offers: Sequence[ToolOffer]) -> None:
        """Store the tools of a server, so that a conversation continues with the same ones."""
        stored = [
            {"name": offer.name, "description": offer.description, "input_schema": dict(offer.input_schema)}
            for offer in offers
        ]
        await self.keep(CallKind.DISCOVERY, key, stored)

    async def close_round(self) -> None:
        """Begin a new round with the next try, unless nothing was stored in this one."""
        number = self._rounds()
        if any(key.startswith(f"{number}/") for key in self._calls.rows):
            await self._store(CallRecord(self._calls.path, f"closed/{number}", CallKind.CLOSED, "{}"))

    def _rounds(self) -> int:
        return sum(row.kind is CallKind.CLOSED for row in self._calls.rows.values())

    async def _store(self, record: CallRecord) -> None:
        await self._calls.keep(record)
        failpoint("journal.kept")
        self._calls.rows[record.key] = record


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
