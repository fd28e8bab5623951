"""Valid requests that are denied: not found, in conflict, not authorized, over a limit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, NamedTuple

from runlane.errors.base import RunlaneError, listing, nearest

__all__ = [
    "BacklogFull",
    "ConcurrencyLimited",
    "Conflict",
    "Forbidden",
    "IdempotencyConflict",
    "MemoryBusy",
    "MemoryOwnedElsewhere",
    "NotFound",
    "QueueLimited",
    "QuotaReached",
    "RateLimited",
    "RunNotFound",
    "ScheduleLimited",
    "StartLimited",
    "Unauthorized",
    "UniqueConflict",
    "UnknownAssistant",
    "UnknownGraph",
    "UnknownSession",
    "UnknownThread",
    "VersionMismatch",
    "WrongState",
]


class IdempotencyConflict(RunlaneError):
    """The idempotency key belongs to another request."""

    code = "idempotency_conflict"
    http_status = 409

    def __init__(self, key: str, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(
            f'The idempotency key "{key}" was used before for run {run_id} with another body. '
            "Send the same body to get that run again, or use a new key."
        )


class RunNotFound(RunlaneError):
    """The run does not exist, or its retention time has elapsed."""

    code = "run_not_found"
    http_status = 404

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(
            f'The run "{run_id}" does not exist. Check the id, RUNLANE_DATABASE_URL and the retention time.'
        )

    @property
    def public_message(self) -> str:
        return f'The run "{self.run_id}" does not exist. Check the id and the retention time.'


class NotFound(RunlaneError):
    """The tenant, key, role or secret does not exist, or the caller may not see it."""

    code = "not_found"
    http_status = 404


class UnknownSession(RunlaneError):
    """The chat session does not exist, or the caller may not see it."""

    code = "session_not_found"
    http_status = 404

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f'The chat session "{session_id}" does not exist. Send a message without session_id to begin a new one.'
        )


class UnknownThread(RunlaneError):
    """The thread does not exist, or the caller may not see it."""

    code = "thread_not_found"
    http_status = 404

    def __init__(self, thread_id: str) -> None:
        super().__init__(f'The thread "{thread_id}" does not exist. Create it: POST /threads')


class UnknownGraph(RunlaneError):
    """No worker has loaded a graph with this id."""

    code = "graph_not_found"
    http_status = 404

    def __init__(self, graph_id: str, known: Iterable[str]) -> None:
        names = sorted(known)
        super().__init__(
            f'The graph "{graph_id}" does not exist{nearest(graph_id, names)}. '
            f"{listing('Graphs of the workers', names)} "
            "Start a worker that hosts it."
        )


class UnknownAssistant(RunlaneError):
    """Neither an assistant nor a graph has this id, or the caller may not see it."""

    code = "assistant_not_found"
    http_status = 404

    def __init__(self, assistant_id: str, known: Iterable[str]) -> None:
        names = sorted(known)
        super().__init__(
            f'The assistant "{assistant_id}" does not exist{nearest(assistant_id, names)}. Use the id of an assistant '
            f"or of a graph. {listing('Graphs of the workers', names)}"
        )


class WrongState(RunlaneError):
    """The state of the run does not allow this."""

    code = "wrong_state"
    http_status = 409


class Conflict(RunlaneError):
    """Existing data does not allow this."""

    code = "conflict"
    http_status = 409


class VersionMismatch(Conflict):
    """The object has changed since the caller read it; nothing was changed."""

    code = "version_mismatch"
    http_status = 412


class Unauthorized(RunlaneError):
    """The caller is not authenticated. The message does not give the reason, so that it reveals no existing key."""

    code = "unauthorized"
    http_status = 401

    def __init__(self) -> None:
        super().__init__(
            "The API key is missing, unknown, expired or revoked. Send one: Authorization: Bearer sk-rl-... "
            "(runlane keys create NAME --role ROLE creates one)."
        )


class Forbidden(RunlaneError):
    """The caller is authenticated, but not authorized to do this."""

    code = "forbidden"
    http_status = 403


class RateQuota(NamedTuple):
    """The rate of a tenant: its burst of runs, how many of these remain, and when all are available again."""

    limit: int
    remaining: int
    reset_seconds: float


class RateLimited(RunlaneError):
    """A limit of the tenant is reached; nothing was stored. `limit` is its name: rate, queue or concurrency."""

    quota: RateQuota | None = None

    code = "rate_limited"
    http_status = 429
    limit: ClassVar[str] = "rate"

    def __init__(self, message: str, retry_after_seconds: float) -> None:
        self.retry_after_seconds = retry_after_seconds
        super().__init__(message)


class QueueLimited(RateLimited):
    """The tenant has reached its limit of open runs."""

    code = "queue_limited"
    limit = "queue"


class ScheduleLimited(RateLimited):
    """The tenant has reached its limit of schedules."""

    code = "schedules_limited"
    limit = "schedules"


class QuotaReached(RateLimited):
    """The tenant has reached a quota; the message names it, its limit and its use."""

    code = "quota_reached"
    limit = "quota"


class ConcurrencyLimited(RateLimited):
    """As many runs with the key are admitted as its concurrency limit allows, and the limit rejects new ones."""

    code = "concurrency_limited"
    limit = "concurrency_key"


class StartLimited(RateLimited):
    """A rate limit of the target's flow control is reached for the key of this start."""

    code = "start_limited"
    limit = "flow_control"


class BacklogFull(RateLimited):
    """As many runs with the key of this start wait as the target's flow control allows."""

    code = "backlog_full"
    limit = "flow_control"


class MemoryBusy(RateLimited):
    """The shard of the memory is full; nothing was stored."""

    code = "memory_busy"
    limit = "memory"


class MemoryOwnedElsewhere(Conflict):
    """Another node owns the memory. `owner` is its id and `owner_url` its address, if it has one."""

    code = "memory_owned_elsewhere"

    def __init__(self, memory_id: str, owner: str, owner_url: str) -> None:
        self.memory_id = memory_id
        self.owner = owner
        self.owner_url = owner_url
        where = f" at {owner_url}" if owner_url else ""
        super().__init__(
            f'The memory "{memory_id}" is owned by the node {owner}{where}. Send the request to that node.'
        )


class UniqueConflict(Conflict):
    """Another run with the same unique key is open. `run_id` names it."""

    code = "unique_conflict"

    def __init__(self, target: str, label: str, run_id: str) -> None:
        self.run_id = run_id
        named = f' with the unique key "{label}"' if label else ""
        super().__init__(
            f"Run {run_id} of {target}{named} is open, and at most one may be. Wait for its end, or start with "
            "on_conflict return, replace or skip."
        )
