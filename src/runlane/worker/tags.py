"""Tags: what every log line written while a run executes carries, whoever writes it.

They are structlog's own context variables, found by the prefix of their name. Set directly, they cost a tenth of what
bind_contextvars does, which looks each one up by name for every run.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from structlog.contextvars import STRUCTLOG_KEY_PREFIX

from runlane.store.claim import Claimed

_run_id, _attempt, _worker, _tenant = (
    ContextVar[Any](STRUCTLOG_KEY_PREFIX + name, default=...) for name in ("run_id", "attempt", "worker", "tenant")
)


def tag(claimed: Claimed, worker_id: str | None) -> None:
    """Tag this context, which must be the run's own."""
    _run_id.set(claimed.run_id)
    _attempt.set(claimed.attempt)
    _worker.set(worker_id)
    _tenant.set(claimed.tenant)
