"""How the doctor rates what it finds."""

from __future__ import annotations

from typing import Any

import pytest

from runlane.cli.doctor import unknown_settings
from runlane.diagnosis.operation_findings import (
    event_findings,
    hold_findings,
    letters_finding,
    quota_findings,
    retention_finding,
    statements_finding,
)
from runlane.diagnosis.work_findings import (
    clock_finding,
    lane_findings,
    secrets_finding,
    task_findings,
    transaction_finding,
    workers_finding,
)
from runlane.domain.finding import Finding, Level
from runlane.domain.lane import Lane, LaneHold
from runlane.domain.server import ServerReplica
from runlane.domain.views import WorkerInfo
from runlane.store.access.quota_health import NearlyUsed
from runlane.store.events.health import EventHealth
from runlane.store.queue.search import WaitingInLane

NOW = 1_000_000_000_000


def lane(name: str = "bulk", **fields: Any) -> Lane:
    plain: dict[str, Any] = {"enabled": True, "max_slots": None, "poll_interval_ms": 250, "queued": 3}
    plain["oldest_queued_at_us"] = NOW - 1_000_000
    return Lane(name, **(plain | fields))


def worker(*lanes: str, active: int = 0, status: str = "online", targets: tuple[str, ...] | None = None) -> WorkerInfo:
    return WorkerInfo(
        id="wrk_1", status=status, host="h", pid=1, version="1", lanes=lanes or ("*",), capacity=2, active=active,
        started_at_us=0, heartbeat_at_us=NOW, lease_until_us=NOW, ended_at_us=None, targets=targets,
    )  # fmt: skip


def judge(lane: Lane, *workers: WorkerInfo) -> Finding:
    (finding,) = lane_findings([lane], workers, NOW)
    return finding


def test_unknown_variables_are_reported_with_the_nearest_name() -> None:
    environment = {"RUNLANE_CONCURENCY": "5", "RUNLANE_URL": "x", "RUNLANE_LEASE_SECONDS": "9", "OTHER": "1"}
    (finding,) = unknown_settings(environment)
    assert finding.level is Level.WARNING
    assert (
        'RUNLANE_CONCURENCY is not a known setting and is ignored (did you mean "RUNLANE_CONCURRENCY"?)'
        in finding.message
    )


@pytest.mark.parametrize(
    ("found", "workers", "level", "expected"),
    [
        (lane(), [worker()], Level.OK, "none is stuck"),
        (lane(queued=0), [], Level.OK, "none is stuck"),
        (lane(), [worker("bulk")], Level.OK, "none is stuck"),
        (lane(), [], Level.OK, "none is stuck"),  # the check of the workers reports that none runs
        (lane(), [worker("mail")], Level.BROKEN, "no worker serves it"),
        (lane(), [worker("mail"), worker(status="draining")], Level.BROKEN, "no worker serves it"),
        (lane(enabled=False), [worker()], Level.WARNING, "disabled"),
        (lane(max_slots=0), [worker()], Level.WARNING, "0 slots"),
        (lane(oldest_queued_at_us=NOW - 90_000_000), [worker()], Level.WARNING, "free slots"),
        (lane(oldest_queued_at_us=NOW - 90_000_000), [worker(active=2)], Level.OK, "none is stuck"),
        (lane(oldest_queued_at_us=NOW - 90_000_000, max_slots=1, running=1), [worker()], Level.OK, "none is stuck"),
    ],
)
def test_lanes(found: Lane, workers: list[WorkerInfo], level: Level, expected: str) -> None:
    finding = judge(found, *workers)
    assert finding.level is level
    assert expected in finding.message
    assert (finding.cure is None) == (level is Level.OK)


def test_workers() -> None:
    assert workers_finding([worker()], [lane()]).level is Level.OK
    assert workers_finding([], [lane()]).level is Level.BROKEN
    assert workers_finding([worker(status="draining")], [lane()]).level is Level.BROKEN
    assert workers_finding([], [lane(queued=0)]).level is Level.WARNING


@pytest.mark.parametrize(
    ("workers", "level"),
    [
        ([worker(targets=("ship", "pack"))], Level.OK),
        ([worker(targets=("ship",))], Level.BROKEN),
        ([worker("bulk", targets=("ship",)), worker("mail", targets=("pack",))], Level.BROKEN),
        ([worker("bulk", targets=("ship",)), worker(targets=("pack",), status="draining")], Level.BROKEN),
        ([worker(targets=("ship",)), worker("bulk", targets=("pack",))], Level.OK),
        ([worker(targets=("ship",)), worker()], Level.OK),  # an older release does not report its targets
        ([worker("mail", targets=("ship",))], Level.OK),  # another check reports a lane without workers
    ],
)
def test_tasks(workers: list[WorkerInfo], level: Level) -> None:
    (finding,) = task_findings([WaitingInLane("bulk", "pack", 3)], workers)
    assert finding.level is level
    if level is Level.BROKEN:
        assert '3 runs in the lane bulk wait for the task "pack"' in finding.message


def test_orchestrations_and_agents_are_known_to_every_worker() -> None:
    waiting = [WaitingInLane("bulk", target, 3) for target in ("orchestration:article", "agent:helper")]
    (finding,) = task_findings(waiting, [worker("bulk", targets=("pack",))])
    assert finding.level is Level.OK


def test_tasks_without_workers_are_not_reported_twice() -> None:
    assert list(task_findings([WaitingInLane("bulk", "pack", 3)], [])) == []


def test_holds_that_keep_runs_waiting_or_were_forgotten_are_reported() -> None:
    def hold(days: float, expires_at_us: int | None = None) -> LaneHold:
        return LaneHold("hold_1", "bulk", "ann", "migration", NOW - int(days * 86_400_000_000), expires_at_us)

    (waiting,) = hold_findings([lane(held=True, holds=(hold(1, NOW + 1),))], NOW)
    assert waiting.level is Level.WARNING
    assert 'bulk: 3 runs wait; it is held by "ann" for 1.0 days' in waiting.message
    assert "runlane lanes release bulk hold_1" in (waiting.cure or "")
    (forgotten,) = hold_findings([lane(queued=0, held=True, holds=(hold(8),))], NOW)
    assert "without an end: migration" in forgotten.message
    for fine in (lane(queued=0, holds=(hold(8, NOW + 1),)), lane(queued=0, holds=(hold(6),)), lane()):
        assert list(hold_findings([fine], NOW)) == []
    # A held lane is not stuck for another reason.
    held = lane(oldest_queued_at_us=NOW - 90_000_000, held=True, holds=(hold(1),))
    assert judge(held, worker()).level is Level.OK


def test_events_triggers_and_sources() -> None:
    (fine,) = event_findings(EventHealth(0, 0, (), ()))
    assert (fine.level, fine.check) == (Level.OK, "triggers")
    found = list(event_findings(EventHealth(3, 2, ("on_paid",), ("github",))))
    assert [(item.check, item.level) for item in found] == [
        ("triggers", Level.BROKEN), ("dependents", Level.BROKEN), ("triggers", Level.WARNING),
        ("incoming", Level.WARNING),
    ]  # fmt: skip
    assert "on_paid" in found[2].message
    assert "github" in found[3].message


def test_quotas_of_which_most_is_used() -> None:
    (finding,) = quota_findings([NearlyUsed("acme", "runs_per_day", 10, 9)])
    assert finding.message == 'tenant "acme" uses 9 of 10 (runs_per_day)'
    assert "runlane quotas set runs_per_day LIMIT --tenant acme" in (finding.cure or "")


def test_clock_and_dead_letters() -> None:
    assert clock_finding(-0.4).level is Level.OK
    assert "12.0 s behind" in clock_finding(12).message
    assert "12.0 s ahead of" in clock_finding(-12).message
    assert letters_finding(0, 0).level is Level.OK
    assert letters_finding(1000, 3 * 86400).message == "1000 open, the oldest for 3.0 days"
    assert letters_finding(2, 1800).message == "2 open, the oldest for 0.5 hours"
    assert "may be deleted" in letters_finding(1, 151 * 86400).message
    assert "may be deleted" not in letters_finding(1, 149 * 86400).message


def test_a_transaction_that_has_been_open_for_long_is_reported() -> None:
    assert transaction_finding(599).level is Level.OK
    found = transaction_finding(1800)
    assert (found.level, found.message.partition(";")[0]) == (Level.WARNING, "one has been open for 30 minutes")
    assert "pg_stat_activity" in (found.cure or "")


def test_a_late_deletion_of_expired_runs_is_reported() -> None:
    day = 86400.0
    for age in (None, 3 * day, 30 * day + 1800):
        assert retention_finding(30, age, 60).level is Level.OK, age
    late = retention_finding(30, 31 * day, 60)
    assert (late.level, late.message) == (
        Level.WARNING,
        "ended runs are kept for 30 days; the deletion is 24.0 hours late",
    )
    # If retention searches for runs once a day, a day is not late.
    assert retention_finding(30, 31 * day, day).level is Level.OK


def test_the_slowest_statement_of_all_servers_is_reported() -> None:
    def server(**figures: object) -> ServerReplica:
        return ServerReplica("srv_1", "host", 7, "1.0", 0, 0, figures)

    # A server of an earlier version reports none.
    assert statements_finding([server(), server(slow_statements=[])]).level is Level.OK
    two = [
        server(slow_statements=[{"name": "list_a", "seconds": 0.4, "at": "", "count": 1}]),
        server(slow_statements=[{"name": "list_b", "seconds": 1.25, "at": "", "count": 1}]),
    ]
    found = statements_finding(two)
    assert (found.level, found.message) == (Level.NOTE, "list_b took 1.25 s, the slowest in the last hour")


def test_secrets_without_their_key_are_broken_and_older_keys_are_reported() -> None:
    assert secrets_finding({}, []).level is Level.NOTE
    assert secrets_finding({"aa": 2}, ["aa"]).level is Level.OK
    older = secrets_finding({"aa": 2, "bb": 1}, ["bb", "aa"])
    assert (older.level, older.cure) == (Level.NOTE, "Run: runlane secrets rotate")
    assert older.message.startswith("2 ")
    for keys in ([], ["bb"]):
        missing = secrets_finding({"aa": 2, "bb": 1}, keys)
        assert missing.level is Level.BROKEN
        assert "2 with aa" in missing.message


def test_one_of_a_kind_is_in_the_singular() -> None:
    assert judge(lane(queued=1), worker()).message == "1 lane, 1 run waits, none is stuck"
    (found,) = lane_findings([lane(), lane("other")], [worker()], NOW)
    assert found.message == "2 lanes, 6 runs wait, none is stuck"
    assert "none online, and 1 run waits" in workers_finding([], [lane(queued=1)]).message
