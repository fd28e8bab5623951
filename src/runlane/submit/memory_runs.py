"""Start runs that work on memories: one at a time for each memory, in the order in which they were started."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson
import structlog

from runlane.domain.lane import DEFAULT_LANE
from runlane.domain.memory_archive import MemoryImport, import_json
from runlane.domain.options import RunOptions
from runlane.domain.run import Accepted
from runlane.errors import InputTooLarge, InvalidRequest, RunlaneError
from runlane.maintenance.service import PeriodicService
from runlane.memory.bounds import check_entry, check_fragment
from runlane.memory.run_tasks import EXPORT_TASK, IMPORT_TASK, INDEX_TASK, PURGE_TASK
from runlane.resources import Resources
from runlane.store.memory.auditing import audit_memory
from runlane.store.queue.accept import NewRun
from runlane.submit.tasks import new_run

if TYPE_CHECKING:
    from runlane.memory.indexing import IndexSchedule

log = structlog.get_logger(__name__)

_SECONDS: Final = 1.0
_ATTEMPTS: Final = 5
_STARTED_AT_ONCE: Final = 200


def memory_run(
    connection: Resources, target: str, tenant: str, memory_id: str, given: Mapping[str, Any], key: str | None = None
) -> NewRun:
    """Return a run of a task of memory."""
    text = orjson.dumps({"memory_id": memory_id, **given}).decode()
    options = RunOptions(ordering_key=f"memory:{memory_id}", idempotency_key=key)
    losses = connection.settings.max_losses
    return new_run(
        target, text, options, lane=DEFAULT_LANE, max_attempts=_ATTEMPTS, max_losses=losses, tenant=tenant, trace=None
    )


async def start_reindex(connection: Resources, tenant: str, memory_id: str) -> Accepted:
    """Start a run that computes all embeddings of a memory again."""
    service = await connection.memory_opener.service()
    memory = await service.get_memory(tenant, memory_id)
    if await connection.memory_opener.index() is None:
        raise InvalidRequest(
            "No embedding model is set, so there is nothing to index again. Set RUNLANE_MEMORY_EMBEDDING_MODEL."
        )
    given = {"seq": memory.last_seq, "reset": True}
    (accepted,) = await connection.accept([memory_run(connection, INDEX_TASK, tenant, memory_id, given)])
    return accepted


async def start_export(connection: Resources, tenant: str, memory_id: str, *, actor: str) -> Accepted:
    """Start a run that writes everything of a memory to its log."""
    return await _start(connection, EXPORT_TASK, tenant, memory_id, {}, actor=actor)


async def start_import(
    connection: Resources, tenant: str, memory_id: str, given: MemoryImport, *, actor: str, key: str | None = None
) -> Accepted:
    """Start a run that adds entries and fragments to a memory. Runs of one memory are executed in their order."""
    for entry in given.entries:
        check_entry(entry, 0)
    for fragment in given.fragments:
        check_fragment(fragment.name, fragment.content)
    return await _start(connection, IMPORT_TASK, tenant, memory_id, import_json(given), actor=actor, key=key)


async def start_purge(
    connection: Resources, tenant: str, memory_id: str, before_us: int | None, *, actor: str
) -> Accepted:
    """Start a run that deletes the content of the entries of a memory, or of those before a time."""
    return await _start(connection, PURGE_TASK, tenant, memory_id, {"before_us": before_us}, actor=actor)


async def _start(
    connection: Resources,
    target: str,
    tenant: str,
    memory_id: str,
    given: Mapping[str, Any],
    *,
    actor: str,
    key: str | None = None,
) -> Accepted:
    await (await connection.memory_opener.service()).get_memory(tenant, memory_id)
    run = memory_run(connection, target, tenant, memory_id, given, key)
    if len(run.input) > connection.settings.max_input_bytes:
        raise InputTooLarge(
            f"The content has {len(run.input)} bytes; at most {connection.settings.max_input_bytes} are allowed "
            "(RUNLANE_MAX_INPUT_BYTES). Import it in several runs."
        )
    await audit_memory(connection.database, actor, tenant, target.removeprefix("runlane."), memory_id)
    (accepted,) = await connection.accept([run])
    return accepted


def memory_services(connection: Resources) -> list[PeriodicService]:
    """Return the maintenance services of memory that the settings need."""
    if connection.settings.memory_embedding_model is None:
        return []
    return [PeriodicService("memory_index", _SECONDS, MemoryIndexStarter(connection).run_once)]


class MemoryIndexStarter:
    """Starts the runs that embed new entries. Every process with maintenance has one."""

    def __init__(self, connection: Resources) -> None:
        self._connection = connection
        self._schedule: IndexSchedule | None = None

    async def run_once(self) -> bool:
        """Start what is due; return whether there may be more."""
        connection = self._connection
        if self._schedule is None:
            index = await connection.memory_opener.index()
            if index is None:
                return False
            from runlane.memory.indexing import IndexSchedule

            self._schedule = IndexSchedule(index)
        due = await self._schedule.due(_STARTED_AT_ONCE)
        runs = [
            # With the key, several processes that find the same entries start one run.
            memory_run(connection, INDEX_TASK, tenant, memory_id, {"seq": seq}, f"memory-index:{memory_id}:{seq}")
            for memory_id, tenant, seq in due
        ]
        accepted = await asyncio.gather(*(connection.accept([run]) for run in runs), return_exceptions=True)
        for (memory_id, tenant, _), result in zip(due, accepted, strict=True):
            # A tenant that may not start runs now must not delay other tenants; its memory is tried again later.
            if isinstance(result, RunlaneError):
                log.warning("memory_index_not_started", memory=memory_id, tenant=tenant, problem=str(result))
                self._schedule.retry(memory_id)
            elif isinstance(result, BaseException):
                raise result
        return len(due) == _STARTED_AT_ONCE
