"""The registry of models, and the model that follows a script."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from runlane.definitions.schema.definition import Agent, Orchestration
from runlane.llm.models import Message, ModelContext, ModelDelta, ModelFailed, ModelRegistry, ModelReply, ModelRequest
from runlane.llm.scripted import ScriptedModel, scripted


def orchestration(**answers: list[Any]) -> Orchestration:
    steps = [{"id": "ask", "type": "llm"}]
    return Orchestration.model_validate({"id": "o", "steps": steps, "answers": answers})


def agent(answers: list[Any] | None = None, **more: Any) -> Agent:
    return Agent.model_validate({"id": "a", "answers": answers or [], **more})


def registry(*directories: Path, default: str | None = None) -> ModelRegistry:
    models = ModelRegistry(default)
    models.register("scripted", scripted(directories))
    return models


async def reply_of(
    name: str | None, scene: ModelContext, *directories: Path, prompt: str = "hello", number: int = 0, **more: Any
) -> ModelReply:
    full_name, model = registry(*directories).find(name, scene)
    request = ModelRequest(full_name, (Message("user", prompt),), key="p#0", number=number)
    return await model.answer(request, **more)


def refusal(name: str | None, scene: ModelContext, *directories: Path) -> ModelFailed:
    with pytest.raises(ModelFailed) as caught:
        registry(*directories).find(name, scene)
    return caught.value


async def test_answers_of_the_agent_come_before_those_of_the_step() -> None:
    script = orchestration(ask=["of the step"], other=["of the name"])
    assert (await reply_of("scripted", ModelContext(script, agent(["of the agent"]), "ask"))).text == "of the agent"
    assert (await reply_of("scripted", ModelContext(script, agent(), "ask"))).text == "of the step"
    assert (await reply_of("scripted", ModelContext(script, None, "ask"))).text == "of the step"
    assert (
        await reply_of("scripted:other", ModelContext(script, agent(["of the agent"]), "ask"))
    ).text == "of the name"


async def test_answers_without_when_go_by_the_number_of_the_call_and_the_last_repeats() -> None:
    scene = ModelContext(orchestration(ask=["one", {"say": "two"}, "three"]), None, "ask")
    answers = [(await reply_of("scripted", scene, number=number)).text for number in (0, 1, 2, 3, 99, 1)]
    assert answers == ["one", "two", "three", "three", "three", "two"]


async def test_answers_with_when_go_first_and_do_not_count() -> None:
    script = ["one", {"when": "cost", "say": "money"}, "two", {"when": "cost of", "say": "never"}]
    scene = ModelContext(orchestration(ask=script), None, "ask")
    assert (await reply_of("scripted", scene, prompt="the cost of it")).text == "money"
    assert (await reply_of("scripted", scene, prompt="the Cost")).text == "one"
    assert (await reply_of("scripted", scene, number=1)).text == "two"


async def test_a_script_without_a_fitting_answer_fails() -> None:
    scene = ModelContext(orchestration(ask=[{"when": "x", "say": "y"}]), None, "ask")
    with pytest.raises(ModelFailed, match="hello") as caught:
        await reply_of("scripted", scene)
    assert caught.value.code == "no_answer"


async def test_an_answer_may_have_text_calls_tokens_and_a_cost() -> None:
    entry = {"say": "calls", "tool": "find", "arguments": {"q": 1}, "tokens": 7, "cost_usd": 0.25}
    reply = await reply_of("scripted", ModelContext(orchestration(ask=[entry]), None, "ask"))
    assert (reply.text, reply.tokens_in + reply.tokens_out, reply.cost_usd) == ("calls", 7, 0.25)
    assert [(call.name, call.arguments) for call in reply.calls] == [("find", {"q": 1})]
    plain = await reply_of("scripted", ModelContext(orchestration(ask=["x"]), None, "ask"))
    assert (plain.calls, plain.cost_usd) == ((), None)


async def test_an_answer_can_fail() -> None:
    entry = {"fail": {"code": "rate_limited", "message": "Too fast.", "retryable": False}}
    with pytest.raises(ModelFailed, match="Too fast") as caught:
        await reply_of("scripted", ModelContext(orchestration(ask=[entry]), None, "ask"))
    assert (caught.value.code, caught.value.retryable) == ("rate_limited", False)
    with pytest.raises(ModelFailed) as caught:
        await reply_of("scripted", ModelContext(orchestration(ask=[{"fail": {}}]), None, "ask"))
    assert (caught.value.code, caught.value.retryable) == ("model_error", True)


async def test_an_answer_can_take_its_time_and_be_cancelled() -> None:
    scene = ModelContext(orchestration(ask=[{"say": "late", "delay_seconds": 3600}]), None, "ask")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reply_of("scripted", scene), 0.05)
    scene = ModelContext(orchestration(ask=[{"say": "soon", "delay_seconds": 0.001}]), None, "ask")
    assert (await reply_of("scripted", scene)).text == "soon"


@pytest.mark.parametrize("text", ["", "short", "a longer text " * 300])
async def test_text_is_streamed_piece_by_piece(text: str) -> None:
    pieces: list[str] = []
    scene = ModelContext(orchestration(ask=[text]), None, "ask")

    def delta(piece: ModelDelta) -> None:
        pieces.append(piece.text)

    reply = await reply_of("scripted", scene, delta=delta)
    assert "".join(pieces) == reply.text == text
    assert len(pieces) <= 50
    assert len(pieces) > 1 or len(text) < 10


async def test_a_slow_answer_streams_its_first_piece_before_its_last() -> None:
    scene = ModelContext(orchestration(ask=[{"say": "one piece and another", "piece_delay_seconds": 60}]), None, "ask")
    begun = asyncio.Event()
    pieces: list[str] = []

    def delta(piece: ModelDelta) -> None:
        pieces.append(piece.text)
        begun.set()

    writing = asyncio.create_task(reply_of("scripted", scene, delta=delta))
    await asyncio.wait_for(begun.wait(), 30)
    assert pieces == ["one piec"]
    assert not writing.done()
    writing.cancel()


@pytest.mark.parametrize(
    "script",
    [
        [],
        [{}],
        [{"say": "x", "wen": "typo"}],
        [5],
        [{"when": "x"}],
        [{"say": "x", "delay_seconds": -1}],
        [{"say": "x", "delay_seconds": 3601}],
        [{"say": "x", "delay_seconds": 3590, "piece_delay_seconds": 11}],
        [{"say": "x" * 400, "thinking": "y" * 400, "piece_delay_seconds": 37}],
        [{"when": "", "say": "x"}],
    ],
)
def test_a_script_that_makes_no_sense_is_refused(script: list[Any]) -> None:
    assert refusal("scripted:s", ModelContext(orchestration(s=script), None, "ask")).code == "bad_script"


def test_unknown_names_are_reported_with_those_that_exist() -> None:
    scene = ModelContext(orchestration(draft=["x"]), None, "ask")
    for name, expected in {
        "gpt-5": "Known prefixes: scripted",
        "scriptd:draft": 'did you mean "scripted"',
        "scripted:drafts": 'did you mean "draft"',
        "scripted:none": "scripted:draft",
        "scripted": '"ask": [...]',
        "scripted:x.json": "no directory",
        None: "No model is set",
    }.items():
        error = refusal(name, scene)
        assert error.code == "unknown_model"
        assert expected in error.message
        assert not error.retryable
    with pytest.raises(ModelFailed, match="No models are registered"):
        ModelRegistry().find("x", scene)


def test_which_model_is_called() -> None:
    script = orchestration(a=["x"], b=["x"], c=["x"])
    models = registry(default="scripted:c")
    of_agent = ModelContext(script, agent(model="scripted:b"), "ask")
    assert models.find("scripted:a", of_agent)[0] == "scripted:a"
    assert models.find(None, of_agent)[0] == "scripted:b"
    assert models.find(None, ModelContext(script, agent(), "ask"))[0] == "scripted:c"
    assert models.find(None, ModelContext(script, agent(model="b", provider="scripted"), "ask"))[0] == "scripted:b"
    assert models.find(None, ModelContext(script, agent(model="scripted:b", provider="x"), "ask"))[0] == "scripted:b"


async def test_others_register_their_models() -> None:
    class Echo:
        async def credential(self) -> str:
            return ""

        def __init__(self, name: str) -> None:
            self.name = name

        async def answer(self, request: ModelRequest, delta: Any = None) -> ModelReply:
            return ModelReply(f"{self.name}: {request.prompt}")

    def make(name: str, scene: ModelContext) -> Echo:
        return Echo(name)

    models = registry()
    models.register("echo", make)
    name, model = models.find("echo:loud", ModelContext())
    assert (await model.answer(ModelRequest(name, (Message("user", "hi"),)))).text == "echo:loud: hi"
    for taken in ("echo", "scripted", "", "a:b"):
        with pytest.raises(ValueError):
            models.register(taken, make)


async def test_a_file_is_read_from_the_allowed_directories(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "one.json").write_text('["from the file"]')
    (tmp_path / "deep" / "two.json").write_text('{"answers": [{"when": "hello", "say": "deep"}]}')
    assert (await reply_of("scripted:one.json", ModelContext(), tmp_path)).text == "from the file"
    assert (await reply_of("scripted:deep/two.json", ModelContext(), tmp_path)).text == "deep"
    assert (await reply_of("scripted:two.json", ModelContext(), tmp_path, tmp_path / "deep")).text == "deep"
    (tmp_path / "one.json").write_text('["changed"]')
    assert (await reply_of("scripted:one.json", ModelContext(), tmp_path)).text == "changed"


def test_no_name_leads_out_of_the_allowed_directories(tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (tmp_path / "secret.json").write_text('["secret"]')
    (allowed / "link.json").symlink_to(tmp_path / "secret.json")
    for name in ("../secret.json", str(tmp_path / "secret.json"), "link.json", "missing.json", "x\x00.json"):
        error = refusal(f"scripted:{name}", ModelContext(), allowed)
        assert error.code == "unknown_model"
        assert "secret" not in error.message.replace(name, "")


@pytest.mark.parametrize(
    "content", ["", "{", "5", "null", '{"answers": 5}', '{"answer": []}', '{"answers": ["x"], "calls": "../c.jsonl"}']
)
def test_a_file_that_makes_no_sense_is_refused(tmp_path: Path, content: str) -> None:
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (allowed / "s.json").write_text(content)
    assert refusal("scripted:s.json", ModelContext(), allowed).code == "bad_script"
    assert not (tmp_path / "c.jsonl").exists()


async def test_calls_are_written_down_one_line_each_also_those_that_fail(tmp_path: Path) -> None:
    answers: list[Any] = ["x", {"when": "bad", "fail": {}}]
    (tmp_path / "s.json").write_text(json.dumps({"calls": "calls.jsonl", "answers": answers}))
    await asyncio.gather(
        *(reply_of("scripted:s.json", ModelContext(), tmp_path, number=number) for number in range(20))
    )
    with pytest.raises(ModelFailed):
        await reply_of("scripted:s.json", ModelContext(), tmp_path, prompt="bad\n" + "x" * 10_000)
    lines = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    assert len(lines) == 21
    assert {line["pid"] for line in lines} == {os.getpid()}
    assert sorted(line["number"] for line in lines[:20]) == list(range(20))
    assert lines[0]["key"] == "p#0"
    assert lines[20]["prompt"].startswith("bad\nxxx")
    assert len(lines[20]["prompt"]) == 2000


async def test_a_call_that_cannot_be_written_down_fails(tmp_path: Path) -> None:
    model = ScriptedModel("s", (), tmp_path / "missing" / "calls.jsonl")
    with pytest.raises(ModelFailed, match="cannot be written") as caught:
        await model.answer(ModelRequest("s", ()))
    assert caught.value.code == "bad_script"
