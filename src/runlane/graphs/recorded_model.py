"""A chat model whose answers are stored in the journal of the run, so that a repeated node does not pay for them again.

A live answer streams as that of the model itself. A stored one arrives in one chunk.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    message_chunk_to_message,
    message_to_dict,
    messages_from_dict,
)
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langgraph.config import get_config

from runlane.domain.text import load_json
from runlane.graphs.call_journal import CallJournal, current_journal
from runlane.graphs.plain import to_json


class RecordedChatModel(BaseChatModel):
    """A chat model with a journal."""

    inner: BaseChatModel

    @property
    def _llm_type(self) -> str:
        return self.inner._llm_type  # noqa: SLF001 - what a model that wraps another one has to delegate

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        return self.inner._get_ls_params(stop, **kwargs)  # noqa: SLF001

    def bind_tools(
        self, tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool], **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Bind tools as the model itself does."""
        bound = cast("Any", self.inner.bind_tools(tools, **kwargs))
        return cast("Runnable[LanguageModelInput, AIMessage]", self.bind(**bound.kwargs))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        call = _Call.begin(self.inner, messages, stop, kwargs)
        stored = None if call is None else await call.find()
        if stored is not None:
            return ChatResult(generations=[ChatGeneration(message=stored)])
        result = await self.inner._agenerate(messages, stop, run_manager, **kwargs)  # noqa: SLF001
        if call is not None:
            await call.keep(result.generations[0].message)
        return result

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        call = _Call.begin(self.inner, messages, stop, kwargs)
        stored = None if call is None else await call.find()
        if stored is not None:
            yield ChatGenerationChunk(message=_chunk(stored))
            return
        whole: Any = None
        if not _streams(self.inner):
            result = await self.inner._agenerate(messages, stop, run_manager, **kwargs)  # noqa: SLF001
            whole = _chunk(result.generations[0].message)
            yield ChatGenerationChunk(message=whole)
        else:
            async for chunk in self.inner._astream(messages, stop, run_manager, **kwargs):  # noqa: SLF001
                whole = chunk.message if whole is None else whole + chunk.message
                yield chunk
        if call is not None and whole is not None:
            await call.keep(message_chunk_to_message(whole))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        call = _Call.begin(self.inner, messages, stop, kwargs)
        stored = None if call is None else call.wait(call.find())
        if stored is not None:
            yield ChatGenerationChunk(message=_chunk(stored))
            return
        whole: Any = None
        if type(self.inner)._stream is BaseChatModel._stream:  # noqa: SLF001
            result = self.inner._generate(messages, stop, run_manager, **kwargs)  # noqa: SLF001
            whole = _chunk(result.generations[0].message)
            yield ChatGenerationChunk(message=whole)
        else:
            for chunk in self.inner._stream(messages, stop, run_manager, **kwargs):  # noqa: SLF001
                whole = chunk.message if whole is None else whole + chunk.message
                yield chunk
        if call is not None and whole is not None:
            call.wait(call.keep(message_chunk_to_message(whole)))

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        call = _Call.begin(self.inner, messages, stop, kwargs)
        stored = None if call is None else call.wait(call.find())
        if stored is not None:
            return ChatResult(generations=[ChatGeneration(message=stored)])
        result = self.inner._generate(messages, stop, run_manager, **kwargs)  # noqa: SLF001
        if call is not None:
            call.wait(call.keep(result.generations[0].message))
        return result


class _Call:
    """One call of a model in a task of a hosted run."""

    def __init__(self, journal: CallJournal, path: str, request: str) -> None:
        self._journal = journal
        self._path = path
        self._key = journal.key(path, request)

    @classmethod
    def begin(
        cls,
        model: BaseChatModel,
        messages: Sequence[BaseMessage],
        stop: Sequence[str] | None,
        options: dict[str, Any],
    ) -> _Call | None:
        """Return the call, or None outside of a hosted run."""
        journal = current_journal.get()
        if journal is None:
            return None
        path: str = get_config().get("configurable", {}).get("checkpoint_ns") or ""
        # Ids of messages are random where the state has none, so they do not identify a call.
        shown = [message.model_dump(exclude={"id"}) for message in messages]
        return cls(journal, path, to_json([_identity(model), shown, stop, sorted(options.items())]))

    async def find(self) -> BaseMessage | None:
        payload = await self._journal.find(self._path, self._key)
        return None if payload is None else messages_from_dict([load_json(payload)])[0]

    async def keep(self, message: BaseMessage) -> None:
        usage = cast("dict[str, int]", getattr(message, "usage_metadata", None) or {})
        metadata = cast("dict[str, Any]", message.response_metadata)
        model = str(metadata.get("model_name") or metadata.get("model") or "")
        tokens = (usage.get("input_tokens", 0), usage.get("output_tokens", 0))
        await self._journal.keep(self._path, self._key, to_json(message_to_dict(message)), model, tokens)

    def wait(self, coroutine: Any) -> Any:
        """Wait in the thread of a plain node."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._journal.loop).result()


def _streams(model: BaseChatModel) -> bool:
    """Return whether a model streams its answers. The stream of one with `_stream` alone is read in a thread."""
    known = type(model)
    return (known._astream, known._stream) != (BaseChatModel._astream, BaseChatModel._stream)  # noqa: SLF001


def _identity(model: BaseChatModel) -> list[Any]:
    """Return the kind and the parameters of a model: two models may be asked the same."""
    parameters = cast("dict[str, Any]", model._get_ls_params())  # noqa: SLF001 - as tracers identify a model
    return [type(model).__qualname__, sorted((name, value) for name, value in parameters.items())]


def _chunk(message: BaseMessage) -> AIMessageChunk:
    fields = message.model_dump(exclude={"type"})
    return AIMessageChunk(**fields, chunk_position="last")
