"""Responses: conversations, streams resumed by number, questions and cancellation, with OpenAI's own client."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from runlane.store.access.tenants import create_tenant
from tests.acceptance.api.openai_clients import CAREFUL, HELPER, Typist, bring, client_of
from tests.acceptance.api.serving import Api
from tests.harness import eventually

HELLO = "Hello there, nice to meet you."
WRITER: dict[str, Any] = {"id": "writer", "model": "typist", "system_prompt": "Be kind."}


def texts_of(typist: Typist) -> list[list[str]]:
    return [[message.text for message in request.messages] for request in typist.requests]


async def test_a_response_and_the_events_of_its_stream(api: Api) -> None:
    await bring(api)
    async with await client_of(api) as client:
        raw = await client.responses.with_raw_response.create(model="helper", input="hi", metadata={"app": "shop"})
        first = raw.parse()
        assert raw.headers["x-runlane-run-id"].removeprefix("run_") == first.id.removeprefix("resp_")
        assert (first.status, first.output_text, first.model) == ("completed", HELLO, "helper")
        assert (first.metadata, first.usage.output_tokens if first.usage else None) == ({"app": "shop"}, 7)
        assert await client.responses.retrieve(first.id) == first
        async with client.responses.stream(model="helper", input="hi") as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        assert final.output_text == HELLO
        numbers = [event.sequence_number for event in events]
        assert numbers == sorted(set(numbers))
        kinds = [event.type for event in events]
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert kinds[-4:] == [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
        whole = await client.responses.retrieve(first.id, stream=True)
        assert [event.type async for event in whole][-1] == "response.completed"


async def test_a_conversation_continues_by_response_and_by_its_id(api: Api) -> None:
    typist = Typist("ok")
    typist.release(10)
    api.parts.app.models.register("typist", typist)
    await bring(api, WRITER)
    async with await client_of(api) as client:
        first = await client.responses.create(
            model="writer",
            input=[
                {"role": "developer", "content": "Answer in German."},
                {"role": "user", "content": "zero"},
                {"role": "assistant", "content": "null"},
                {"role": "user", "content": [{"type": "input_text", "text": "one"}]},
            ],
            instructions="Be brief.",
        )
        second = await client.responses.create(model="writer", input="two", previous_response_id=first.id)
        assert second.previous_response_id == first.id
        assert second.conversation is not None
        assert first.conversation == second.conversation
        third = await client.responses.create(model="writer", input="three", conversation=second.conversation.id)
        assert third.conversation == second.conversation
        assert texts_of(typist) == [
            ["zero", "null", "one"],
            ["zero", "null", "one", "ok", "two"],
            ["zero", "null", "one", "ok", "two", "ok", "three"],
        ]
        assert [request.instructions for request in typist.requests] == [
            "Be kind.\n\nAnswer in German.\n\nBe brief.",
            "Be kind.\n\nAnswer in German.",
            "Be kind.\n\nAnswer in German.",
        ]
        # A conversation has one order: it continues after its last turn only.
        with pytest.raises(openai.ConflictError, match="after turn 1"):
            await client.with_options(max_retries=0).responses.create(
                model="writer", input="again", previous_response_id=first.id
            )
        alone = await client.responses.create(model="writer", input="alone", store=False)
        assert alone.conversation is None
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="writer", input="more", previous_response_id=alone.id)
        assert refused.value.param == "previous_response_id"
    session = (await api.get(f"/chat/{second.conversation.id}/status")).json()
    assert (session["turns"], session["status"]) == (3, "completed")


async def test_a_stream_resumes_after_any_number(api: Api) -> None:
    typist = Typist("One, ", "two, ", "three.")
    api.parts.app.models.register("typist", typist)
    await bring(api, WRITER)
    async with await client_of(api) as client:
        stream = await client.responses.create(model="writer", input="count", stream=True)
        seen: list[Any] = []
        await eventually(lambda: typist.requests, "the model call")
        typist.release(2)
        async for event in stream:
            seen.append(event)
            if "".join(event.delta for event in seen if event.type == "response.output_text.delta") == "One, two, ":
                break
        await stream.close()
        response_id = seen[0].response.id
        assert (await client.responses.retrieve(response_id)).status == "in_progress"
        rest = await client.responses.retrieve(response_id, stream=True, starting_after=seen[-1].sequence_number)
        typist.release()
        later = [event async for event in rest]
        text = "".join(event.delta for event in [*seen, *later] if event.type == "response.output_text.delta")
        assert text == "One, two, three."
        opened = [event for event in [*seen, *later] if event.type == "response.output_item.added"]
        assert len(opened) == 1
        whole = [*seen, *later]
        assert [event.sequence_number for event in whole] == sorted({event.sequence_number for event in whole})
        for position, event in enumerate(whole):
            again = await client.responses.retrieve(response_id, stream=True, starting_after=event.sequence_number)
            got = "".join([item.delta async for item in again if item.type == "response.output_text.delta"])
            had = "".join(item.delta for item in whole[: position + 1] if item.type == "response.output_text.delta")
            assert had + got == "One, two, three.", event
        with pytest.raises(openai.BadRequestError) as impossible:
            await client.responses.retrieve(response_id, stream=True, starting_after=2**50)
        assert impossible.value.param == "starting_after"


async def test_a_background_response_is_read_and_cancelled_by_its_id(api: Api) -> None:
    await bring(api)
    async with await client_of(api) as client:
        slow = await client.responses.create(model="helper", input="slow", background=True)
        assert slow.status in ("queued", "in_progress")

        async def in_progress() -> bool:
            return (await client.responses.retrieve(slow.id)).status == "in_progress"

        async def cancelled() -> bool:
            return (await client.responses.retrieve(slow.id)).status == "cancelled"

        await eventually(in_progress, "the run to start")
        await client.responses.cancel(slow.id)
        await eventually(cancelled, "the end of the cancelled run")
        failed = await client.responses.create(model="helper", input="fail")
        assert (failed.status, failed.error.code if failed.error else None) == ("failed", "broken")
        with pytest.raises(openai.ConflictError):
            await client.with_options(max_retries=0).responses.cancel(failed.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve("resp_none")


async def test_a_question_is_an_incomplete_response_and_the_next_input_answers_it(api: Api) -> None:
    await bring(api, CAREFUL)
    async with await client_of(api) as client:
        asked = await client.responses.create(model="careful", input="pay the bill")
        assert asked.status == "incomplete"
        assert asked.output_text.startswith("Let me pay.")
        assert "approve" in asked.output_text
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="careful", input="perhaps", previous_response_id=asked.id)
        assert refused.value.param == "input"
        headers = {"Idempotency-Key": "answer"}
        done = await client.responses.create(
            model="careful", input="approve", previous_response_id=asked.id, extra_headers=headers
        )
        assert (done.status, done.output_text) == ("completed", "All done.")
        assert done.id.startswith(f"{asked.id}_")
        assert (await client.responses.retrieve(done.id)).output_text == "All done."
        again = await client.responses.create(
            model="careful", input="approve", previous_response_id=asked.id, extra_headers=headers
        )
        assert again.id == done.id
        # The first response has everything, once the run has ended.
        first = await client.responses.retrieve(asked.id)
        assert (first.status, first.output_text.endswith("All done.")) == ("completed", True)
        following = await client.responses.create(model="careful", input="pay again", previous_response_id=done.id)
        assert following.conversation == asked.conversation
        assert following.status == "incomplete"
    assert len((await api.get("/runs")).json()["runs"]) == 2


async def test_a_streamed_question_ends_the_stream(api: Api) -> None:
    await bring(api, CAREFUL)
    async with await client_of(api) as client:
        stream = await client.responses.create(model="careful", input="pay the bill", stream=True)
        events = [event async for event in stream]
        assert events[-1].type == "response.incomplete"
        assert events[-1].response.incomplete_details is not None
        again = await client.responses.retrieve(events[-1].response.id, stream=True)
        assert [event.type async for event in again][-1] == "response.incomplete"


async def test_a_response_of_another_tenant_does_not_exist(api: Api) -> None:
    await create_tenant(api.parts.database, "acme", actor="test")
    await bring(api)
    await bring(api, HELPER, tenant="acme")
    async with await client_of(api) as ours, await client_of(api, "acme") as theirs:
        made = await ours.responses.create(model="helper", input="hi")
        assert made.conversation is not None
        for call in (
            theirs.responses.retrieve(made.id),
            theirs.responses.retrieve(made.id, stream=True),
            theirs.responses.cancel(made.id),
            theirs.responses.create(model="helper", input="hi", previous_response_id=made.id),
            theirs.responses.create(model="helper", input="hi", conversation=made.conversation.id),
        ):
            with pytest.raises(openai.NotFoundError):
                await call
        assert (await theirs.responses.create(model="helper", input="hi")).output_text == HELLO


async def test_a_question_of_another_tenant_is_not_answered(api: Api) -> None:
    await create_tenant(api.parts.database, "acme", actor="test")
    await bring(api, CAREFUL)
    await bring(api, CAREFUL, tenant="acme")
    async with await client_of(api) as ours, await client_of(api, "acme") as theirs:
        asked = await ours.responses.create(model="careful", input="pay the bill")
        assert asked.conversation is not None
        for call in (
            theirs.responses.create(model="careful", input="approve", previous_response_id=asked.id),
            theirs.responses.create(model="careful", input="approve", conversation=asked.conversation.id),
        ):
            with pytest.raises(openai.NotFoundError):
                await call
    (run,) = (await api.get("/runs")).json()["runs"]
    assert run["status"] == "paused"


async def test_what_a_response_cannot_honour_is_refused_by_name(idle_api: Api) -> None:
    await bring(idle_api)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"max_output_tokens": 5}, "max_output_tokens"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"text": {"format": {"type": "json_object"}}}, "text"),
        ({"input": [{"type": "function_call_output", "call_id": "a", "output": "b"}]}, "input[0]"),
        ({"input": " "}, "input"),
        ({"previous_response_id": "resp_1", "conversation": "sess_1"}, "previous_response_id"),
        ({"extra_body": {"colour": "red"}}, "colour"),
    ]
    async with await client_of(idle_api) as client:
        ask: Any = client.responses.create
        for given, param in refused:
            with pytest.raises(openai.BadRequestError) as failed:
                await ask(**{"model": "helper", "input": "hi", **given})
            assert failed.value.param == param
    assert (await idle_api.get("/runs")).json()["runs"] == []
