"""Prompts of the MCP server: how a client maintains a memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from runlane.domain.access import Permission
from runlane.domain.memory import DEFAULT_MEMORY_TYPE
from runlane.domain.memory_prompts import default_prompts

NEEDS: Final = frozenset({Permission.MEMORY_READ})


@dataclass(frozen=True, slots=True)
class ServedPrompt:
    """A prompt of the memory API. `template` is its name there."""

    name: str
    title: str
    description: str
    template: str

    def text(self, arguments: Mapping[str, str]) -> str:
        """Return the prompt for a memory."""
        prompts = default_prompts(arguments.get("memory_type") or DEFAULT_MEMORY_TYPE)
        memory = arguments.get("memory_id")
        where = f"The memory is {memory}.\n\n" if memory else ""
        return f"{where}{prompts['templates'][self.template]}\n\n{prompts['context_summary_rules']}"


PROMPTS: Final[tuple[ServedPrompt, ...]] = (
    ServedPrompt("context_prompt", "Update the context", "How to write the context of a memory.", "context_prompt"),
    ServedPrompt("entry_capture_prompt", "Capture entries", "What to store as entries.", "entry_capture_prompt"),
    ServedPrompt("summary_prompt", "Summarize an entry", "How to summarize an entry.", "summary_prompt"),
)
