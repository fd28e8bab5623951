"""Client: the HTTP API in Python, for programs that do not share the server's database.

Every call is retried while the server is unavailable, within `retry_policy`, and no call takes effect twice.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack

import orjson

from runlane.client import wire
from runlane.client.accounting import Accounting
from runlane.client.administration import Administration
from runlane.client.chat import ChatCalls
from runlane.client.definitions import DefinitionCalls
from runlane.client.event_calls import EventCalls
from runlane.client.failures import BulkJobs, DeadLetters
from runlane.client.http import PREFIX, Http, part
from runlane.client.memory import MemoryCalls
from runlane.client.retry_policy import RetryPolicy
from runlane.client.run_views import RunViewCalls
from runlane.client.schedules import ScheduleCalls
from runlane.client.secrets import Secrets
from runlane.client.server_calls import ServerCalls
from runlane.client.stream import follow
from runlane.client.stream_tokens import StreamTokenCalls
from runlane.client.threads import AssistantCalls, ThreadCalls
from runlane.client.webhook_sources import WebhookSources
from runlane.client.webhooks import Webhooks
from runlane.domain.events import Event
from runlane.domain.lane import Lane
from runlane.domain.log_pages import LOG_PAGE, read_log_lines
from runlane.domain.options import BulkOptions, OrchestrationOptions, RunOptions, TaskOptions, run_options
from runlane.domain.run import Accepted, Run, Status
from runlane.domain.scaling import Demand
from runlane.domain.task import input_json
from runlane.domain.views import (
    Attempt,
    LiveEvent,
    LogLine,
    Logs,
    ServerHealth,
    StartResult,
    StatusCount,
    Step,
    WorkerInfo,
)
from runlane.domain.wait import Question

if TYPE_CHECKING:
    import httpx2

# The server's limit for a long poll.
_LONGEST_WAIT_SECONDS = 60.0
# The server's limit for the number of runs in one request.
_BATCH = 1000


class Client(Accounting, ChatCalls, DefinitionCalls, EventCalls, RunViewCalls, ServerCalls, StreamTokenCalls):
    """A client for the server at a URL. Use it in one event loop, either in `async with` or with close()."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        timeout_seconds: float = 30.0,
        retry_policy: RetryPolicy | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = Http(url, key, timeout_seconds, retry_policy or RetryPolicy(), transport)

    @property
    def url(self) -> str:
        """The URL of the server."""
        return self._http.url

    @property
    def secrets(self) -> Secrets:
        """The secrets that definitions refer to."""
        return Secrets(self._http)

    @property
    def schedules(self) -> ScheduleCalls:
        """The schedules that start runs."""
        return ScheduleCalls(self._http)

    @property
    def webhook_sources(self) -> WebhookSources:
        """The sources of incoming webhooks."""
        return WebhookSources(self._http)

    @property
    def webhooks(self) -> Webhooks:
        """Webhook endpoints, their deliveries and replays."""
        return Webhooks(self._http)

    @property
    def memory(self) -> MemoryCalls:
        """The memory of the key's tenant."""
        return MemoryCalls(self._http)

    def memory_of(self, tenant: str | None) -> MemoryCalls:
        """Return the memory of another tenant, for platform admins."""
        return MemoryCalls(self._http, tenant)

    @property
    def admin(self) -> Administration:
        """Keys, tenants, roles, the audit log, and changes of lanes."""
        return Administration(self._http)

    @property
    def dead_letters(self) -> DeadLetters:
        """The runs that failed for good, and their handling."""
        return DeadLetters(self._http)

    @property
    def threads(self) -> ThreadCalls:
        """The threads of hosted graphs."""
        return ThreadCalls(self._http)

    @property
    def assistants(self) -> AssistantCalls:
        """The assistants of hosted graphs."""
        return AssistantCalls(self._http)

    @property
    def bulk(self) -> BulkJobs:
        """Changes of many runs at once."""
        return BulkJobs(self._http)

    async def close(self) -> None:
        """Close every connection. Safe to call twice."""
        await self._http.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def enqueue(
        self,
        task: str,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the word of the API
        **options: Unpack[TaskOptions],
    ) -> Accepted:
        """Start a run of a task. The run is stored when this returns.

        Without an idempotency key, one is created for this call, so that a retry after a lost response does not start a
        second run. To make several calls start one run, pass the same key to each.
        """
        body, key = _body(task, input, run_options(TaskOptions, options))
        path = f"{PREFIX}/tasks/{part(task)}/run"
        return wire.parse(Accepted, await self._http.change("POST", path, body, key))

    async def enqueue_many(
        self,
        requests: Sequence[tuple[str, Mapping[str, Any]]],
        *,
        idempotency_key: str | None = None,
        **options: Unpack[BulkOptions],
    ) -> list[Accepted]:
        """Start many runs, in order. The server checks each thousand runs before it stores the first of them."""
        shared = run_options(BulkOptions, options)
        runs = [{"task": task, **_body(task, arguments, shared)[0]} for task, arguments in requests]
        accepted: list[Accepted] = []
        for start in range(0, len(runs), _BATCH):
            key = None if idempotency_key is None else f"{idempotency_key}:{start}"
            page = await self._http.change("POST", f"{PREFIX}/runs/batch", {"runs": runs[start : start + _BATCH]}, key)
            accepted += [wire.parse(Accepted, run) for run in page["runs"]]
        return accepted

    async def orchestrate(
        self,
        orchestration: str,
        message: str = "",
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the word of the API
        **options: Unpack[OrchestrationOptions],
    ) -> Accepted:
        """Start a run of an orchestration. `input` is added to its initial state. See enqueue() for the options."""
        body, key = _body(orchestration, input, run_options(OrchestrationOptions, options))
        if message:
            body["message"] = message
        path = f"{PREFIX}/orchestrations/{part(orchestration)}/run"
        return wire.parse(Accepted, await self._http.change("POST", path, body, key))

    async def get(self, run_id: str) -> Run:
        """Return a run with its input and its result or error."""
        return wire.parse(Run, await self._http.read(_run(run_id)))

    async def wait(self, run_id: str, timeout: float | None = None) -> Run:
        """Wait until a run has ended, and return it. Raise TimeoutError after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _LONGEST_WAIT_SECONDS if deadline is None else deadline - time.monotonic()
            seconds = min(max(left, 0.0), _LONGEST_WAIT_SECONDS)
            answer = await self._http.read(_run(run_id, "wait"), {"timeout_seconds": seconds}, wait_seconds=seconds)
            run = wire.parse(Run, answer)
            if run.status.terminal:
                return run
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"Run {run_id} is {run.status} after {timeout:g} s.")

    def list(
        self,
        *,
        status: Status | str | Sequence[Status | str] | None = None,
        target: str | None = None,
        lane: str | None = None,
        ordering_key: str | None = None,
        tag: str | Sequence[str] | None = None,
        parent: str | None = None,
        schedule_id: str | None = None,
        forked_from: str | None = None,
        cursor: str | None = None,
        page: int = 100,
        **filters: Any,
    ) -> AsyncGenerator[Run]:
        """Yield runs, newest first. Pages are read as needed.

        Other filters are passed to the API unchanged: `worker`, `session`, `error_code`, `definition`, `roots`,
        `min_duration_seconds`, `max_duration_seconds`, `min_cost_usd`, `max_cost_usd`.

        With several statuses, runs with any of them are returned; with several tags, runs that have all of them.
        """
        query = {
            "status": str(status) if isinstance(status, str) else [str(item) for item in status or ()] or None,
            "target": target,
            "lane": lane,
            "key": ordering_key,
            "tag": tag if tag is None or isinstance(tag, str) else [*tag] or None,
            "parent": parent,
            "schedule_id": schedule_id,
            "forked_from": forked_from,
            "limit": page,
            "cursor": cursor,
            **filters,
        }
        return self._http.pages(Run, f"{PREFIX}/runs", "runs", query)

    async def counts(
        self, *, tenant: str | None = None, target: str | None = None, lane: str | None = None
    ) -> Sequence[StatusCount]:
        """Return the number of runs in each status, up to 1,000 per status."""
        query = {"tenant": tenant, "target": target, "lane": lane}
        return await self._http.read_list(StatusCount, f"{PREFIX}/runs/counts", "counts", query)

    async def events(self, run_id: str, after: int = 0, limit: int = 1000) -> Sequence[Event]:
        """Return the run's stored events after a number."""
        answer = await self._http.read(_run(run_id, "events"), {"after": after, "limit": limit})
        found = [wire.event_from(event) for event in answer["events"]]
        return [event for event in found if isinstance(event, Event)]

    async def attempts(self, run_id: str) -> Sequence[Attempt]:
        """Return the run's attempts, each with its worker, times, outcome and error."""
        return await self._http.read_list(Attempt, _run(run_id, "attempts"), "attempts")

    async def get_start(self, run_id: str, start_id: str) -> StartResult:
        """Return one start that a batch has collected, with its part of the batch's result."""
        return wire.parse(StartResult, await self._http.read(_run(run_id, f"starts/{part(start_id)}")))

    async def steps(self, run_id: str) -> Sequence[Step]:
        """Return the finished steps of a run, in order."""
        return [step async for step in self._http.pages(Step, _run(run_id, "steps"), "steps")]

    async def waits(self, run_id: str) -> Sequence[Question]:
        """Return the open waits of a run: for people, times and events."""
        return await self._http.read_list(Question, _run(run_id, "waits"), "waits")

    def stream(self, run_id: str, after: int = 0) -> AsyncGenerator[Event | LiveEvent]:
        """Yield every event after a number, live, until the run has ended. Broken connections are opened again.

        Events are yielded once and in the order of their numbers. A LiveEvent has no number, because it is not stored;
        it belongs to an attempt. When `worker_picked_up` with a higher attempt arrives, discard the live events of
        earlier attempts.
        """
        return follow(self._http, part(run_id), after)

    async def logs(self, run_id: str, since: int = 0, limit: int = 100, event: str | None = None) -> Logs:
        """Return a page of the run's log from an index: every event as text, or only one type, such as `log`."""
        query = {"since": since, "limit": limit, "event": event}
        return wire.parse(Logs, await self._http.read(_run(run_id, "logs"), query))

    def log_lines(
        self, run_id: str, since: int = 0, *, event: str | None = None, follow: bool = False
    ) -> AsyncGenerator[LogLine]:
        """Yield every line of the run's log; with `follow`, until the run has ended. Pages are read as needed."""
        return read_log_lines(lambda index: self.logs(run_id, index, LOG_PAGE, event), since, follow=follow)

    async def cancel(self, run_id: str) -> Status:
        """Cancel a run that has not ended. Return its status, which is `running` until its code has stopped."""
        return await self._act(run_id, "cancel")

    async def retry(self, run_id: str, *, latest: bool = False) -> Status:
        """Retry a failed run with all its attempts; with `latest`, with the current versions of its definitions."""
        return await self._act(run_id, "retry", {"latest": True} if latest else None)

    async def approve(self, run_id: str) -> Status:
        """Start a held run."""
        return await self._act(run_id, "approve")

    async def resume(
        self,
        run_id: str,
        response: Mapping[str, Any] | str | None = None,
        *,
        step: str | None = None,
        note: str | None = None,
    ) -> Status:
        """Answer a question of a run. If several steps ask, `step` is the id or path of the step.

        Raise InvalidInput with `fields` for an invalid answer, and WrongState if the question was already answered.
        """
        body: dict[str, Any] = {"response": {} if response is None else response}
        if step is not None:
            body["step"] = step
        if note is not None:
            body["note"] = note
        answer = await self._http.change("POST", _run(run_id, "resume"), body)
        return Status(answer["status"])

    async def send_event(self, run_id: str, name: str, data: Any = None) -> Status:
        """Send an event to a run. A step receives it if it waits for the event now or later."""
        answer = await self._http.change("POST", _run(run_id, f"events/{part(name)}"), {"data": data})
        return Status(answer["status"])

    async def fork(
        self,
        run_id: str,
        from_step: str,
        state: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
        latest: bool = False,
    ) -> Accepted:
        """Start a new run from a recorded step of this run, with changes of the state. Earlier steps are copied."""
        body: dict[str, Any] = {"latest": True} if latest else {}
        body |= {"from_step": from_step, "state": orjson.Fragment(input_json(state or {}, "the fork's state"))}
        return wire.parse(Accepted, await self._http.change("POST", _run(run_id, "fork"), body, idempotency_key))

    async def release(self, run_id: str) -> Status:
        """Unblock the runs queued behind a failed run that was started with on_dead="block"."""
        return await self._act(run_id, "release")

    async def set_priority(self, run_id: str, priority: int) -> Status:
        """Change the priority of a waiting run."""
        answer = await self._http.change("PATCH", _run(run_id), {"priority": priority})
        return Status(answer["status"])

    async def set_tags(
        self, run_id: str, tags: Sequence[str] | None = None, *, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> Sequence[str]:
        """Set all tags of a run, or add and remove some. Return all its tags."""
        change: dict[str, Any] = {"add": list(add), "remove": list(remove)}
        if tags is not None:
            change["tags"] = list(tags)
        answer = await self._http.change("PATCH", _run(run_id, "tags"), change)
        return tuple(answer["tags"])

    async def lanes(self) -> Sequence[Lane]:
        """Return the lanes with their running and queued runs."""
        return await self._http.read_list(Lane, f"{PREFIX}/lanes", "lanes")

    async def scaling(self, lanes: Sequence[str] = (), *, concurrency: int = 1) -> Demand:
        """Return how many slots, and workers of this concurrency, the runs in these lanes need. Default: all."""
        query = {"lanes": ",".join(lanes) or None, "concurrency": concurrency}
        return wire.parse(Demand, await self._http.read(f"{PREFIX}/scaling", query))

    async def workers(self, *, gone: bool = False) -> Sequence[WorkerInfo]:
        """Return the live workers; with `gone`, also workers that ended recently."""
        query = {"gone": "true" if gone else None}
        return await self._http.read_list(WorkerInfo, f"{PREFIX}/workers", "workers", query)

    async def health(self) -> ServerHealth:
        """Return whether the server is ready, and its problems. Raise Unavailable if it does not respond."""
        ready, parts = await self._http.probe("/ready")
        return ServerHealth(ready, parts)

    async def _act(self, run_id: str, verb: str, body: Mapping[str, Any] | None = None) -> Status:
        answer = (await self._http.change("POST", _run(run_id, verb), body))["status"]
        # Only this response is not a status: the run is cancelled, and its code has not stopped yet.
        return Status.RUNNING if answer == "cancellation_requested" else Status(answer)


def _body(name: str, given: Mapping[str, Any] | None, options: RunOptions) -> tuple[dict[str, Any], str | None]:
    """Return the request body that starts a run, and the idempotency key."""
    text = input_json({} if given is None else given, name)
    return {"input": orjson.Fragment(text), **options.to_body()}, options.idempotency_key


def _run(run_id: str, view: str = "") -> str:
    return f"{PREFIX}/runs/{part(run_id)}{f'/{view}' if view else ''}"
