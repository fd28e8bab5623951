"""Create the workers of an app, with models and tools.

Separate from the app, so that a process that only submits runs does not import any of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final

import structlog

from runlane.domain.graph_registry import GraphRegistry
from runlane.domain.options import RunOptions
from runlane.domain.task import Task
from runlane.domain.text import dump_json
from runlane.errors import ConfigurationError, Paused, StartLimited
from runlane.extras import requires_extra
from runlane.llm.models import ModelRegistry
from runlane.llm.providers import Providers, register_providers
from runlane.llm.scripted import scripted
from runlane.memory.run_tasks import memory_tasks
from runlane.resources import Resources
from runlane.settings import DEFINITIONS_FOLDER, SCRIPTED, Settings
from runlane.store.definitions import read_newest
from runlane.store.queue.claim import Claimed
from runlane.submit.orchestrations import StartRequest, orchestration_run
from runlane.worker.context import Context
from runlane.worker.execution import AttemptEnd
from runlane.worker.run_host import RedactingHost
from runlane.worker.worker import Worker

if TYPE_CHECKING:
    from runlane.graphs.executor import GraphExecutor
    from runlane.orchestration.children import ChildRequest
    from runlane.orchestration.executor import OrchestrationExecutor

log = structlog.get_logger(__name__)

# The delay of a retry. The time at which the rule allows the next start is unknown.
_SKIPPED_RETRY_SECONDS: Final = 5.0


class WorkerFactory:
    """Creates workers with these tasks and models."""

    def __init__(
        self,
        settings: Settings,
        tasks: Mapping[str, Task],
        connect: Callable[[], Awaitable[Resources]],
        graphs: GraphRegistry,
    ) -> None:
        self._tasks = tasks
        self._graphs = graphs
        self._connect = connect
        self._settings: Settings
        self._providers: Providers
        self.models = ModelRegistry()
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Use these settings for every later worker. Models that were registered stay registered."""
        models = ModelRegistry(settings.default_model)
        if settings.scripted_models:
            models.register(SCRIPTED, scripted([settings.definitions_dir or DEFINITIONS_FOLDER]))
        else:
            models.turn_off(SCRIPTED, "RUNLANE_SCRIPTED_MODELS")
        providers = register_providers(models, settings, self._secret_values)
        self.models.adopt(models)
        self._settings, self._providers = settings, providers

    async def worker(self, lanes: Collection[str] | None, concurrency: int | None) -> Worker:
        """Return a worker; the caller starts and stops it."""
        if self._settings.paused:
            raise Paused
        if isinstance(lanes, str):
            raise ConfigurationError(f'lanes="{lanes}" must be a list of lanes. Pass lanes=["{lanes}"].')
        if concurrency is not None and concurrency < 1:
            raise ConfigurationError(f"concurrency={concurrency} must be at least 1.")
        connection = await self._connect()
        await connection.memory_opener.start()
        self._warn_of_capped_tasks()
        return Worker(
            settings=self._settings,
            database=connection.database,
            committer=connection.committer,
            bus=connection.bus,
            tasks={**self._tasks, **memory_tasks(self._settings, connection.memory_opener)},
            orchestrations=_LazyExecutor(connection, self._executor),
            graphs=await self._graph_executor(connection) if self._graphs.graphs else None,
            secrets=connection.vault.values,
            lanes=lanes,
            concurrency=concurrency,
        )

    async def _graph_executor(self, connection: Resources) -> GraphExecutor:
        """Load the graphs and register them. A worker without graphs does not import LangGraph."""
        with requires_extra("langgraph", f"Hosting {len(self._graphs.graphs)} graphs"):
            # In a thread, because the process may have other work.
            hosting = await asyncio.to_thread(import_module, "runlane.graphs.hosting")
        registry, max_run_bytes = self._graphs, self._settings.max_run_bytes
        sources = list(registry.graphs.values())
        return await hosting.host_graphs(connection.database, sources, registry.graph_store, max_run_bytes)

    def _executor(self, connection: Resources) -> OrchestrationExecutor:
        from runlane.orchestration.executor import OrchestrationExecutor
        from runlane.orchestration.integrations import Integrations

        outside = Integrations(self._settings, connection.database, self._secret_values, self._providers)
        return OrchestrationExecutor(
            self._settings,
            connection.database,
            self._tasks,
            self.models,
            self._start_child,
            outside,
            connection.memory_opener,
        )

    def _warn_of_capped_tasks(self) -> None:
        most = self._settings.max_losses
        for task in self._tasks.values():
            if task.max_losses is not None and task.max_losses > most:
                log.warning(
                    "max_losses_capped",
                    task=task.name,
                    asked=task.max_losses,
                    used=most,
                    fix="raise RUNLANE_MAX_LOSSES where runs are accepted, or lower max_losses of the task",
                )

    async def _secret_values(self, tenant: str, names: Collection[str]) -> Mapping[str, str]:
        return await (await self._connect()).vault.values(tenant, names)

    async def _start_child(self, request: ChildRequest) -> str:
        """Start an orchestration that a run calls as a tool; a repeated call returns the same run."""
        start = StartRequest(
            request.orchestration,
            request.message,
            request.input,
            RunOptions(idempotency_key=request.key),
            pins=request.pins,
            parent={"run_id": request.parent, "path": request.path},
        )
        connection = await self._connect()
        new_run = await orchestration_run(
            connection.database,
            start,
            tasks=(),
            max_input_bytes=self._settings.max_input_bytes,
            max_losses=self._settings.max_losses,
            tenant=request.tenant,
        )
        if request.depth:
            new_run = new_run._replace(origin=dump_json({"depth": request.depth}))
        (accepted,) = await connection.accept([new_run])
        if not accepted.run_id:
            raise StartLimited(
                f"The flow control of {start.target} has {accepted.outcome} the start. Call it again later.",
                _SKIPPED_RETRY_SECONDS,
            )
        return accepted.run_id


class _LazyExecutor:
    """Executes orchestrations and agents. A worker with tasks only does not import their dependencies."""

    def __init__(self, connection: Resources, create: Callable[[Resources], OrchestrationExecutor]) -> None:
        self._connection = connection
        self._create = create
        self._created: OrchestrationExecutor | None = None

    async def warm_up(self) -> None:
        """Load the packages that the stored definitions need."""
        if await read_newest(self._connection.database, 1):
            await (await self._executor()).warm_up()

    async def run(self, claimed: Claimed, context: Context, host: RedactingHost) -> AttemptEnd:
        """Execute an attempt."""
        return await (self._created or await self._executor()).run(claimed, context, host)

    async def close(self) -> None:
        """Release its resources. Safe to call twice."""
        if self._created is not None:
            await self._created.close()

    async def _executor(self) -> OrchestrationExecutor:
        # In a thread, because runs of tasks may be in progress.
        await asyncio.to_thread(import_module, "runlane.orchestration.executor")
        if self._created is None:
            self._created = self._create(self._connection)
        return self._created
