"""Chat completions and models: OpenAI's own client talks to agents."""

from __future__ import annotations

from functools import partial
from typing import Any

import openai
import pytest

from runlane.api.auth import RequestAccess
from runlane.app import App
from runlane.store.access.tenants import create_tenant
from tests.acceptance.api.openai_clients import CAREFUL, HELPER, Typist, bring, client_of, openai_client
from tests.acceptance.api.serving import API, Api, serving
from tests.harness import eventually

HELLO = "Hello there, nice to meet you."


def user(text: str) -> Any:
    return {"role": "user", "content": text}


async def text_of(stream: Any) -> str:
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


async def test_agents_are_models(api: Api) -> None:
    await bring(api, HELPER, CAREFUL)
    async with await client_of(api) as client:
        listed = [model async for model in client.models.list()]
        assert [(model.id, model.object) for model in listed] == [("careful", "model"), ("helper", "model")]
        assert (await client.models.retrieve("helper")).created == listed[1].created > 0
        with pytest.raises(openai.NotFoundError) as failed:
            await client.models.retrieve("helpr")
        assert (failed.value.code, failed.value.param) == ("model_not_found", "model")


async def test_an_answer_with_its_usage_and_its_run(api: Api) -> None:
    await bring(api)
    async with await client_of(api) as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="helper", messages=[user("hi")], user="ada@example.org", metadata={"app": "shop"}
        )
        run_id = raw.headers["x-runlane-run-id"]
        answer = raw.parse()
        assert answer.choices[0].message.content == HELLO
        assert answer.choices[0].finish_reason == "stop"
        assert (answer.model, answer.usage.completion_tokens if answer.usage else None) == ("helper", 7)
        run = (await api.get(f"/runs/{run_id}")).json()
        assert (run["target"], run["result"]) == ("agent:helper", HELLO)
        assert run["tags"] == ["app=shop", "user=ada@example.org"]
        assert await client.chat.completions.retrieve(answer.id) == answer
        stream = await client.chat.completions.create(
            model="helper", messages=[user("hi")], stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == HELLO
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens == 7


async def test_pieces_arrive_while_the_model_writes_them(api: Api) -> None:
    typist = Typist("One, ", "two, ", "three.")
    api.parts.app.models.register("typist", typist)
    await bring(api, {"id": "writer", "model": "typist"})
    async with await client_of(api) as client:
        stream = await client.chat.completions.create(model="writer", messages=[user("count")], stream=True)
        text = ""
        await eventually(lambda: typist.requests, "the model call")
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            # The next piece is written only when the earlier ones have arrived.
            if chunk.choices[0].finish_reason is None:
                typist.release()
        assert text == "One, two, three."


async def test_earlier_messages_instructions_and_settings_reach_the_model(api: Api) -> None:
    typist = Typist("ok")
    api.parts.app.models.register("typist", typist)
    agent = {
        "id": "writer",
        "model": "typist",
        "system_prompt": "Be kind.",
        "model_settings": {"temperature": 0.5, "top_p": 0.9},
        "client_settings": ["temperature", "max_tokens", "thinking"],
    }
    await bring(api, agent)
    typist.release()
    async with await client_of(api) as client:
        await client.chat.completions.create(
            model="writer",
            messages=[
                {"role": "system", "content": "Answer in German."},
                user("one"),
                {"role": "assistant", "content": "eins"},
                {"role": "user", "content": [{"type": "text", "text": "two"}]},
            ],
            temperature=1.5,
            max_completion_tokens=50,
            top_p=0.9,
            reasoning_effort="low",
        )
    (request,) = typist.requests
    assert [(message.role, message.text) for message in request.messages] == [
        ("user", "one"),
        ("assistant", "eins"),
        ("user", "two"),
    ]
    assert request.instructions == "Be kind.\n\nAnswer in German."
    settings = request.settings
    assert (settings.temperature, settings.max_tokens, settings.top_p, settings.thinking) == (1.5, 50, 0.9, "low")


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"temperature": 0.1}, "temperature", "unsupported_parameter"),
    ({"max_completion_tokens": 5}, "max_completion_tokens", "unsupported_parameter"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "unsupported_parameter"),
    ({"n": 2}, "n", "unsupported_parameter"),
    ({"seed": 7}, "seed", "unsupported_parameter"),
    ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter"),
    ({"extra_body": {"colour": "red"}}, "colour", "unknown_parameter"),
    ({"temperature": 3}, "temperature", "invalid_request"),
    ({"reasoning_effort": "much"}, "reasoning_effort", "invalid_value"),
    ({"messages": []}, "messages", "invalid_request"),
    ({"messages": [{"role": "assistant", "content": "hi"}]}, "messages", "invalid_value"),
    ({"messages": [{"role": "tool", "content": "hi"}]}, "messages[0].role", "invalid_value"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0]",
        "unsupported_parameter",
    ),
    ({"user": "not a tag"}, "user", "invalid_value"),
    ({"metadata": {"a b": "c"}}, "metadata.a b", "invalid_value"),
]


async def test_what_cannot_be_honoured_is_refused_by_name(idle_api: Api) -> None:
    await bring(idle_api)
    async with await client_of(idle_api) as client:
        ask: Any = client.chat.completions.create
        for given, param, code in REFUSED:
            with pytest.raises(openai.BadRequestError) as failed:
                await ask(**{"model": "helper", "messages": [user("hi")], **given})
            assert (failed.value.param, failed.value.code) == (param, code)
            assert failed.value.type == "invalid_request_error"
    assert (await idle_api.get("/runs")).json()["runs"] == []


async def test_parameters_that_ask_for_nothing_are_accepted(api: Api) -> None:
    await bring(api)
    async with await client_of(api) as client:
        answer = await client.chat.completions.create(
            model="helper",
            messages=[user("hi")],
            n=1,
            presence_penalty=0,
            frequency_penalty=0.0,
            tools=[],
            tool_choice="none",
            response_format={"type": "text"},
            logprobs=False,
            stop=None,
            store=True,
            prompt_cache_key="a",
        )
        assert answer.choices[0].message.content == HELLO


async def test_errors_have_the_shape_that_the_client_parses(idle_api: Api) -> None:
    await bring(idle_api)
    for key, kind in (
        ("sk-rl-wrong", openai.AuthenticationError),
        (await idle_api.key("viewer"), openai.PermissionDeniedError),
    ):
        async with openai_client(idle_api.url, key) as client:
            with pytest.raises(kind) as failed:
                await client.chat.completions.create(model="helper", messages=[user("hi")])
            assert failed.value.message
            assert failed.value.code == ("invalid_api_key" if kind is openai.AuthenticationError else "forbidden")
    async with await client_of(idle_api) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="nobody", messages=[user("hi")])
        assert missing.value.code == "model_not_found"
        assert "does not exist" in missing.value.message
        with pytest.raises(openai.NotFoundError):
            await client.embeddings.create(model="helper", input="hi")
    large = await idle_api.client.post("/v1/chat/completions", content=b"x" * (64 * 1024 * 1024 + 1))
    assert (large.status_code, large.json()["error"]["code"]) == (413, "too_large")
    text = await idle_api.client.post(
        "/v1/chat/completions", content=b"{", headers={"Content-Type": "application/json"}
    )
    assert (text.status_code, text.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_hostile_text_is_refused_and_never_an_internal_error(idle_api: Api) -> None:
    await bring(idle_api)
    half = b'"\\ud800"'
    bodies = [
        (b'{"model": "helper", "messages": [{"role": "user", "content": %s}]}' % half, "messages[0].content"),
        (b'{"model": "helper", "messages": [{"role": "user", "content": "a\\u0000"}]}', "messages[0].content"),
        (b'{"model": "helper", "messages": [{"role": "user", "content": "a"}], %s: 1}' % half, None),
        (b'{"model": "helper", "messages": [{"role": %s, "content": "a"}]}' % half, "messages[0].role"),
        (b'{"model": "helper", "messages": [{"role": "user", "content": "a"}], "user": %s}' % half, "user"),
    ]
    for body, param in bodies:
        answer = await idle_api.client.post(
            "/v1/chat/completions", content=body, headers={"Content-Type": "application/json"}
        )
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    for path in ("/v1/models/%00", "/v1/responses/%ff", "/v1/chat/completions/x", "/v1/none"):
        answer = await idle_api.client.get(path)
        assert (answer.status_code in (400, 404), list(answer.json())) == (True, ["error"]), answer.text
    for name in ("conversation", "previous_response_id"):
        body = b'{"model": "helper", "input": "a", "%s": %s}' % (name.encode(), half)
        answer = await idle_api.client.post("/v1/responses", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 404), answer.text


async def test_a_server_without_keys_accepts_the_key_that_the_client_must_send(own_app: App) -> None:
    async with serving(own_app, access=RequestAccess.OPEN_ON_LOOPBACK, key=False) as api:
        await bring(api)
        async with openai_client(api.url, "anything") as client:
            assert [model.id async for model in client.models.list()] == ["helper"]
        async with openai_client(api.url, f"sk-rl-{'0' * 64}") as client:
            with pytest.raises(openai.AuthenticationError):
                await client.models.retrieve("helper")
        elsewhere = await api.client.get(f"{API}/runs", headers={"Authorization": "Bearer anything"})
        assert elsewhere.status_code == 401


async def test_a_failed_run_is_an_error_that_the_client_does_not_repeat(api: Api) -> None:
    await bring(api)
    async with await client_of(api) as client:
        with pytest.raises(openai.InternalServerError) as failed:
            await client.chat.completions.create(model="helper", messages=[user("fail")])
        assert failed.value.code == "broken"
        assert "The model is away." in failed.value.message
        assert failed.value.response.headers["x-runlane-run-id"].startswith("run_")
        stream = await client.chat.completions.create(model="helper", messages=[user("fail")], stream=True)
        with pytest.raises(openai.APIError, match="The model is away"):
            await text_of(stream)
    assert len((await api.get("/runs")).json()["runs"]) == 2


async def test_a_repeated_request_gets_the_run_of_the_first_one(api: Api) -> None:
    await bring(api)
    async with await client_of(api) as client:
        ask: Any = partial(
            client.with_options(max_retries=0).chat.completions.create,
            model="helper",
            extra_headers={"Idempotency-Key": "once"},
        )
        first: Any = await ask(messages=[user("hi")])
        assert await text_of(await ask(messages=[user("hi")], stream=True)) == HELLO
        assert (await ask(messages=[user("hi")])).id == first.id
        with pytest.raises(openai.ConflictError):
            await ask(messages=[user("one"), {"role": "assistant", "content": "two"}, user("hi")])
    assert len((await api.get("/runs")).json()["runs"]) == 1


async def test_a_client_that_disconnects_loses_nothing(api: Api) -> None:
    typist = Typist("One, ", "two.")
    api.parts.app.models.register("typist", typist)
    await bring(api, {"id": "writer", "model": "typist"})
    async with await client_of(api) as client:
        stream = await client.chat.completions.create(model="writer", messages=[user("count")], stream=True)
        answer_id = ""
        typist.release()
        async for chunk in stream:
            answer_id = chunk.id
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        typist.release()
        answer = await client.chat.completions.retrieve(answer_id)
        assert answer.choices[0].message.content == "One, two."
    assert len(typist.requests) == 1


async def test_a_question_is_the_answer_and_the_next_message_answers_it(api: Api) -> None:
    await bring(api, CAREFUL)
    async with await client_of(api) as client:
        messages: list[Any] = [user("pay the bill")]
        asked = await client.chat.completions.create(model="careful", messages=messages)
        question = asked.choices[0].message.content or ""
        assert question.startswith("Let me pay.\n\n")
        assert "approve" in question
        assert asked.choices[0].finish_reason == "stop"
        messages += [{"role": "assistant", "content": question}]
        with pytest.raises(openai.BadRequestError, match="decision") as refused:
            await client.chat.completions.create(model="careful", messages=[*messages, user("perhaps")])
        assert refused.value.param == "messages"
        messages.append(user("Approve"))
        stream = await client.chat.completions.create(model="careful", messages=messages, stream=True)
        assert await text_of(stream) == "All done."
        # A repeated answer follows the run that has continued.
        again = await client.chat.completions.create(model="careful", messages=messages)
        assert again.choices[0].message.content == "All done."
        (run,) = (await api.get("/runs")).json()["runs"]
        assert run["run_id"].removeprefix("run_") in again.id
        # The same question without the conversation that led to it is text like any other.
        await client.chat.completions.create(
            model="careful", messages=[user("other"), {"role": "assistant", "content": question}, user("approve")]
        )
    assert len((await api.get("/runs")).json()["runs"]) == 2


async def test_a_repeated_answer_does_not_reach_the_next_question(api: Api) -> None:
    pay = CAREFUL["answers"][0]
    await bring(api, {**CAREFUL, "answers": [pay, pay, {"say": "All done."}]})
    async with await client_of(api) as client:
        messages: list[Any] = [user("pay both bills")]
        first = (await client.chat.completions.create(model="careful", messages=messages)).choices[0].message.content
        messages += [{"role": "assistant", "content": first}, user("approve")]
        seconds = [
            (await client.chat.completions.create(model="careful", messages=messages)).choices[0].message.content
            for _ in range(2)
        ]
    assert seconds[0] == seconds[1] != first
    (run,) = (await api.get("/runs")).json()["runs"]
    assert run["status"] == "paused"


async def test_a_streamed_question_can_be_answered_too(api: Api) -> None:
    await bring(api, CAREFUL)
    async with await client_of(api) as client:
        messages: list[Any] = [user("pay the bill")]
        question = await text_of(await client.chat.completions.create(model="careful", messages=messages, stream=True))
        messages += [{"role": "assistant", "content": question}, user('{"decision": "deny", "reason": "too much"}')]
        answer = await client.chat.completions.create(model="careful", messages=messages)
        assert answer.choices[0].message.content == "All done."
    (run,) = (await api.get("/runs")).json()["runs"]
    events = (await api.get(f"/runs/{run['run_id']}/events")).json()["events"]
    assert [event["failed"] for event in events if event["type"] == "tool_result"] == [True]


async def test_tenants_do_not_see_each_other(api: Api) -> None:
    await create_tenant(api.parts.database, "acme", actor="test")
    await bring(api, CAREFUL)
    await bring(api, tenant="acme")
    async with await client_of(api) as ours, await client_of(api, "acme") as theirs:
        assert [model.id async for model in theirs.models.list()] == ["helper"]
        asked = await ours.chat.completions.create(model="careful", messages=[user("pay")])
        with pytest.raises(openai.NotFoundError):
            await theirs.chat.completions.create(model="careful", messages=[user("hi")])
        with pytest.raises(openai.NotFoundError):
            await theirs.chat.completions.retrieve(asked.id)
        await bring(api, CAREFUL, HELPER, tenant="acme")
        messages: list[Any] = [
            user("pay"),
            {"role": "assistant", "content": asked.choices[0].message.content},
            user("approve"),
        ]
        answer = await theirs.chat.completions.create(model="careful", messages=messages)
        assert answer.id != asked.id
    run_id = f"run_{asked.id.removeprefix('chatcmpl-')}"
    assert (await api.client.get(f"{API}/runs/{run_id}")).json()["status"] == "paused"
