"""The bus of one process: a bell is stored once, and an ended subscription is harmless."""

from __future__ import annotations

from runlane.bus.memory import MemoryBus


async def test_a_bell_that_rang_before_the_wait_ends_it() -> None:
    bus = MemoryBus()
    listener = bus.listen(frozenset({"a"}))
    bus.ring(["a"])
    bus.ring(["a", "b"])
    assert await listener.wait({"a", "b"}, 10)
    assert not await listener.wait({"a", "b"}, 0.001)


async def test_a_bell_of_another_lane_wakes_no_waiter() -> None:
    bus = MemoryBus()
    listener, everybody = bus.listen(frozenset({"a"})), bus.listen(None)
    bus.ring(["b"])
    assert not await listener.wait({"a", "b"}, 0.001)
    assert await everybody.wait({"a", "b"}, 10)


async def test_a_closed_listener_gets_nothing_and_may_be_closed_again() -> None:
    bus = MemoryBus()
    listener = bus.listen(None)
    listener.close()
    listener.close()
    bus.ring(["a"])
    assert not await listener.wait({"a", "b"}, 0.001)


async def test_wake_rings_one_listener_alone() -> None:
    bus = MemoryBus()
    one, two = bus.listen(None), bus.listen(None)
    one.wake()
    assert await one.wait({"a", "b"}, 10)
    assert not await two.wait({"a", "b"}, 0.001)


def test_cancel_signals_reach_every_listener() -> None:
    bus = MemoryBus()
    received: list[str] = []
    end = bus.on_cancel(received.append)
    bus.signal_cancel("run_1")
    end()
    bus.signal_cancel("run_2")
    assert received == ["run_1"]


def test_ending_a_cancel_subscription_twice_is_harmless() -> None:
    bus = MemoryBus()
    received: list[str] = []
    end = bus.on_cancel(received.append)
    end()
    end()


def test_readers_are_announced_to_every_listener() -> None:
    bus = MemoryBus()
    received: list[str] = []
    end = bus.on_reader(received.append)
    bus.announce_reader("run_1")
    end()
    end()
    bus.announce_reader("run_2")
    assert received == ["run_1"]
