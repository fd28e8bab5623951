"""Ids sort by their time of creation, and lock numbers are the same in every process."""

from __future__ import annotations

import threading
import time
from uuid import UUID

import pytest

from runlane.domain import ids
from runlane.domain.ids import lock_key, new_id


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A clock that the test owns: nanoseconds in its one item."""
    now = [2_000_000_000_000_000_000]
    monkeypatch.setattr(time, "time_ns", lambda: now[0])
    monkeypatch.setattr(ids, "_last_ms", 0)
    monkeypatch.setattr(ids, "_counter", 0)
    return now


def uuid_of(value: str) -> UUID:
    return UUID(hex=value.partition("_")[2])


def test_an_id_is_a_prefix_and_a_uuid_of_version_seven() -> None:
    value = new_id("run")
    assert value.startswith("run_")
    assert len(value) == len("run_") + 32
    assert uuid_of(value).version == 7
    assert uuid_of(value).variant == "specified in RFC 4122"


def test_the_first_bits_are_the_milliseconds(clock: list[int]) -> None:
    assert uuid_of(new_id("run")).int >> 80 == clock[0] // 1_000_000


def test_ids_grow_while_the_clock_is_stopped(clock: list[int]) -> None:
    made = [new_id("run") for _ in range(20_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert all(uuid_of(value).version == 7 for value in made)


def test_ids_grow_when_the_clock_goes_back(clock: list[int]) -> None:
    first = new_id("run")
    clock[0] -= 3_600_000_000_000
    assert new_id("run") > first


def test_a_new_millisecond_is_used_once_the_clock_has_caught_up(clock: list[int]) -> None:
    for _ in range(10_000):
        new_id("run")
    clock[0] += 1_000_000_000
    assert uuid_of(new_id("run")).int >> 80 == clock[0] // 1_000_000


def test_threads_never_make_the_same_id() -> None:
    made: list[list[str]] = []

    def make() -> None:
        made.append([new_id("run") for _ in range(2_000)])

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = [value for part in made for value in part]
    assert len(set(everything)) == 16_000
    assert all(part == sorted(part) for part in made)


@pytest.mark.parametrize(
    ("parts", "number"),
    [
        (("lane", "default"), -460789231793268903),
        (("key", "user:7"), -6810763498079617278),
        (("duty", "reaper"), 715591064007881563),
    ],
)
def test_lock_numbers_never_change(parts: tuple[str, ...], number: int) -> None:
    # Processes of different versions share these locks: another number would be another lock.
    assert lock_key(*parts) == number


def test_lock_numbers_fit_a_signed_64_bit_integer() -> None:
    numbers = [lock_key("key", str(number)) for number in range(1_000)]
    assert all(-(2**63) <= number < 2**63 for number in numbers)
    assert len(set(numbers)) == 1_000
    assert any(number < 0 for number in numbers)


def test_the_parts_of_a_lock_do_not_run_together() -> None:
    assert lock_key("a", "bc") != lock_key("ab", "c")


def test_a_lock_key_takes_half_a_surrogate_pair() -> None:
    assert isinstance(lock_key("key", "\ud800"), int)
