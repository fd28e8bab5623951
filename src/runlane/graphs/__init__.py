"""LangGraph graphs: their configuration file, loading, execution and recovery. Only workers import LangGraph."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

__all__ = ["recorded"]


def recorded(model: BaseChatModel) -> BaseChatModel:
    """Return a chat model whose answers are stored when they arrive, inside a hosted run.

    After a crash in the node that called it, the same call returns the stored answer and is not paid for again. Outside
    of a hosted run, the wrapper has no effect.
    """
    from runlane.graphs.recorded_model import RecordedChatModel

    return RecordedChatModel(inner=model)
