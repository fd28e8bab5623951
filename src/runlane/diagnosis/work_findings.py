"""Checks of what executes runs: clock, transactions, workers, lanes, tasks, and the keys of secrets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from runlane.domain.finding import Finding, Level
from runlane.domain.lane import Lane
from runlane.domain.run import AGENT, ORCHESTRATION
from runlane.domain.text import counted
from runlane.domain.views import WorkerInfo
from runlane.errors import nearest
from runlane.store.queue.search import WaitingInLane

SKEW_SECONDS = 2.0
OLD_SECONDS = 60.0
OLD_TRANSACTION_SECONDS = 600.0


def secrets_finding(counts: Mapping[str, int], keys: Sequence[str]) -> Finding:
    """Report secrets whose key is missing or old."""
    missing = {key_id: count for key_id, count in counts.items() if key_id not in keys}
    if missing:
        keys_missing = ", ".join(f"{count} with {key_id}" for key_id, count in sorted(missing.items()))
        return Finding(
            "secrets",
            Level.BROKEN,
            f"{sum(missing.values())} cannot be read, because their key is not configured: {keys_missing}",
            "Add the key after the current one in RUNLANE_SECRET_KEY or its file, or set these secrets again.",
        )
    older = sum(count for key_id, count in counts.items() if key_id != keys[0])
    if older:
        return Finding("secrets", Level.NOTE, f"{older} are encrypted with an older key", "Run: runlane secrets rotate")
    if not keys:
        return Finding("secrets", Level.NOTE, "none, and no encryption key is configured; see: runlane secrets new-key")
    return Finding("secrets", Level.OK, f"{sum(counts.values())}, all encrypted with the key {keys[0]}")


def clock_finding(skew_seconds: float) -> Finding:
    """Report clock skew. It only affects the comparison of logs, because all decisions use the database's clock."""
    if abs(skew_seconds) <= SKEW_SECONDS:
        return Finding("clock", Level.OK, f"this host and the database differ by {abs(skew_seconds):.1f} s")
    direction = "behind" if skew_seconds > 0 else "ahead of"
    return Finding(
        "clock",
        Level.WARNING,
        f"this host is {abs(skew_seconds):.1f} s {direction} the database; its logs do not match the times of runs",
        "Synchronize the clocks (NTP). Leases and due times follow the database and are not affected.",
    )


def transaction_finding(seconds: float) -> Finding:
    """Report a transaction that has been open for long. Vacuum cannot remove the rows that have changed since."""
    if seconds < OLD_TRANSACTION_SECONDS:
        return Finding("transactions", Level.OK, "none has been open for long")
    return Finding(
        "transactions",
        Level.WARNING,
        f"one has been open for {seconds / 60:.0f} minutes; changed rows accumulate, and claims become slower",
        "Find and end it: select pid, application_name, query from pg_stat_activity order by xact_start limit 1",
    )


def workers_finding(workers: Sequence[WorkerInfo], lanes: Sequence[Lane]) -> Finding:
    """Report whether workers are online."""
    live = [worker for worker in workers if worker.status == "online"]
    waiting = sum(lane.queued for lane in lanes)
    if live:
        busy, capacity = sum(worker.active for worker in live), sum(worker.capacity for worker in live)
        return Finding("workers", Level.OK, f"{len(live)} online, {busy} of {counted(capacity, 'slot')} busy")
    cure = "Start one: runlane worker module:app"
    if waiting:
        return Finding("workers", Level.BROKEN, f"none online, and {counted(waiting, 'run waits', 'runs wait')}", cure)
    return Finding("workers", Level.WARNING, "none online", cure)


def lane_findings(lanes: Sequence[Lane], workers: Sequence[WorkerInfo], now_us: int) -> Iterator[Finding]:
    """Report lanes whose runs cannot start, and why."""
    live = [worker for worker in workers if worker.status == "online"]
    stuck = False
    for lane in lanes:
        if not lane.queued:
            continue
        name, waiting = lane.name, counted(lane.queued, "run waits", "runs wait")
        serving = [worker for worker in live if "*" in worker.lanes or name in worker.lanes]
        age_seconds = 0.0 if lane.oldest_queued_at_us is None else (now_us - lane.oldest_queued_at_us) / 1_000_000
        finding = None
        if not lane.enabled:
            finding = Finding("lanes", Level.WARNING, f"{name}: {waiting}, but it is disabled",
                              f"Enable it: runlane lanes set {name} --enable")  # fmt: skip
        elif lane.max_slots == 0:
            finding = Finding("lanes", Level.WARNING, f"{name}: {waiting}, but it is paused (0 slots)",
                              f"Resume it: runlane lanes set {name} --uncapped")  # fmt: skip
        elif live and not serving:
            finding = Finding("lanes", Level.BROKEN, f"{name}: {waiting}, and no worker serves it",
                              f"Start one: runlane worker module:app --lanes {name}")  # fmt: skip
        elif (
            age_seconds > OLD_SECONDS
            and not lane.held
            and any(worker.active < worker.capacity for worker in serving)
            and (lane.max_slots is None or lane.running < lane.max_slots)
        ):
            finding = Finding(
                "lanes",
                Level.WARNING,
                f"{name}: {waiting}, the oldest for {age_seconds:.0f} s, although its workers have free slots",
                f"List the waiting runs: runlane runs list --status queued --lane {name}",
            )
        if finding is not None:
            stuck = True
            yield finding
    if not stuck:
        waiting = sum(lane.queued for lane in lanes)
        yield Finding(
            "lanes",
            Level.OK,
            f"{counted(len(lanes), 'lane')}, {counted(waiting, 'run waits', 'runs wait')}, none is stuck",
        )


def task_findings(waiting: Sequence[WaitingInLane], workers: Sequence[WorkerInfo]) -> Iterator[Finding]:
    """Report runs of a task that no live worker of their lane has: they would wait forever."""
    live = [worker for worker in workers if worker.status == "online"]
    unknown = False
    for kind in waiting:
        if kind.target.startswith((ORCHESTRATION, AGENT)):
            # Every worker executes them; workers only register their tasks.
            continue
        serving = [worker for worker in live if "*" in worker.lanes or kind.lane in worker.lanes]
        # The check of lanes reports a lane without workers; a worker without a list of tasks may have the task.
        if not serving or any(worker.targets is None or kind.target in worker.targets for worker in serving):
            continue
        unknown = True
        known = {target for worker in serving for target in worker.targets or ()}
        yield Finding(
            "tasks",
            Level.BROKEN,
            f'{kind.count} runs in the lane {kind.lane} wait for the task "{kind.target}", which no live worker of '
            f"this lane has{nearest(kind.target, known)}",
            "Start a worker with the app that defines it, or cancel them.",
        )
    if live and not unknown:
        yield Finding("tasks", Level.OK, "every task of a waiting run is registered by a live worker")
