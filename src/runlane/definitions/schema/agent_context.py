"""What an agent remembers: how its conversations are compacted, and the memory that it reads and writes."""

from __future__ import annotations

from typing import Final

from pydantic import Field, model_validator

from runlane.definitions.schema.base import DefinitionModel

MIN_WINDOW_TOKENS: Final = 1_000
# An estimate; the counts of providers correct it while a conversation lasts.
BYTES_PER_TOKEN: Final = 4


class Compaction(DefinitionModel):
    """Keeps conversations inside the model's window: older messages are replaced by a summary of a model."""

    window_tokens: int = Field(
        ge=MIN_WINDOW_TOKENS, le=10_000_000, description="The context window of the model, with room for its answer."
    )
    trigger: float = Field(
        0.8, ge=0.1, le=0.95, description="The share of the window at which older messages are summarized."
    )
    keep: float = Field(
        0.4, ge=0.05, le=0.9, description="The share of the window for the newest messages, as they are."
    )
    summary_tokens: int = Field(1000, ge=50, le=100_000, description="Maximum length of the summary.")
    model: str | None = Field(None, description="The model that writes summaries; the agent's model if empty.")

    @property
    def trigger_tokens(self) -> int:
        """The size of a request from which on older messages are summarized."""
        return int(self.window_tokens * self.trigger)

    @property
    def keep_tokens(self) -> int:
        """The size of the newest messages that are kept."""
        return int(self.window_tokens * self.keep)

    def check_instructions(self, text: str) -> None:
        """Raise ValueError for instructions that leave no room for a conversation."""
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
