"""The prompts with which an agent keeps a memory."""

from __future__ import annotations

from typing import Any, Final

VERSION: Final = 1
_RULES: Final = (
    "The context is one document that a reader with no other knowledge can start from. Keep what is true now: goals, "
    "decisions with their reasons, open questions, names. Drop what is finished or replaced. Write short sentences."
)
_CONTEXT: Final = (
    "Update the context document of this memory from the conversation. Return the whole document. Do not repeat "
    "entries word for word."
)
_CAPTURE: Final = (
    "Store one entry for each fact, decision or preference that will matter later. An entry stands on its own: name "
    "people and things, give dates, no pronouns without a noun. The entry is stored when the call returns its id; "
    "do not add it again."
)
_SUMMARY: Final = "Summarise the entry in one sentence of at most 512 characters that contains its names and numbers."


def default_prompts(memory_type: str) -> dict[str, Any]:
    """Return the prompts for a type of memory."""
    return {
        "memory_type": memory_type,
        "version": VERSION,
        "context_summary_rules": _RULES,
        "templates": {"context_prompt": _CONTEXT, "entry_capture_prompt": _CAPTURE, "summary_prompt": _SUMMARY},
    }
