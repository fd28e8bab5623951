"""Failpoints: named places around every commit where a test may stop the process or wait.

In production no hook is installed, and reaching a failpoint costs one comparison. The names list the places where a
crash must do no harm; `runlane.testing.crash_points` kills the process at each of them in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

POINTS: Final = (
    "accept.before_commit",
    "accept.committed",
    "claim.before_commit",
    "claim.committed",
    "record.before_commit",
    "record.committed",
    "call.answered",
    "tool.answered",
    "journal.kept",
    "child.announced",
    "child.started",
    "step.before_commit",
    "step.committed",
    "graph.before_commit",
    "graph.committed",
    "finish.before_commit",
    "finish.committed",
    "reaper.before_commit",
    "reaper.committed",
    "timers.before_commit",
    "timers.committed",
    "schedules.before_commit",
    "schedules.committed",
    "children.before_cancel",
    "admit.before_commit",
    "admit.committed",
    "dependents.before_commit",
    "dependents.committed",
    "triggers.matched",
    "triggers.claimed",
    "triggers.started",
    "operate.before_commit",
    "operate.committed",
    "bulk.before_commit",
    "bulk.item_committed",
    "retention.before_commit",
    "retention.committed",
    "register.committed",
    "webhook.claimed",
    "webhook.sent",
    "webhook.recorded",
    "memory.before_commit",
    "memory.committed",
    "words.before_commit",
    "words.committed",
    "replicate.read",
    "replicate.before_commit",
    "replicate.committed",
    "replicate.marked",
    "handover.requested",
    "handover.replicated",
    "handover.released",
    "memory.embedded",
    "memory.indexed",
    "drain.begun",
    "sign_off.committed",
)

_hook: Callable[[str], None] | None = None


def failpoint(point: str) -> None:
    """Call the installed hook, if any, with the name of this point."""
    if _hook is not None:
        _hook(point)


def install(hook: Callable[[str], None] | None) -> None:
    """Install the hook of this process; None removes it."""
    global _hook  # noqa: PLW0603 - one hook per process
    _hook = hook
