"""Keys that are remembered for an outage of the database, and the detection of an outage by lookups."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from runlane.access.lookup_outage import LookupOutage
from runlane.access.remembered_keys import MOST_REMEMBERED, RememberedKeys
from runlane.domain.access import Permission, Principal, mint_key
from runlane.errors import Unavailable
from runlane.settings import load_settings


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def principal(key_id: str = "key_1", **fields: object) -> Principal:
    return replace(Principal(key_id, key_id, "acme", "member", frozenset({Permission.MEMORY_WRITE})), **fields)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keys(clock: Clock) -> RememberedKeys:
    return RememberedKeys(10, clock)


def test_a_key_is_remembered_from_the_sending_of_its_check_for_the_given_time(
    keys: RememberedKeys, clock: Clock
) -> None:
    raw = mint_key().raw
    assert keys.recall(raw) is None
    asked_at = keys.now()
    clock.now = 104.0
    keys.remember(raw, principal(), asked_at)
    clock.now = 109.9
    assert keys.recall(raw) == principal()
    assert keys.key_ids() == {"key_1"}
    assert keys.recall(mint_key().raw) is None
    clock.now = 110.0
    assert keys.recall(raw) is None
    assert keys.key_ids() == set()


def test_a_key_that_expires_meanwhile_is_not_recalled(keys: RememberedKeys) -> None:
    raw, now = mint_key().raw, time.time_ns() // 1000
    keys.remember(raw, principal(expires_at_us=now - 1), keys.now())
    assert keys.recall(raw) is None
    keys.remember(raw, principal(expires_at_us=now + 60_000_000), keys.now())
    assert keys.recall(raw) is not None


def test_a_rejected_key_is_removed_and_an_earlier_check_does_not_restore_it(keys: RememberedKeys, clock: Clock) -> None:
    raw = mint_key().raw
    asked_at = keys.now()
    keys.remember(raw, principal(), asked_at)
    clock.now += 1
    keys.reject(raw)
    assert keys.recall(raw) is None
    keys.remember(raw, principal(), asked_at)
    assert keys.recall(raw) is None
    # The key of a tenant that is enabled again is confirmed by a later check.
    clock.now += 1
    keys.remember(raw, principal(), keys.now())
    assert keys.recall(raw) is not None


def test_what_this_process_has_changed_is_forgotten(keys: RememberedKeys, clock: Clock) -> None:
    one, other = mint_key().raw, mint_key().raw
    asked_at = keys.now()
    keys.remember(one, principal(), asked_at)
    keys.remember(other, principal("key_2", tenant="other"), asked_at)
    clock.now += 1
    keys.forget(lambda known: known.tenant == "acme")
    assert keys.recall(one) is None
    assert keys.recall(other) is not None
    keys.remember(one, principal(), asked_at)
    assert keys.recall(one) is None


def test_a_later_check_of_all_keys_removes_and_changes_keys_without_renewing_them(
    keys: RememberedKeys, clock: Clock
) -> None:
    raws = [mint_key().raw for _ in range(3)]
    for number, raw in enumerate(raws):
        keys.remember(raw, principal(f"key_{number}"), keys.now())
    clock.now = 105.0
    reader = principal("key_1", permissions=frozenset({Permission.MEMORY_READ}))
    asked_at = keys.now()
    clock.now = 106.0
    keys.remember(raws[2], principal("key_2"), keys.now())
    keys.update({"key_0", "key_1", "key_2"}, {"key_1": reader}, asked_at)
    assert keys.recall(raws[0]) is None
    assert keys.recall(raws[1]) == reader
    # This key was checked after the others were read, and the next one was not read with them.
    assert keys.recall(raws[2]) is not None
    unread = mint_key().raw
    keys.remember(unread, principal("key_3"), keys.now())
    keys.update({"key_1"}, {"key_1": reader}, keys.now() + 1)
    assert keys.recall(unread) is not None
    clock.now = 110.0
    assert keys.recall(raws[1]) is None
    assert keys.recall(raws[2]) is not None


def test_keys_are_remembered_by_their_hashes_and_within_bounds(keys: RememberedKeys) -> None:
    minted = [mint_key() for _ in range(MOST_REMEMBERED + 1)]
    for key in minted:
        keys.remember(key.raw, principal(key.raw[-8:]), keys.now())
    assert keys.recall(minted[0].raw) is None
    assert keys.recall(minted[-1].raw) is not None
    assert len(keys.key_ids()) == MOST_REMEMBERED
    assert list(keys._confirmed) == [key.hash for key in minted[1:]]
    for key in minted:
        keys.reject(key.raw)
    assert len(keys._rejected_at) == MOST_REMEMBERED
    off = RememberedKeys()
    off.remember(minted[0].raw, principal(), off.now())
    assert off.recall(minted[0].raw) is None
    assert off.key_ids() == set()


def test_an_outage_lasts_until_an_answer_or_a_time_without_lookups() -> None:
    clock = Clock()
    outage = LookupOutage(clock)
    assert not outage.is_on
    with pytest.raises(Unavailable), outage.observed():
        raise Unavailable("away")
    assert outage.is_on
    clock.now += 60
    assert not outage.is_on
    with outage.observed():
        # While a lookup waits, its outcome is not known.
        assert outage.is_on
    assert not outage.is_on
    outage.failed()
    with pytest.raises(ValueError, match="not an outage"), outage.observed():
        raise ValueError("not an outage")
    assert outage.is_on
    assert (outage.answers, outage.lookups) == (1, 0)


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({}, 300.0),
        ({"memory_outage_seconds": 20}, 20.0),
        ({"memory_outage_seconds": 4000}, 300.0),
        ({"memory_outage_seconds": 0}, 0.0),
        ({"memory_mode": "direct"}, 0.0),
    ],
)
def test_a_key_is_accepted_for_no_longer_than_changes_are(fields: dict[str, object], seconds: float) -> None:
    settings = load_settings(database_url="postgresql://h/d", memory_path="memory.db", **fields)
    assert settings.memory_outage_in_force == seconds
    assert load_settings(database_url="sqlite:///runs.db", memory_path="memory.db").memory_outage_in_force == 0
