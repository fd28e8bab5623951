"""Work on memories that workers execute as runs: embeddings, export, import and purge.

Only Runlane starts them. A worker without an embedding model has no task for embeddings.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from runlane.domain.memory import MEMORY_TASKS
from runlane.domain.task import Task, make_task
from runlane.errors import Fail
from runlane.memory.opener import MemoryOpener
from runlane.settings import Settings

if TYPE_CHECKING:
    from runlane.memory.indexing import MemoryIndex

INDEX_TASK: Final = f"{MEMORY_TASKS}index"
EXPORT_TASK: Final = f"{MEMORY_TASKS}export"
IMPORT_TASK: Final = f"{MEMORY_TASKS}import"
PURGE_TASK: Final = f"{MEMORY_TASKS}purge"


class RunContext(Protocol):
    """The part of the context of a run that these tasks use."""

    @property
    def saved(self) -> Any: ...

    def checkpoint(self, value: Any) -> Awaitable[None]: ...

    def progress(self, fraction: float, note: str | None = None) -> Awaitable[None]: ...


def memory_tasks(settings: Settings, opener: MemoryOpener) -> Mapping[str, Task]:
    """Return the tasks of a worker whose memory is opened by `opener`, by name."""
    tasks = _archive_tasks(opener)
    if settings.memory_embedding_model is not None:
        tasks.append(_index_task(opener))
    return {task.name: task for task in tasks}


def _archive_tasks(opener: MemoryOpener) -> list[Task]:
    async def export(ctx: Any, memory_id: str) -> dict[str, int]:
        """Write everything of a memory to the log of the run."""
        from runlane.memory import archiving

        return await archiving.with_retries(archiving.export_memory(ctx, await opener.service(), memory_id))

    async def import_(
        ctx: Any, memory_id: str, entries: list[dict[str, Any]], fragments: list[dict[str, Any]]
    ) -> dict[str, int]:
        """Add entries and fragments to a memory."""
        from runlane.memory import archiving

        service = await opener.service()
        return await archiving.with_retries(archiving.import_memory(ctx, service, memory_id, entries, fragments))

    async def purge(ctx: Any, memory_id: str, before_us: int | None = None) -> dict[str, int]:
        """Delete the content of the entries of a memory."""
        from runlane.memory import archiving

        return await archiving.with_retries(archiving.purge_memory(ctx, await opener.service(), memory_id, before_us))

    return [make_task(export, EXPORT_TASK), make_task(import_, IMPORT_TASK), make_task(purge, PURGE_TASK)]


def _index_task(opener: MemoryOpener) -> Task:
    async def index(ctx: Any, memory_id: str, seq: int, reset: bool = False) -> dict[str, int]:
        """Compute the embeddings that the entries of a memory need up to this number."""
        found = await _index_of(opener)
        context: RunContext = ctx
        if reset and context.saved is None:
            await found.reset(memory_id)
            await context.checkpoint({"reset": True})
        return await found.index(memory_id, context.progress)

    return make_task(index, INDEX_TASK)


async def _index_of(opener: MemoryOpener) -> MemoryIndex:
    index = await opener.index()
    if index is None:
        raise Fail("No embedding model is set. Set RUNLANE_MEMORY_EMBEDDING_MODEL for this worker.")
    return index
