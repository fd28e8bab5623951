"""Work on memories that workers execute as runs. A worker with an embedding model has these tasks.

Only Runlane starts them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from runlane.domain.task import Task, make_task
from runlane.errors import Fail
from runlane.memory.opener import MemoryOpener
from runlane.settings import Settings

if TYPE_CHECKING:
    from runlane.memory.indexing import MemoryIndex

INDEX_TASK: Final = "runlane.memory.index"


class RunContext(Protocol):
    """What these tasks use of the context of their run."""

    @property
    def saved(self) -> Any: ...

    def checkpoint(self, value: Any) -> Awaitable[None]: ...

    def progress(self, fraction: float, note: str | None = None) -> Awaitable[None]: ...


def memory_tasks(settings: Settings, opener: MemoryOpener) -> Mapping[str, Task]:
    """Return the tasks of a worker whose memory is opened by `opener`, by name."""
    if settings.memory_embedding_model is None:
        return {}

    async def index(ctx: Any, memory_id: str, seq: int, reset: bool = False) -> dict[str, int]:
        """Compute the embeddings that the entries of a memory need up to this number."""
        found = await _index_of(opener)
        context: RunContext = ctx
        if reset and context.saved is None:
            await found.reset(memory_id)
            await context.checkpoint({"reset": True})
        return await found.index(memory_id, context.progress)

    made = make_task(index, INDEX_TASK)
    return {made.name: made}


async def _index_of(opener: MemoryOpener) -> MemoryIndex:
    index = await opener.index()
    if index is None:
        raise Fail("No embedding model is set. Set RUNLANE_MEMORY_EMBEDDING_MODEL for this worker.")
    return index
