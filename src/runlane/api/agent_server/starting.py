"""Start runs of threads over HTTP, and the parts that their responses share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from starlette.requests import HTTPConnection

from runlane.api.agent_auth.guard import require_assistants, rule_of
from runlane.api.agent_auth.user_config import with_user
from runlane.api.agent_server.deletion import publish_changes
from runlane.api.services import Services, parts_of
from runlane.domain.access import Principal
from runlane.domain.events import Notice
from runlane.domain.graph import Operation, thread_key
from runlane.domain.thread import ThreadRun
from runlane.errors import Conflict
from runlane.observability import tracing
from runlane.store.threads.starting import StartedRun
from runlane.store.threads.thread_runs import find_thread_run, thread_of_run
from runlane.store.threads.thread_start import ThreadStart
from runlane.submit.graphs import GraphRunRequest, graph_starts
from runlane.submit.webhook_urls import check_webhook_url


@dataclass(frozen=True, slots=True)
class RunPath:
    """The ids of a run and its thread, as the paths of the API contain them."""

    thread_id: str
    run_id: str
    native: bool = False
    # The event at which the run was paused, if this request has resumed it.
    resumed_at: int | None = None
    # Whether this request has accepted the run.
    is_new: bool = False

    def __str__(self) -> str:
        return f"/threads/{self.thread_id}/runs/{self.run_id}"

    @classmethod
    def of(cls, run: ThreadRun, *, is_new: bool = False) -> RunPath:
        """Return the path of a run."""
        return cls(run.thread_id, run.id, run.is_native, run.resumed_at, is_new)


async def start(request: HTTPConnection, principal: Principal, wanted: Sequence[GraphRunRequest]) -> list[ThreadRun]:
    """Accept all runs or none. Return them as they were accepted."""
    accepted = await accept_starts(request, principal, wanted)
    return [await _started(parts_of(request), principal.tenant, one) for one in accepted]


async def accept_starts(
    request: HTTPConnection, principal: Principal, wanted: Sequence[GraphRunRequest]
) -> list[StartedRun]:
    """Accept runs of any operation, all or none, and notify workers and the readers of the threads."""
    parts = parts_of(request)
    settings = parts.app.settings
    options = parts.app.agent_server
    # The assistants are checked here because some requests take the assistant from the metadata of their thread.
    await require_assistants(request, principal, [one.assistant_id for one in wanted])
    wanted = [
        replace(one, request=with_user(one.request, principal), rule=rule_of(request), ttl=options.thread_ttl)
        for one in wanted
    ]
    for one in wanted:
        check_webhook_url(options.webhook_urls, one.options.webhook_url)
    with tracing.span("accept graph", {"runlane.count": len(wanted), "runlane.tenant": principal.tenant}):
        starts = await graph_starts(
            parts.database,
            wanted,
            max_input_bytes=settings.max_input_bytes,
            max_losses=settings.max_losses,
            tenant=principal.tenant,
            trace=tracing.current_parent() or tracing.valid_parent(request.headers.get("traceparent")),
            actor=principal.actor,
            assistants=parts.assistants,
        )
        accepted = await parts.thread_starts.start_runs(starts)
    _publish(parts, wanted, starts, accepted)
    return accepted


def _publish(
    parts: Services, wanted: Sequence[GraphRunRequest], starts: Sequence[ThreadStart], accepted: Sequence[StartedRun]
) -> None:
    bus = parts.connection.bus
    for request, given, one in zip(wanted, starts, accepted, strict=True):
        publish_changes(parts, one.changes)
        if given.operation is Operation.RUN and request.thread_id is not None:
            # The notice makes followers of the thread look for the new run. A thread created for the run has no
            # followers yet.
            bus.publish([Notice(thread_key(given.tenant, given.thread_id), 1)])
        if given.run.delay_us:
            bus.report_timer(given.run.delay_us / 1_000_000)


async def _started(parts: Services, tenant: str, one: StartedRun) -> ThreadRun:
    if one.run is not None:
        return one.run
    run_id = one.accepted.run_id
    thread_id = await thread_of_run(parts.database, tenant, run_id)
    if thread_id is None:
        raise Conflict("The Idempotency-Key belongs to a run that is not a run of a thread. Use a new key.")
    return await find_thread_run(parts.database, tenant, thread_id, run_id)
