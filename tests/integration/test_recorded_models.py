"""A recorded chat model: after a crash inside a node, answers that had arrived are not paid again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from langchain_core.language_models import BaseChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage
from langgraph.graph import START, StateGraph, add_messages
from typing_extensions import TypedDict

from runlane import Status
from runlane.domain.text import load_json
from runlane.graphs import recorded
from tests.graph_runs import GraphThread
from tests.harness import eventually
from tests.integration.process import Process


class Talk(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class Answers:
    """The provider: it counts the calls that are paid."""

    def __init__(self) -> None:
        self.paid = 0

    def model(self) -> BaseChatModel:
        return recorded(GenericFakeChatModel(messages=self._messages()))

    def _messages(self) -> Iterator[AIMessage]:
        while True:
            self.paid += 1
            usage: Any = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
            yield AIMessage(content=f"answer {self.paid}", id=f"ai-{self.paid}", usage_metadata=usage)


@pytest.mark.parametrize("how", ["ainvoke", "astream", "plain"])
async def test_a_repeated_node_does_not_pay_again(process: Process, how: str) -> None:
    provider, failures = Answers(), iter([True, False])
    model = provider.model()

    def fails_once() -> None:
        if next(failures):
            raise ValueError("the worker dies here")

    async def talk(state: Talk) -> dict[str, Any]:
        first = await model.ainvoke([*state["messages"], ("user", "same")])
        second = await model.ainvoke([*state["messages"], ("user", "same")])
        fails_once()
        return {"messages": [first, second]}

    def plain(state: Talk) -> dict[str, Any]:
        answers = [model.invoke([*state["messages"], ("user", "same")]) for _ in range(2)]
        fails_once()
        return {"messages": answers}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(Talk)
    builder.add_node("talk", plain if how == "plain" else talk)
    builder.add_edge(START, "talk")
    process.app.graph("g", builder)
    await process.start()
    thread = await GraphThread(await process.store(), await process.app.connect(), "g").create()
    # The mode of messages makes LangGraph stream the model.
    modes = ["messages-tuple"] if how == "astream" else ["values"]
    run_id = await thread.start(input={"messages": [("user", "hi")]}, stream_mode=modes, max_attempts=2)
    store = await process.store()

    async def failed_once() -> bool:
        return (await store.get(run_id)).failures == 1

    await eventually(failed_once, "the first attempt")
    await store.make_due()
    run = await process.end(run_id)
    assert run.status is Status.COMPLETED, run.error
    assert [message["content"] for message in run.result["messages"]] == ["hi", "answer 1", "answer 2"]
    assert provider.paid == 2
    rows = await store.sql("select tokens_in, tokens_out from run_calls where run_id = :id", id=run_id)
    assert len(rows) == 2


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_live_answer_is_streamed(process: Process, kind: str) -> None:
    """Also by a model that has a synchronous stream alone, which LangChain reads in a thread."""
    model = recorded(GenericFakeChatModel(messages=iter([AIMessage("one two three", id="ai-1")])))

    async def talk(state: Talk) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    def plain(state: Talk) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(Talk)
    builder.add_node("talk", plain if kind == "plain" else talk)
    builder.add_edge(START, "talk")
    process.app.graph("g", builder)
    await process.start()
    store = await process.store()
    thread = await GraphThread(store, await process.app.connect(), "g").create()
    run_id = await thread.start(input={"messages": [("user", "hi")]}, stream_mode=["messages-tuple"])
    assert (await process.end(run_id)).status is Status.COMPLETED
    rows = await store.sql("select data from run_events where run_id = :id and type = 'graph_stream'", id=run_id)
    chunks = [load_json(row["data"])["data"][0]["content"] for row in rows]
    assert chunks == ["one", " ", "two", " ", "three"]


class _Named(GenericFakeChatModel):
    """A model with a name."""

    model_name: str


async def test_each_model_gets_its_own_answers(process: Process) -> None:
    """Two models are asked the same, and in another order after the crash."""
    orders = iter([("small", "large"), ("large", "small")])

    def named(name: str) -> BaseChatModel:
        return recorded(_Named(messages=iter([AIMessage(f"of {name}", id=name)]), model_name=name))

    models = {name: named(name) for name in ("small", "large")}

    async def talk(state: Talk) -> dict[str, Any]:
        order = next(orders)
        answers = {name: await models[name].ainvoke("same") for name in order}
        if order[0] == "small":
            raise ValueError("the worker dies here")
        return {"messages": [answers["small"], answers["large"]]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(Talk)
    builder.add_node("talk", talk)
    builder.add_edge(START, "talk")
    process.app.graph("g", builder)
    await process.start()
    store = await process.store()
    thread = await GraphThread(store, await process.app.connect(), "g").create()
    run_id = await thread.start(input={"messages": []}, max_attempts=2)

    async def failed_once() -> bool:
        return (await store.get(run_id)).failures == 1

    await eventually(failed_once, "the first attempt")
    await store.make_due()
    run = await process.end(run_id)
    assert run.status is Status.COMPLETED, run.error
    assert [message["content"] for message in run.result["messages"]] == ["of small", "of large"]


async def test_outside_of_a_run_it_is_the_model_itself() -> None:
    assert (await Answers().model().ainvoke("hi")).content == "answer 1"
