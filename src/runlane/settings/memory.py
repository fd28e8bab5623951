"""Settings of memory: its storage, and the guarantees of its processes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from runlane.settings.group import SettingsGroup

MemoryMode = Literal["local", "replicated", "direct"]


class MemorySettings(SettingsGroup):
    """How a process stores the memory of agents and people."""

    memory_mode: Literal["auto", "local", "replicated", "direct"] = Field(
        default="auto",
        description="local: the file is the truth. replicated: the file acknowledges and is replicated to Postgres. "
        "direct: every change is committed to Postgres. auto: local on SQLite; on Postgres direct, or replicated if "
        "RUNLANE_MEMORY_PATH is set.",
    )
    memory_path: Path | None = Field(
        default=None,
        description="The memory file, on a disk that outlives the process. Default: NAME-memory.db beside "
        "the SQLite database NAME.db.",
    )
    memory_synchronous: Literal["full", "normal"] = Field(
        default="full",
        description="full: an acknowledged change survives a power failure. normal: it survives a crash of the process "
        "only.",
    )
    memory_submit_seconds: float = Field(
        default=0.1,
        ge=0,
        le=10,
        description="How long a change waits for space in a full shard before it is refused with 429.",
    )
    memory_node_url: str = Field(
        default="",
        max_length=500,
        description="The address of this process for other nodes, which send it changes of memories that it owns.",
    )
    memory_lease_seconds: float = Field(
        default=300.0,
        ge=2,
        le=86_400,
        description="In the mode replicated: how long a process may write to its memories without Postgres, and how "
        "long others wait before they take the memories of a lost one.",
    )
    memory_outage_seconds: float | None = Field(
        default=None,
        ge=0,
        le=86_400,
        description="In the mode replicated: for how long after its last check an API key is accepted for the contents "
        "of memories while Postgres is unavailable, at most RUNLANE_MEMORY_LEASE_SECONDS, which is the default. 0: no "
        "key is accepted without a check.",
    )
    memory_idempotency_hours: float = Field(
        default=24.0, gt=0, description="For how long a repeated change is recognized by its idempotency key."
    )
    memory_embedding_model: str | None = Field(
        default=None,
        max_length=200,
        description="An embedding model, such as openai:text-embedding-3-small: entries are also found by meaning. "
        "Default: search by words alone.",
    )
    memory_copy_days: float = Field(
        default=30.0,
        gt=0,
        description="In the mode replicated: local copies of memories that were not used for this time are deleted.",
    )
    memory_copy_bytes: int = Field(
        default=500 * 1024 * 1024,
        ge=1024 * 1024,
        description="In the mode replicated: above this size of the file, replicated copies are deleted, least "
        "recently used first.",
    )
    memory_copies: int = Field(
        default=10_000,
        ge=1,
        description="In the mode replicated: above this number, replicated copies are deleted, least recently used "
        "first.",
    )
