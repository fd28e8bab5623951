"""A graph that chats about a journey, streams its answers and asks a person before it books. It needs no key.

The model is scripted. With a model of a provider, replace `model` by `recorded(init_chat_model(...))`.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from typing import Any, Literal

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

WORD_SECONDS = float(os.environ.get("WORD_SECONDS", "0.06"))
OFFER = "the 9:40 train to Vienna for 38 euro"


class ScriptedModel(BaseChatModel):
    """A chat model that answers by rules, one word at a time."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(_answer(messages)))])

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for word in re.findall(r"\S+\s*", _answer(messages)):
            await asyncio.sleep(WORD_SECONDS)
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=word))
            if run_manager is not None:
                await run_manager.on_llm_new_token(word, chunk=chunk)
            yield chunk


def _answer(messages: list[BaseMessage]) -> str:
    last = messages[-1]
    if last.type == "system":
        booked = "yes" in str(last.content)
        return f"Booked: {OFFER}. Have a good journey!" if booked else "Nothing was booked. Ask me whenever you like."
    if "book" in str(last.content).lower():
        return f"I have found {OFFER}. It leaves from platform 4 and takes two hours and twenty minutes."
    return "I can look up trains for you, and book one if you say so."


model = ScriptedModel()


async def talk(state: MessagesState) -> Command[Literal["approve", "__end__"]]:
    """Answer the last message; continue with the approval if the answer is an offer."""
    answer = await model.ainvoke(state["messages"])
    if OFFER in str(answer.content):
        return Command(goto="approve", update={"messages": [answer]})
    return Command(goto="__end__", update={"messages": [answer]})


async def approve(state: MessagesState) -> Command[Literal["finish"]]:
    """Ask a person. The run ends here, and the run with the answer continues."""
    decision = interrupt({"question": f"Book {OFFER}?", "options": ["yes", "no"]})
    note = {"role": "system", "content": f"The customer answered {decision}."}
    return Command(goto="finish", update={"messages": [note]})


async def finish(state: MessagesState) -> dict[str, Any]:
    """Report what was booked."""
    return {"messages": [await model.ainvoke(state["messages"])]}


builder: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
builder.add_node(talk)
builder.add_node(approve)
builder.add_node(finish)
builder.add_edge(START, "talk")
builder.add_edge("finish", END)
graph = builder.compile()
