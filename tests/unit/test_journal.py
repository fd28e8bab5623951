"""The journal of a step: an answer in it is not requested again, and everything in it is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from runlane.agents.journal import Journal
from runlane.errors import Unavailable
from runlane.interpreter.values import Done
from runlane.redaction import REDACTED, Redactor
from runlane.steps.dispatch import perform_step
from runlane.store.orchestration.calls import CallKind, CallRecord
from tests.unit.step_bench import Bench

SECRET = "canary-5d81-secret"
AGENT = {"type": "agent", "agent_id": "helper"}
HELPER = {"id": "helper", "model": "scripted:it", "tools": ["ship"]}
ANSWERS = {"it": [{"tool": "ship", "arguments": {"to": "Ann"}}, "done"]}


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    made.have(agents=[HELPER])
    yield made
    await made.services.sandbox.close()


async def test_a_stored_answer_is_not_requested_again(bench: Bench) -> None:
    kept: list[CallRecord] = []

    async def keep(record: CallRecord) -> None:
        kept.append(record)

    bench.task_result = "sent"
    for _ in range(2):
        # The second attempt finds what the first one has kept, and nothing else.
        bench.have(journal=Journal("run_1", "it", keep, tuple(kept)))
        context = bench.context(bench.pending(AGENT, answers=ANSWERS))
        assert await perform_step(context) == Done("done", None, None, 0)
    assert [record.kind for record in kept] == [CallKind.MODEL, CallKind.TOOL, CallKind.MODEL]
    assert len(bench.emitted("model_request")) == 2
    assert len(bench.task_calls) == 1


async def test_an_answer_that_could_not_be_stored_is_not_known() -> None:
    async def keep(_: CallRecord) -> None:
        raise Unavailable("The database is away.")

    journal = Journal("run_1", "it", keep)
    with pytest.raises(Unavailable):
        await journal.keep(CallKind.TOOL, "tool/0/a", {"value": 1})
    assert journal.find("tool/0/a") is None


async def test_the_result_of_a_tool_has_no_secrets(bench: Bench) -> None:
    redactor = Redactor()
    redactor.learn(SECRET)
    bench.have(redactor=redactor)
    bench.task_result = {"text": f"the key is {SECRET}"}
    kept: list[CallRecord] = []

    async def keep(record: CallRecord) -> None:
        kept.append(record)

    bench.have(journal=Journal("run_1", "it", keep))
    await perform_step(bench.context(bench.pending(AGENT, answers=ANSWERS)))
    (result,) = [record.payload for record in kept if record.kind is CallKind.TOOL]
    assert SECRET not in result
    assert REDACTED in result
