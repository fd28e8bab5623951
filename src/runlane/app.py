"""App: the registry of tasks, and the entry point for runs.

An App is cheap to create at import time: it connects when it is first used, once per event loop. Code without an event
loop calls `blocking`, which runs one in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from runlane.domain.events import Notice
from runlane.domain.graph_registry import GraphRegistry
from runlane.domain.lane import DEFAULT_LANE
from runlane.domain.options import (
    AgentOptions,
    BulkOptions,
    ChatOptions,
    ForkOptions,
    OrchestrationOptions,
    TaskOptions,
    run_options,
)
from runlane.domain.run import Accepted, Status
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.views import ChatPost
from runlane.errors import Unavailable, UnknownTask
from runlane.event_loop.blocking import BlockingLoop
from runlane.operators.chat_operator import ChatOperator
from runlane.operators.run_operator import RunOperator
from runlane.operators.thread_operator import GraphOperator
from runlane.resources import ResourcePool, Resources
from runlane.settings import Settings, load_settings
from runlane.store.access.tenants import is_free
from runlane.store.orchestration.children import wake_parents
from runlane.store.queue import run_changes
from runlane.store.queue.accept import NewRun
from runlane.store.queue.committer import in_batches
from runlane.store.sql.database import Database
from runlane.submit.tasks import SubmitRules, TaskRequest, task_run
from runlane.triggers.sending import EventSender

if TYPE_CHECKING:
    from runlane.llm.models import ModelRegistry
    from runlane.maintenance.service import PeriodicService
    from runlane.memory.service import MemoryService
    from runlane.submit.chat import ChatRequest
    from runlane.submit.orchestrations import StartRequest
    from runlane.submit.schedules import Schedules
    from runlane.worker.worker import Worker
    from runlane.worker_factory import WorkerFactory

T = TypeVar("T")


class App(GraphRegistry, RunOperator, ChatOperator, EventSender, GraphOperator):
    """Tasks by name, and their runs. `settings` is read from the environment at first use unless given."""

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__()
        self._settings = settings
        self._resources = ResourcePool(lambda: self.settings, self._lanes)
        self._blocking_loop = BlockingLoop(self.close)
        self._worker_factory: WorkerFactory | None = None

    @property
    def settings(self) -> Settings:
        """Return the settings in force."""
        if self._settings is None:
            self._settings = load_settings()
        return self._settings

    def configure(self, settings: Settings) -> None:
        """Replace the settings of every part of the app. ConfigurationError while it is connected."""
        self._resources.check_closed()
        if self._worker_factory is not None:
            self._worker_factory.configure(settings)
        self._settings = settings

    async def enqueue(
        self,
        task: str,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the word of the API
        *,
        tenant: str = DEFAULT_TENANT,
        trace: str | None = None,
        **options: Unpack[TaskOptions],
    ) -> Accepted:
        """Accept a run of a task. When this returns, the run is stored and will end.

        `trace` is the caller's W3C traceparent. Raises RateLimited if a limit of the tenant is reached.
        """
        request = TaskRequest(task, input, run_options(TaskOptions, options))
        return await self.submit(request, tenant=tenant, trace=trace)

    async def enqueue_many(
        self,
        requests: Sequence[tuple[str, Mapping[str, Any]]],
        *,
        tenant: str = DEFAULT_TENANT,
        trace: str | None = None,
        **options: Unpack[BulkOptions],
    ) -> list[Accepted]:
        """Accept many runs, in their order. All are checked before the first is stored.

        A limit of the tenant rejects all of them or none.
        """
        shared = run_options(BulkOptions, options)
        tasks = [TaskRequest(task, arguments, shared) for task, arguments in requests]
        return await self.enqueue_requests(tasks, tenant=tenant, trace=trace)

    async def enqueue_requests(
        self, requests: Sequence[TaskRequest], *, tenant: str = DEFAULT_TENANT, trace: str | None = None
    ) -> list[Accepted]:
        """Accept many runs with individual options, in order. Otherwise as enqueue_many."""
        new_runs = [self._task_run(request, tenant, trace) for request in requests]
        batches = list(in_batches(new_runs))
        by_rules = any(run.flow is not None for run in new_runs)
        if len(batches) > 1 and (by_rules or not await is_free(await self.database(), tenant)):
            # One transaction of any length, because a limit must not accept only a part of the request.
            batches = [new_runs]
        accepted: list[Accepted] = []
        for batch in batches:
            accepted += await (await self.connect()).accept(batch)
        return accepted

    async def orchestrate(
        self,
        orchestration: str,
        message: str = "",
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the word of the API
        *,
        tenant: str = DEFAULT_TENANT,
        trace: str | None = None,
        **options: Unpack[OrchestrationOptions],
    ) -> Accepted:
        """Accept a run of an orchestration, pinned to the current versions. Otherwise as enqueue."""
        from runlane.submit.orchestrations import StartRequest

        start = StartRequest(orchestration, message, input, run_options(OrchestrationOptions, options))
        return await self.submit(start, tenant=tenant, trace=trace)

    async def ask(
        self,
        agent: str,
        message: str,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the word of the API
        *,
        tenant: str = DEFAULT_TENANT,
        trace: str | None = None,
        **options: Unpack[AgentOptions],
    ) -> Accepted:
        """Accept a run of an agent with one message; its result is the answer. The agent also receives `input`."""
        from runlane.submit.orchestrations import StartRequest

        start = StartRequest(agent, message, input, run_options(AgentOptions, options), kind="agent")
        return await self.submit(start, tenant=tenant, trace=trace)

    async def submit(
        self, request: TaskRequest | StartRequest, *, tenant: str = DEFAULT_TENANT, trace: str | None = None
    ) -> Accepted:
        """Accept the run that a request describes. Otherwise as enqueue."""
        if isinstance(request, TaskRequest):
            run = self._task_run(request, tenant, trace)
        else:
            from runlane.submit.orchestrations import orchestration_run

            run = await orchestration_run(await self.database(), request, **self._rules(tenant, trace))
        return (await (await self.connect()).accept([run]))[0]

    async def chat(
        self,
        agent: str,
        message: str,
        session_id: str | None = None,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the word of the API
        *,
        tenant: str = DEFAULT_TENANT,
        trace: str | None = None,
        **options: Unpack[ChatOptions],
    ) -> ChatPost:
        """Accept the next turn of a conversation, or the first one. Turns of a session run one at a time, in order."""
        from runlane.submit.chat import ChatRequest

        request = ChatRequest(agent, message, session_id, input, run_options(ChatOptions, options))
        return await self.post(request, tenant=tenant, trace=trace)

    async def post(self, request: ChatRequest, *, tenant: str = DEFAULT_TENANT, trace: str | None = None) -> ChatPost:
        """Accept the turn that a request describes. Otherwise as chat."""
        from runlane.submit.chat import post

        connection = await self.connect()
        posted = await post(connection.database, request, connection.seal_webhook, **self._rules(tenant, trace))
        accepted = posted.accepted
        connection.bus.ring({accepted.lane})
        # The turn's number takes the place of an event's number for followers of the session.
        connection.bus.publish([Notice(posted.session_id, posted.turn)])
        return ChatPost(
            posted.session_id, posted.turn, accepted.run_id, accepted.status, accepted.replayed, accepted.quota
        )

    async def cancel(self, run_id: str, *, actor: str = "local") -> Status:
        """Cancel a run that has not ended. Its status stays `running` until its code has stopped.

        Repeating is harmless. Raises WrongState for a run that completed or failed. `actor` is for the audit log.
        """
        connection = await self.connect()
        change = await run_changes.cancel_run(connection.database, run_id, actor=actor)
        connection.bus.signal_cancel(run_id)
        connection.publish_change(change)
        if change.status is Status.CANCELLED:
            # A waiting parent also polls; this wakes it earlier.
            with contextlib.suppress(Unavailable):
                connection.bus.ring(await wake_parents(connection.database, [run_id]))
        return change.status

    async def retry(self, run_id: str, *, latest: bool = False, actor: str = "local") -> Status:
        """Retry a failed run with all of its attempts; with `latest`, on the current versions of its definitions."""
        from runlane.submit.repair import retry

        return await self._publish_change(retry(await self.database(), run_id, latest=latest, actor=actor))

    async def sync(
        self,
        definitions: str | Path | Mapping[str, Sequence[Any]],
        *,
        dry_run: bool = False,
        remove_missing: bool = False,
        source: str | None = None,
        take_over: bool = False,
        tenant: str = DEFAULT_TENANT,
    ) -> dict[str, Any]:
        """Store definitions: a folder, or lists by the names of its folders. All are stored, or none.

        Return what was added, changed, removed and unchanged; with `dry_run`, nothing is stored. `source` names the
        project; by default the setting RUNLANE_DEFINITIONS_SOURCE, then the project folder, or "default" for lists.
        `remove_missing` removes definitions that the same source stored earlier and that this sync does not contain. A
        definition of another source is changed only with `take_over`.
        """
        from runlane.catalog.sync import sync_definitions
        from runlane.definitions.checks.environment import environment_of
        from runlane.definitions.loader import parse_given
        from runlane.domain.source import DEFAULT_SOURCE, source_of

        source = source or self.settings.definitions_source
        loaded = await asyncio.to_thread(parse_given, definitions)
        if not isinstance(definitions, Mapping):
            source = source or source_of(Path(definitions))
        report = await sync_definitions(
            await self.database(),
            tenant,
            loaded,
            actor="app",
            dry_run=dry_run,
            remove_missing=remove_missing,
            source=source or DEFAULT_SOURCE,
            take_over=take_over,
            tasks=self._tasks or None,
            environment=environment_of(self.settings),
        )
        return report.to_dict()

    async def fork(
        self, run_id: str, from_step: str, state: Mapping[str, Any] | None = None, **options: Unpack[ForkOptions]
    ) -> Accepted:
        """Accept a new run from a recorded step, with changes to the state; earlier steps are not repeated."""
        from runlane.submit.orchestrations import fork

        connection = await self.connect()
        accepted = await fork(connection.database, run_id, from_step, state or {}, **options)
        connection.bus.ring({accepted.lane})
        return accepted

    @property
    def models(self) -> ModelRegistry:
        """Return the registry of models. Register others before a worker starts."""
        return self._factory.models

    async def database(self) -> Database:
        """Return the open database."""
        return (await self.connect()).database

    async def connect(self) -> Resources:
        """Open the connections, once per event loop. The schema of an embedded file is created or upgraded here."""
        return await self._resources.here()

    async def close(self) -> None:
        """Close the connections that connect() opened in this event loop. Safe to call twice."""
        await self._resources.close()

    def blocking(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a call of this app from code without an event loop: app.blocking(app.enqueue("report", {...}))."""
        return self._blocking_loop.run(coroutine)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def worker(self, lanes: Collection[str] | None = None, concurrency: int | None = None) -> Worker:
        """Return a worker for this app's tasks; the caller starts and stops it."""
        return await self._factory.worker(lanes, concurrency)

    async def maintenance_services(self, *, triggers: bool = True) -> list[PeriodicService]:
        """Return the maintenance services of a process; the caller starts and stops them.

        A process without a worker leaves out the evaluation of triggers.
        """
        from runlane.domain.maintenance import MaintenanceService
        from runlane.failures.bulk_runner import bulk_service
        from runlane.maintenance.registry import maintenance_services
        from runlane.submit.memory_runs import memory_services
        from runlane.triggers.evaluator import trigger_services

        connection = await self.connect()
        more = trigger_services(self.settings, connection, self._tasks) if triggers else {}
        more[MaintenanceService.BULK] = bulk_service(connection.database, connection.bus)
        return maintenance_services(connection, (await self.schedules()).planner, more) + memory_services(connection)

    async def schedules(self) -> Schedules:
        """Return the schedules: create, change, pause, trigger and read them."""
        from runlane.submit.schedules import Schedules

        return Schedules.of(await self.connect(), self._tasks)

    async def memory(self) -> MemoryService:
        """Return the memories of agents and people, opened at first use."""
        return await (await self.connect()).memory_opener.service()

    @property
    def _factory(self) -> WorkerFactory:
        if self._worker_factory is None:
            from runlane.worker_factory import WorkerFactory

            self._worker_factory = WorkerFactory(self.settings, self._tasks, self.connect, self)
        return self._worker_factory

    def _rules(self, tenant: str, trace: str | None) -> SubmitRules:
        return {
            "tasks": self._tasks,
            "max_input_bytes": self.settings.max_input_bytes,
            "max_losses": self.settings.max_losses,
            "tenant": tenant,
            "trace": trace,
        }

    def _task_run(self, request: TaskRequest, tenant: str, trace: str | None) -> NewRun:
        task = self._tasks.get(request.task)
        if task is None:
            raise UnknownTask(request.task, self._tasks)
        settings = self.settings
        return task_run(task, request, settings.max_input_bytes, settings.max_losses, tenant=tenant, trace=trace)

    def _lanes(self) -> set[str]:
        return {DEFAULT_LANE, *(task.lane for task in self._tasks.values())}
