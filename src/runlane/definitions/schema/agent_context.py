"""The context of an agent: how its conversations are compacted, and the memory that it reads and writes."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field, model_validator

from runlane.definitions.schema.base import DefinitionModel
from runlane.domain.memory_names import TITLE_PATTERN

MIN_WINDOW_TOKENS: Final = 1_000
# An estimate. The token counts of providers correct it during a conversation.
BYTES_PER_TOKEN: Final = 4
MemoryTool = Literal["remember", "recall", "correct", "forget"]
MEMORY_TOOLS: Final[tuple[MemoryTool, ...]] = ("remember", "recall", "correct", "forget")


class Compaction(DefinitionModel):
    """Keeps conversations within the model's context window: a summary of a model replaces older messages."""

    window_tokens: int = Field(
        ge=MIN_WINDOW_TOKENS, le=10_000_000, description="The context window of the model, including its answer."
    )
    trigger: float = Field(
        0.8, ge=0.1, le=0.95, description="The share of the window at which older messages are summarized."
    )
    keep: float = Field(
        0.4, ge=0.05, le=0.9, description="The share of the window for the newest messages, which are kept unchanged."
    )
    summary_tokens: int = Field(1000, ge=50, le=100_000, description="Maximum length of the summary.")
    model: str | None = Field(None, description="The model that writes summaries; the agent's model if empty.")

    @property
    def trigger_tokens(self) -> int:
        """The size of a request above which older messages are summarized."""
        return int(self.window_tokens * self.trigger)

    @property
    def keep_tokens(self) -> int:
        """The size of the newest messages that are kept."""
        return int(self.window_tokens * self.keep)

    def check_instructions(self, text: str) -> None:
        """Raise ValueError if the instructions leave no room for a conversation."""
        tokens = len(text.encode()) // BYTES_PER_TOKEN
        if tokens + self.summary_tokens >= self.trigger_tokens:
            raise ValueError(
                f"the system_prompt has about {tokens} tokens and leaves no room for a conversation below the trigger "
                f"of {self.trigger_tokens} tokens: raise compaction.window_tokens or shorten it"
            )

    @model_validator(mode="after")
    def _makes_room(self) -> Compaction:
        if self.keep_tokens + self.summary_tokens >= self.trigger_tokens:
            raise ValueError(
                f"keep ({self.keep_tokens} tokens) and summary_tokens ({self.summary_tokens}) must be less than "
                f"trigger ({self.trigger_tokens} tokens), so that a summary makes room"
            )
        return self


class AgentMemory(DefinitionModel):
    """The memory that an agent reads and writes: one for all runs, or one for each session, user or tenant."""

    vault: str = Field(
        "agents", pattern=TITLE_PATTERN, description="The vault of the memory; created if it does not exist."
    )
    title: str = Field(
        min_length=1,
        max_length=500,
        description="The title of the memory, which is created if it does not exist. Placeholders: {{session_id}}, "
        "{{tenant}}, "
        "{{agent_id}}, and keys of the state, such as {{user_id}} of the run's input.",
    )
    tools: list[MemoryTool] = Field(
        default_factory=lambda: list(MEMORY_TOOLS), description="The memory tools that the model receives."
    )
    context: Literal["update", "read", "none"] = Field(
        "update",
        description="How the memory's document `context` is used. read: the model receives it at the start. update: "
        "in addition, a model call rewrites it at the end of the run.",
    )
    update_every_turns: int = Field(
        1, ge=1, le=1000, description="In a chat: the number of turns after which the document is rewritten."
    )
    context_tokens: int = Field(1000, ge=50, le=16_000, description="Maximum length of the document.")
    model: str | None = Field(None, description="The model that writes the document; the agent's model if empty.")
