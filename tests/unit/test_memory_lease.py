"""The lease of a memory node ends before another node may take its memories."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from runlane.errors import Unavailable
from runlane.memory import lease as lease_module
from runlane.memory.lease import NodeLease


class Clock:
    """A clock that a test moves."""

    CLOCK_BOOTTIME = CLOCK_MONOTONIC = 0

    def __init__(self) -> None:
        self.now = 100.0

    def clock_gettime(self, _clock: int) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lease_module, "time", SimpleNamespace(clock_gettime=clock.clock_gettime))
    return clock


async def test_the_lease_is_counted_from_the_sending_of_its_renewal_less_a_margin(clock: Clock) -> None:
    async def renew() -> None:
        clock.now += 4.0

    lease = NodeLease(10.0, renew)
    await lease.renew()
    # The database counts ten seconds from a moment after the sending.
    assert lease.seconds_left == pytest.approx(10.0 * 0.9 - 4.0)
    clock.now += 5.0
    with pytest.raises(Unavailable, match="lease of this memory node has expired"):
        lease.check()


async def test_a_renewal_that_fails_extends_nothing(clock: Clock) -> None:
    async def renew() -> None:
        if clock.now > 100.0:
            raise Unavailable("away")

    lease = NodeLease(10.0, renew)
    await lease.renew()
    clock.now += 3.0
    with pytest.raises(Unavailable, match="away"):
        await lease.renew()
    assert lease.seconds_left == pytest.approx(6.0)


async def test_a_renewal_after_the_end_of_the_lease_is_reported(clock: Clock) -> None:
    async def renew() -> None:
        clock.now += 1.0

    lapses: list[float] = []
    lease = NodeLease(10.0, renew, lambda: lapses.append(lease.seconds_left))
    await lease.renew()
    lapses.clear()
    clock.now += 5.0
    await lease.renew()
    assert lapses == []
    clock.now += 8.5
    await lease.renew()
    # Before the lease is valid again, so no change is accepted in between.
    assert len(lapses) == 1
    assert lapses[0] < 0
