"""The executor of orchestrations in a worker: definitions by version, models, the sandbox, and tasks as steps."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Mapping
from contextlib import closing
from functools import partial
from typing import Any

from runlane.agents.inflight import InflightCalls
from runlane.domain.conversation import RequestConversation
from runlane.domain.events import EventType
from runlane.domain.run import AGENT
from runlane.domain.task import Task
from runlane.domain.text import dump_json, load_json
from runlane.errors import Fail, InvalidInput, LeaseLost, RunCancelled
from runlane.interpreter.failure import StepFailed
from runlane.llm.models import ModelRegistry
from runlane.memory.opener import MemoryOpener
from runlane.orchestration.agent_memories import AgentMemories
from runlane.orchestration.agent_run import conversation_messages, root_of
from runlane.orchestration.attempt import OrchestrationAttempt
from runlane.orchestration.chat_history import ChatHistory, compacted_history
from runlane.orchestration.children import ChildRuns, StartChild
from runlane.orchestration.integrations import Integrations
from runlane.orchestration.memory_budget import WorkerMemory
from runlane.orchestration.pinned import PinnedDefinitions
from runlane.orchestration.retry_unavailable import retry_unavailable
from runlane.orchestration.warm_up import MAX_DEFINITIONS, needs_of, prefix_of
from runlane.sandbox.sandbox import Sandbox, SandboxLimits
from runlane.settings import Settings
from runlane.steps.dispatch import RunServices
from runlane.store.chat.turns import read_before
from runlane.store.definitions import load_pinned, read_newest
from runlane.store.orchestration.steps import StepOutcome, StepRecord, read_saved
from runlane.store.queue.claim import Claimed
from runlane.store.queue.record import RecordEntry
from runlane.store.sql.database import Database
from runlane.worker.context import Context
from runlane.worker.execution import AttemptEnd
from runlane.worker.run_host import RedactingHost


class OrchestrationExecutor:
    """Executes runs of orchestrations. One for all runs of a worker."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        tasks: Mapping[str, Task],
        models: ModelRegistry,
        start_child: StartChild,
        integrations: Integrations,
        memories: MemoryOpener,
    ) -> None:
        self._max_input_bytes = settings.max_input_bytes
        self._default_model = settings.default_model
        self._database = database
        self._tasks = tasks
        self._models = models
        self._start_child = start_child
        self._integrations = integrations
        self._memories = memories
        self._sandbox = Sandbox(SandboxLimits.of(settings))
        self._memory = WorkerMemory(settings.worker_text_bytes)
        self._max_run_bytes = settings.max_run_bytes
        self._max_step_bytes = settings.max_step_bytes

    async def warm_up(self) -> None:
        """Load what the stored definitions will need. Without definitions this costs nothing."""
        needs = await asyncio.to_thread(needs_of, await read_newest(self._database, MAX_DEFINITIONS))
        if self._default_model is not None and needs.default_model:
            needs.prefixes.add(prefix_of(self._default_model))
        await self._integrations.warm_up(needs.prefixes, mcp=needs.mcp)
        if needs.sandbox:
            await self._sandbox.expression("1", {})

    async def close(self) -> None:
        """Close the sandbox and all connections. Safe to call twice."""
        await self._sandbox.close()
        await self._integrations.close()

    async def run(self, claimed: Claimed, context: Context, host: RedactingHost) -> AttemptEnd:
        """Execute an attempt."""
        plan: dict[str, Any] = load_json(claimed.plan) if claimed.plan else {}
        pins: dict[str, str] = plan.get("pins", {})
        definitions = PinnedDefinitions.of(
            await retry_unavailable(lambda: load_pinned(self._database, claimed.tenant, pins))
        )
        given = RequestConversation.from_plan(plan)
        history = await self._history(claimed, plan, definitions, given)
        chat: Mapping[str, Any] = plan.get("chat") or {}

        async def call_task(name: str, arguments: Mapping[str, Any], path: str) -> Any:
            return await self._call_task(claimed, host, name, arguments, path)

        services = RunServices(
            sandbox=self._sandbox.for_tenant(claimed.tenant),
            models=self._models,
            agents=definitions.agents,
            tools=definitions.tools,
            servers=definitions.servers,
            tenant=claimed.tenant,
            redactor=host.redactor,
            tasks=self._tasks,
            call_task=call_task,
            limiter=self._integrations.limiter,
            inflight=InflightCalls(claimed.attempt),
            callers=self._integrations.callers(claimed.tenant, host.redactor),
            connection=partial(self._integrations.connection, claimed.tenant),
            call_orchestration=ChildRuns(claimed, self._database, self._start_child).call,
            mcp=self._integrations.mcp.for_run(claimed.tenant, host.redactor),
            max_step_bytes=self._max_step_bytes,
            conversation=history.messages,
            request_tokens=history.request_tokens,
            session_id=chat.get("session_id") or plan.get("session_id"),
            chat_turn=chat.get("turn", 0),
            memories=AgentMemories(self._memories, claimed.tenant),
            instructions=given.all_instructions,
            model_settings=given.settings,
        )
        root = root_of(claimed.target, load_json(claimed.input), definitions)
        with closing(self._memory.account(claimed.tenant)) as memory:
            attempt = OrchestrationAttempt(
                claimed, host, self._database, definitions, services, root, memory, self._max_run_bytes
            )
            return await attempt.run()

    async def _history(
        self, claimed: Claimed, plan: Mapping[str, Any], definitions: PinnedDefinitions, given: RequestConversation
    ) -> ChatHistory:
        """Return the earlier messages of the request and, if the run is a turn of a chat, of the chat."""
        turn = plan.get("chat")
        agent = definitions.agents.get(claimed.target.removeprefix(AGENT))
        if turn is not None and agent is not None and agent.compaction is not None:
            session_id, number = turn["session_id"], turn["turn"]
            return await retry_unavailable(lambda: compacted_history(self._database, session_id, number, given))
        if turn is None or agent is None or not agent.history_turns:
            return ChatHistory(conversation_messages((), given.messages))
        session_id, number, count = turn["session_id"], turn["turn"], agent.history_turns
        turns = await retry_unavailable(lambda: read_before(self._database, session_id, number, count))
        return ChatHistory(conversation_messages(turns, given.messages))

    async def _call_task(
        self, claimed: Claimed, host: RedactingHost, name: str, arguments: Mapping[str, Any], path: str
    ) -> Any:
        task = self._tasks.get(name)
        if task is None:
            raise StepFailed("unknown_task", f'This worker has no task "{name}". Start it with the app that has it.')
        try:
            values = task.load(task.check(dict(arguments), self._max_input_bytes))
        except InvalidInput as error:
            raise StepFailed("invalid_input", str(error)) from None
        saved = await retry_unavailable(lambda: read_saved(self._database, claimed.run_id, _saved_path(path)))
        context = TaskStepContext(claimed, host, path, saved)
        limit = asyncio.timeout(task.timeout_seconds)
        try:
            async with limit:
                if task.is_async:
                    value = await task.function(context, **values)
                else:
                    value = await host.call_in_thread(lambda: task.function(context, **values))
                    value = await value if inspect.isawaitable(value) else value
                context.check_awaited()
                return _plain(value, name)
        except (StepFailed, LeaseLost):
            raise
        except Fail as error:
            raise StepFailed("task_failed", str(error)) from error
        except Exception as error:
            if limit.expired():
                message = f"The task {name} took longer than its {task.timeout_seconds:g} s."
                raise StepFailed("timeout", message, retryable=True) from error
            shown = f"{type(error).__name__}: {error}".rstrip(": ")
            raise StepFailed("task_error", f'The task "{name}" failed: {shown}', retryable=True) from error
        finally:
            # A thread continues until it uses its context, which then raises.
            context.interrupt(RunCancelled(f"The step {path} of run {claimed.run_id} is over."))


class TaskStepContext(Context):
    """A task's context inside an orchestration: its checkpoint and its idempotency key are the step's own."""

    def __init__(self, claimed: Claimed, host: RedactingHost, path: str, saved: str | None) -> None:
        super().__init__(claimed, host, asyncio.get_running_loop())
        self._path = path
        self._step_saved = saved

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt at this step. Pass it to other systems so that they act once."""
        return f"{self._claimed.run_id}/{self._path}"

    @property
    def saved(self) -> Any:
        """The last checkpoint of an earlier attempt at this step, or None."""
        return None if self._step_saved is None else load_json(self._step_saved)

    def checkpoint(self, value: Any) -> Awaitable[None]:
        """Store a value for the next attempt at this step. Also a point where the run can be stopped."""
        claimed, text = self._claimed, self._checkpoint_text(value)
        entry = RecordEntry(claimed.run_id, claimed.attempt, claimed.lane, events=[(EventType.CHECKPOINT.value, "{}")])
        entry.steps.append(StepRecord(_saved_path(self._path), None, "", "checkpoint", StepOutcome.SAVED, output=text))
        return self._submit(lambda: self._record(entry), "ctx.checkpoint()")


def _saved_path(path: str) -> str:
    # An exclamation mark cannot occur in the path of a step.
    return f"{path}!saved"


def _plain(value: Any, name: str) -> Any:
    """Return the value after a round trip through JSON, so that it is the same before and after a crash."""
    try:
        return load_json(dump_json(value))
    except TypeError as error:
        raise StepFailed("not_json", f"The result of task {name} cannot be stored: {error}") from None
