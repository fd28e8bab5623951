"""Requests for runs of graphs: an assistant and a thread become a run that the store accepts in the thread's order."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from runlane.domain.access_rule import AccessRule
from runlane.domain.assistant import Assistant
from runlane.domain.graph import (
    GraphRequest,
    MultitaskStrategy,
    Operation,
    graph_target,
    merge_config,
    without_user,
)
from runlane.domain.graph_registry import DefaultTtl
from runlane.domain.lane import DEFAULT_LANE
from runlane.domain.native_thread import is_native
from runlane.domain.options import RunOptions
from runlane.domain.text import utf8_size
from runlane.errors import InputTooLarge
from runlane.store.queue.accept import NewRun
from runlane.store.sql.database import Database
from runlane.store.sql.shared_reads import SharedReads, one_by_one
from runlane.store.threads.assistants import resolve_assistant
from runlane.store.threads.native_runs import NativeTurn
from runlane.store.threads.thread_start import ThreadStart
from runlane.submit.tasks import new_run

# An exception of a node fails the run at once: nodes have retry policies of their own.
_ATTEMPTS: Final = 1


@dataclass(frozen=True, slots=True)
class GraphRunRequest:
    """A run of an assistant. `request` has only the config and context of the request, without the assistant's.

    Without a thread, one is created for the run, and deleted with its end if `deletes` is set. `creates` creates a
    thread that does not exist, with `ttl`. A thread that `rule` does not allow does not exist either.
    """

    assistant_id: str
    request: GraphRequest
    thread_id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    strategy: MultitaskStrategy = MultitaskStrategy.ENQUEUE
    creates: bool = False
    deletes: bool = False
    operation: Operation = Operation.RUN
    options: RunOptions = field(default_factory=RunOptions)
    rule: AccessRule | None = None
    ttl: DefaultTtl | None = None


# The tenant and the id of an assistant, or of the graph whose default assistant is meant.
AssistantName = tuple[str, str]


def assistant_reads(database: Database) -> SharedReads[AssistantName, Assistant]:
    """Return the reads of assistants of new runs."""
    return SharedReads(one_by_one(lambda name: resolve_assistant(database, *name)))


async def graph_starts(
    database: Database,
    requests: Sequence[GraphRunRequest],
    *,
    max_input_bytes: int,
    max_losses: int,
    tenant: str,
    trace: str | None,
    actor: str,
    assistants: SharedReads[AssistantName, Assistant] | None = None,
) -> list[ThreadStart]:
    """Return the starts of these requests, with the config and context of their assistants.

    `assistants` are the reads that this call shares with others of its process.
    """
    reads = assistants or assistant_reads(database)
    found = {
        assistant_id: await reads.get((tenant, assistant_id))
        for assistant_id in {request.assistant_id for request in requests}
    }
    starts: list[ThreadStart] = []
    for request in requests:
        assistant = found[request.assistant_id]
        whole = _with_assistant(request, assistant)
        run, turn = await _run_of(
            database,
            request,
            whole,
            assistant,
            max_input_bytes=max_input_bytes,
            max_losses=max_losses,
            tenant=tenant,
            trace=trace,
        )
        starts.append(
            ThreadStart(
                tenant=tenant,
                thread_id=request.thread_id or str(uuid.uuid4()),
                assistant_id=assistant.id,
                graph_id=assistant.graph_id,
                run=run,
                request=whole,
                strategy=request.strategy,
                creates=request.creates or request.thread_id is None,
                deletes=request.deletes,
                operation=request.operation,
                actor=actor,
                turn=turn,
                metadata=request.metadata,
                rule=request.rule,
                ttl=request.ttl,
            )
        )
    return starts


async def _run_of(
    database: Database,
    given: GraphRunRequest,
    request: GraphRequest,
    assistant: Assistant,
    *,
    max_input_bytes: int,
    max_losses: int,
    tenant: str,
    trace: str | None,
) -> tuple[NewRun, NativeTurn | None]:
    """Return the run of a request; for an agent or orchestration also its turn of the conversation."""
    text = request.to_json()
    if utf8_size(text) > max_input_bytes:
        raise InputTooLarge(
            f"The request has {utf8_size(text)} bytes; at most {max_input_bytes} are allowed "
            "(RUNLANE_MAX_INPUT_BYTES). Store large values elsewhere and send a reference."
        )
    if is_native(assistant.graph_id):
        # Imported here, because it depends on this module.
        from runlane.submit.native_runs import native_run

        return await native_run(
            database,
            given,
            request,
            assistant,
            max_input_bytes=max_input_bytes,
            max_losses=max_losses,
            tenant=tenant,
            trace=trace,
        )
    run = new_run(
        graph_target(assistant.graph_id),
        text,
        given.options,
        lane=DEFAULT_LANE,
        max_attempts=_ATTEMPTS,
        max_losses=max_losses,
        tenant=tenant,
        trace=trace,
        mark=[given.thread_id, given.strategy.value, given.operation.value],
    )
    return run, None


def _with_assistant(given: GraphRunRequest, assistant: Assistant) -> GraphRequest:
    request = given.request
    context: Any = request.context
    if isinstance(assistant.context, dict) and (context is None or isinstance(context, dict)):
        context = {**cast("dict[str, Any]", assistant.context), **cast("dict[str, Any]", context or {})}
    return replace(
        request,
        # An assistant is written by a user, too, and must not name another one.
        config=merge_config(without_user(assistant.config), request.config),
        context=context or None,
        metadata={
            **assistant.metadata,
            "graph_id": assistant.graph_id,
            "assistant_id": assistant.id,
            **given.metadata,
        },
    )
