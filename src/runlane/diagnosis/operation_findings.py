"""Checks of `runlane doctor` for what operators configure: schedules, webhooks, holds, quotas, retention."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from runlane.domain.dead_letter import OPEN_KEPT_DAYS
from runlane.domain.finding import Finding, Level
from runlane.domain.text import counted
from runlane.domain.webhook import CIRCUIT_FAILURES
from runlane.observability.slow_statements import SLOW_SECONDS

if TYPE_CHECKING:
    from runlane.domain.lane import Lane
    from runlane.domain.server import ServerReplica
    from runlane.store.access.quota_health import NearlyUsed
    from runlane.store.events.health import EventHealth
    from runlane.store.queue.flow_overview import FlowHealth
    from runlane.store.schedules.health import ScheduleHealth
    from runlane.store.webhooks.retention import WebhookOverview

_DAY_SECONDS: Final = 86400
_OLD_LETTER_DAYS: Final = 150
_OLD_DELIVERY_SECONDS: Final = 3600
# A hold without an end that is older than this was probably forgotten.
_OLD_HOLD_DAYS: Final = 7
# Expired runs are deleted some at a time, so a short delay is expected.
_LATE_RETENTION_SECONDS: Final = 3600


def schedule_findings(health: ScheduleHealth) -> Iterator[Finding]:
    """Report schedules that are overdue or unreadable, lack their target, or whose last slot started no run."""
    if health.overdue:
        message = f"{health.overdue} of {health.active} active ones overdue by more than a minute"
        yield Finding("schedules", Level.BROKEN, message, "Start a server or a worker: each of them starts due slots.")
    if health.dangling:
        message = f"the targets of these schedules do not exist: {', '.join(health.dangling)}"
        yield Finding("schedules", Level.WARNING, message, "Sync the definition, or change or delete the schedule.")
    if health.unreadable:
        message = f"the settings of these schedules cannot be read: {', '.join(health.unreadable)}"
        cure = "Run the version that has stored them, or delete them and create them again."
        yield Finding("schedules", Level.BROKEN, message, cure)
    if health.failed:
        message = f"the last slot of these schedules did not start a run: {', '.join(health.failed)}"
        yield Finding("schedules", Level.WARNING, message, "See the reason: runlane schedules firings SCHEDULE")
    if not (health.overdue or health.dangling or health.unreadable or health.failed):
        yield Finding("schedules", Level.OK, f"{health.active} active")


def webhook_findings(overview: WebhookOverview, *, delivers: bool) -> Iterator[Finding]:
    """Report disabled and failing endpoints, and messages that are not delivered."""
    if overview.disabled:
        yield Finding(
            "webhooks",
            Level.WARNING,
            f"{counted(overview.disabled, 'endpoint is', 'endpoints are')} disabled; messages are held",
            "See: runlane webhooks list; then runlane webhooks enable ID",
        )
    if overview.failing:
        yield Finding(
            "webhooks",
            Level.WARNING,
            f"{counted(overview.failing, 'endpoint')} failed {CIRCUIT_FAILURES} times in a row or more",
            "See: runlane webhooks list; then runlane webhooks deliveries --endpoint ID",
        )
    if overview.untried:
        yield Finding(
            "webhooks",
            Level.WARNING,
            f"{overview.pending} messages are not delivered, the oldest for {overview.oldest_seconds:.0f} s, and no "
            "process has tried some of them",
            "Start a server or a worker" + ("." if delivers else " with RUNLANE_WEBHOOKS=true."),
        )
    elif overview.oldest_seconds > _OLD_DELIVERY_SECONDS:
        hours = overview.oldest_seconds / 3600
        yield Finding(
            "webhooks",
            Level.WARNING,
            f"{counted(overview.pending, 'message')} not delivered, the oldest for {hours:.1f} hours",
            "See the errors: runlane webhooks deliveries --status pending",
        )
    elif not (overview.disabled or overview.failing):
        yield Finding("webhooks", Level.OK, f"{counted(overview.pending, 'message')} not delivered yet")


def event_findings(health: EventHealth) -> Iterator[Finding]:
    """Report unhandled events and dependents, failing triggers, and webhook sources without a verified request."""
    cure = "Start a server or a worker: each of them handles events and dependents."
    if health.unmatched:
        message = f"{counted(health.unmatched, 'event waits', 'events wait')} for triggers for more than a minute"
        yield Finding("triggers", Level.BROKEN, message, cure)
    if health.unsettled:
        message = f"{health.unsettled} ended runs have dependents that wait for more than a minute"
        yield Finding("dependents", Level.BROKEN, message, cure)
    if health.failed:
        message = f"these triggers failed to start a run for an event of the last day: {', '.join(health.failed)}"
        yield Finding("triggers", Level.WARNING, message, "See the reason: runlane triggers outcomes TRIGGER")
    if health.unverified:
        message = f"no request of these sources was verified since they were created: {', '.join(health.unverified)}"
        cure = "Compare URL and secret with those of the sender, or disable the source: runlane webhook-sources list"
        yield Finding("incoming", Level.WARNING, message, cure)
    if not (health.unmatched or health.failed):
        yield Finding("triggers", Level.OK, "no event waits")


def hold_findings(lanes: Sequence[Lane], now_us: int) -> Iterator[Finding]:
    """Report holds that keep runs waiting, and those that were probably forgotten."""
    for lane in lanes:
        for hold in lane.holds:
            days = (now_us - hold.created_at_us) / 1_000_000 / _DAY_SECONDS
            forgotten = hold.expires_at_us is None and days > _OLD_HOLD_DAYS
            if lane.queued or forgotten:
                waiting = f"{counted(lane.queued, 'run waits', 'runs wait')}; it is" if lane.queued else "it is"
                end = "without an end" if hold.expires_at_us is None else "until it expires"
                yield Finding(
                    "lanes",
                    Level.WARNING,
                    f'{lane.name}: {waiting} held by "{hold.owner}" for {days:.1f} days, {end}: {hold.reason}',
                    f"Release it if it is not needed: runlane lanes release {lane.name} {hold.id}",
                )


def quota_findings(nearly_used: Sequence[NearlyUsed]) -> Iterator[Finding]:
    """Report quotas of which most is used."""
    for item in nearly_used:
        yield Finding(
            "quotas",
            Level.WARNING,
            f'tenant "{item.tenant}" uses {item.used} of {item.limit} ({item.name})',
            f"Raise it if that is intended: runlane quotas set {item.name} LIMIT --tenant {item.tenant}",
        )


def flow_findings(health: FlowHealth) -> Iterator[Finding]:
    """Report limits of 0 with waiting runs, runs that have waited long for a limit, and nearly full backlogs."""
    for limit in health.closed:
        yield Finding(
            "concurrency",
            Level.WARNING,
            f'{limit.waiting} runs of the tenant "{limit.tenant}" wait for the limit "{limit.name}", which is 0',
            f"Raise it: runlane concurrency-limits set {limit.name} NUMBER --tenant {limit.tenant}",
        )
    for wait in health.long:
        yield Finding(
            "concurrency",
            Level.WARNING,
            f"{wait.waiting} runs wait for one key of a limit, the oldest for {wait.seconds / 3600:.1f} hours",
            f"See which runs hold it: runlane runs show {wait.run_id}",
        )
    for backlog in health.nearly_full:
        yield Finding(
            "flow control",
            Level.WARNING,
            f'{backlog.target}: {backlog.waiting} of at most {backlog.most} runs wait for the key "{backlog.key}"',
            "Beyond that, starts are rejected. Add workers, or raise max_backlog of the target.",
        )


def bulk_findings(overdue: int) -> Iterator[Finding]:
    """Report bulk jobs that no process works on."""
    if overdue:
        cure = "Start a worker or a server, or stop them: runlane bulk list --state running"
        yield Finding("bulk jobs", Level.WARNING, f"{overdue} wait, and no process works on them", cure)


def graph_findings(errors: Mapping[str, str | None]) -> Iterator[Finding]:
    """Report graphs that the newest worker could not load: their runs wait."""
    broken = {name: error for name, error in errors.items() if error is not None}
    for error in broken.values():
        yield Finding("graphs", Level.BROKEN, error, "Correct it, and restart the worker.")
    if errors and not broken:
        yield Finding("graphs", Level.OK, f"{len(errors)} hosted")


def retention_finding(keep_days: float, oldest_seconds: float | None, interval_seconds: float) -> Finding:
    """Report ended runs that should have been deleted. `oldest_seconds` is the age of the oldest one."""
    kept = f"ended runs are kept for {keep_days:g} days"
    late_seconds = 0.0 if oldest_seconds is None else max(0.0, oldest_seconds - keep_days * _DAY_SECONDS)
    if late_seconds > max(_LATE_RETENTION_SECONDS, 2 * interval_seconds):
        message = f"{kept}; the deletion is {late_seconds / 3600:.1f} hours late"
        cure = "Start a server or a worker: each of them deletes, some runs at a time. Its log has the errors."
        return Finding("retention", Level.WARNING, message, cure)
    return Finding("retention", Level.OK, f"{kept}; the deletion is not late")


def statements_finding(servers: Iterable[ServerReplica]) -> Finding:
    """Report the slowest database statement that the serving processes have seen in the last hour."""
    slow = [one for server in servers for one in server.figures.get("slow_statements", ())]
    if not slow:
        return Finding("statements", Level.OK, f"none took {SLOW_SECONDS:g} s in the last hour")
    worst = max(slow, key=lambda one: one["seconds"])
    message = f"{worst['name']} took {worst['seconds']:.2f} s, the slowest in the last hour"
    return Finding("statements", Level.NOTE, message, "Narrow the slow list by a status, a target or a shorter time.")


def letters_finding(count: int, oldest_seconds: float) -> Finding:
    """Report runs that failed for good and that no operator has handled."""
    if not count:
        return Finding("dead letters", Level.OK, "none is open")
    age = oldest_seconds / _DAY_SECONDS
    expiring = f"; from {OPEN_KEPT_DAYS} days on they may be deleted" if age > _OLD_LETTER_DAYS else ""
    shown = f"{age:.1f} days" if age >= 1 else f"{oldest_seconds / 3600:.1f} hours"
    return Finding(
        "dead letters",
        Level.WARNING,
        f"{count} open, the oldest for {shown}{expiring}",
        "See: runlane dead-letters groups; then retry, discard or acknowledge them",
    )
