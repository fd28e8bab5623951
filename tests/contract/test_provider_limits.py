"""Rate limits of model providers: the same promises over every database."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from runlane.domain.rate_limit import CredentialInUse, LimitChange
from runlane.rate_limits import slots
from runlane.rate_limits.limiter import ClusterLimiter
from runlane.rate_limits.queue import LimitTimeout
from runlane.settings import Settings
from runlane.store.rate_limits.limits import list_limits, reset_limits, set_limits
from runlane.store.rate_limits.usage import read_busy
from runlane.store.sql.database import Database, open_database
from tests.harness import Store, eventually

PATIENCE = 30.0


async def ignore(reason: str) -> None:
    """Waiting without a word."""


Make = Callable[[], Awaitable[ClusterLimiter]]


@pytest.fixture
async def make(settings: Settings) -> AsyncGenerator[Make]:
    """Limiters as different processes have them: each with its own connections."""
    made: list[tuple[ClusterLimiter, Any]] = []

    async def one() -> ClusterLimiter:
        database = await open_database(settings)
        made.append((ClusterLimiter(database), database))
        return made[-1][0]

    yield one
    for limiter, database in made:
        await limiter.close()
        await database.close()


async def limit(store: Store, credential: str, **fields: Any) -> None:
    await set_limits(store.database, credential, LimitChange(**fields), actor="test")


async def in_use(store: Store, credential: str) -> CredentialInUse:
    return (await read_busy(store.database, slots.STALE_SECONDS))[credential]


class Meter:
    """How many calls are in flight, counted where they are made."""

    def __init__(self) -> None:
        self.now = self.most = self.calls = 0
        self.by: Counter[str] = Counter()

    async def call(
        self, limiter: ClusterLimiter, who: str = "", credential: str = "acme", seconds: float = 0.0
    ) -> None:
        async with await limiter.acquire(credential, tokens=10, timeout_seconds=PATIENCE, on_wait=ignore):
            self.now += 1
            self.most = max(self.most, self.now)
            self.calls += 1
            self.by[who] += 1
            await asyncio.sleep(seconds)
            self.now -= 1


async def test_a_limit_is_never_exceeded_and_every_call_gets_through(store: Store, make: Make) -> None:
    await limit(store, "acme", in_flight=2)
    limiters = [await make() for _ in range(3)]
    meter = Meter()
    async with asyncio.timeout(60):
        await asyncio.gather(
            *(
                meter.call(limiter, str(number), seconds=0.01)
                for number, limiter in enumerate(limiters)
                for _ in range(10)
            )
        )
    assert (meter.calls, meter.most, meter.now) == (30, 2, 0)


async def test_calls_without_a_limit_take_no_slots(store: Store, make: Make) -> None:
    limiter = await make()
    async with await limiter.acquire("elsewhere", tokens=5, timeout_seconds=0, on_wait=ignore):
        pass
    asked: list[str] = []
    for name in ("take", "release", "renew"):
        setattr(limiter.slots, name, lambda *args, name=name: asked.append(name))  # pyright: ignore[reportUnknownLambdaType]
    read: list[float] = []
    real = limiter.state.refresh

    async def refresh() -> None:
        read.append(time.monotonic())
        await real()

    limiter.state.refresh = refresh
    meter = Meter()
    await asyncio.gather(*(meter.call(limiter, credential="elsewhere") for _ in range(200)))
    assert (meter.most > 2, meter.calls, asked) == (True, 200, [])
    assert len(read) <= 2


async def test_defaults_are_by_provider_and_a_reset_brings_them_back(store: Store, make: Make) -> None:
    known = {item.credential: item.limits for item, _, _ in await list_limits(store.database)}
    assert {name: limits.in_flight for name, limits in known.items()} == {"anthropic": 4, "ollama": 1, "openai": 8}
    limiter = await make()
    slot = await limiter.acquire("ollama:gpu.local:11434", tokens=1, timeout_seconds=5, on_wait=ignore)
    with pytest.raises(LimitTimeout, match=r"^ollama:gpu.local:11434: 1 of 1 calls are in flight$"):
        await limiter.acquire("ollama:gpu.local:11434", tokens=1, timeout_seconds=0.05, on_wait=ignore)
    await slot.release(1)
    await limit(store, "ollama", in_flight=3, requests_per_minute=7)
    assert (await reset_limits(store.database, "ollama", actor="test"))[1].limits.in_flight == 1
    (entry,) = await store.sql("select * from audit where action = 'limits.reset'")
    assert entry["subject"] == "ollama"


async def test_a_wait_is_reported_once_with_its_reason_and_ends_with_its_timeout(store: Store, make: Make) -> None:
    await limit(store, "acme", in_flight=1)
    limiter = await make()
    reasons: list[str] = []

    async def waiting(reason: str) -> None:
        reasons.append(reason)

    slot = await limiter.acquire("acme", tokens=1, timeout_seconds=PATIENCE, on_wait=waiting)
    assert reasons == []
    with pytest.raises(LimitTimeout) as caught:
        await limiter.acquire("acme", tokens=1, timeout_seconds=0.3, on_wait=waiting)
    assert reasons == ["acme: 1 of 1 calls are in flight"] == [caught.value.reason]
    assert 1 <= caught.value.retry_in_seconds <= 3
    second = asyncio.create_task(limiter.acquire("acme", tokens=1, timeout_seconds=PATIENCE, on_wait=waiting))
    await eventually(lambda: len(reasons) == 2)
    await slot.release(1)
    await (await second).release(1)
    assert len(reasons) == 2


async def test_the_longest_waiting_call_comes_first_within_and_between_processes(store: Store, make: Make) -> None:
    await limit(store, "acme", in_flight=1)
    first, second = await make(), await make()
    order: list[str] = []
    slot = await first.acquire("acme", tokens=1, timeout_seconds=PATIENCE, on_wait=ignore)

    async def stand(limiter: ClusterLimiter, name: str, begun: asyncio.Event) -> None:
        async def waiting(reason: str) -> None:
            begun.set()

        async with await limiter.acquire("acme", tokens=1, timeout_seconds=PATIENCE, on_wait=waiting):
            order.append(name)

    tasks: list[asyncio.Task[None]] = []
    for limiter, name in ((first, "a1"), (second, "b1"), (first, "a2"), (second, "b2")):
        begun = asyncio.Event()
        tasks.append(asyncio.create_task(stand(limiter, name, begun)))
        await begun.wait()
    await slot.release(1)
    await asyncio.gather(*tasks)
    # The last two have come within the same millisecond, and only the first of a process is known to the others.
    assert (order[:2], set(order[2:])) == (["a1", "b1"], {"a2", "b2"})


async def test_no_process_starves_beside_one_that_always_has_more_to_do(store: Store, make: Make) -> None:
    await limit(store, "acme", in_flight=1)
    busy, other = await make(), await make()
    meter = Meter()
    stop = asyncio.Event()

    async def keep_going() -> None:
        while not stop.is_set():
            await meter.call(busy, "busy", seconds=0.005)

    tasks = [asyncio.create_task(keep_going()) for _ in range(5)]
    await eventually(lambda: meter.by["busy"] > 5)
    async with asyncio.timeout(30):
        for _ in range(3):
            await meter.call(other, "other")
    stop.set()
    await asyncio.gather(*tasks)
    assert meter.most == 1


async def test_a_limit_changes_while_calls_wait_for_it(store: Store, make: Make) -> None:
    await limit(store, "acme", in_flight=1)
    limiters = [await make(), await make()]
    meter = Meter()
    gate = asyncio.Event()

    async def call(limiter: ClusterLimiter) -> None:
        async with await limiter.acquire("acme", tokens=1, timeout_seconds=PATIENCE, on_wait=ignore):
            meter.now += 1
            meter.most = max(meter.most, meter.now)
            await gate.wait()
            meter.now -= 1

    tasks = [asyncio.create_task(call(limiters[number % 2])) for number in range(6)]
    await eventually(lambda: meter.now == 1)
    await limit(store, "acme", in_flight=4)
    await eventually(lambda: meter.now == 4)
    await limit(store, "acme", unlimited=frozenset({"in_flight"}))
    await eventually(lambda: meter.now == 6)
    gate.set()
    await asyncio.gather(*tasks)


async def test_nothing_begins_while_the_limit_is_0(store: Store, make: Make) -> None:
    await limit(store, "acme", in_flight=0)
    limiter = await make()
    with pytest.raises(LimitTimeout, match="acme: paused, its limit is 0 calls in flight"):
        await limiter.acquire("acme", tokens=1, timeout_seconds=0.2, on_wait=ignore)


async def test_requests_per_minute_are_counted_in_the_whole_cluster(store: Store, make: Make) -> None:
    await limit(store, "acme", requests_per_minute=3)
    limiters = [await make(), await make()]
    meter = Meter()
    for number in range(3):
        await meter.call(limiters[number % 2])
    with pytest.raises(LimitTimeout, match=r"^acme: 3 of 3 requests of this minute are used$") as caught:
        await limiters[1].acquire("acme", tokens=1, timeout_seconds=5, on_wait=ignore)
    assert 50 < caught.value.retry_in_seconds <= 61


async def test_tokens_are_reserved_before_and_corrected_after(store: Store, make: Make) -> None:
    await limit(store, "acme", tokens_per_minute=100)
    one, other = await make(), await make()
    slot = await one.acquire("acme", tokens=80, timeout_seconds=5, on_wait=ignore)
    with pytest.raises(LimitTimeout, match="80 of 100 tokens of this minute are used, and this call needs about 30"):
        await other.acquire("acme", tokens=30, timeout_seconds=0.2, on_wait=ignore)
    await slot.release(20)
    await (await other.acquire("acme", tokens=30, timeout_seconds=5, on_wait=ignore)).release(75)
    with pytest.raises(LimitTimeout, match="95 of 100 tokens"):
        await one.acquire("acme", tokens=30, timeout_seconds=0.2, on_wait=ignore)


async def test_a_call_that_is_larger_than_the_limit_goes_when_nothing_else_does(store: Store, make: Make) -> None:
    await limit(store, "acme", tokens_per_minute=100)
    limiter = await make()
    await (await limiter.acquire("acme", tokens=5000, timeout_seconds=5, on_wait=ignore)).release(0)
    await (await limiter.acquire("acme", tokens=5000, timeout_seconds=5, on_wait=ignore)).release(5000)
    with pytest.raises(LimitTimeout, match=r"needs about 1$"):
        await limiter.acquire("acme", tokens=1, timeout_seconds=0.2, on_wait=ignore)


async def test_one_slow_down_holds_for_every_process_even_where_nothing_is_limited(store: Store, make: Make) -> None:
    await limit(store, "acme", in_flight=4)
    one, other = await make(), await make()
    for credential in ("acme", "elsewhere"):
        slot = await one.acquire(credential, tokens=1, timeout_seconds=5, on_wait=ignore)
        await (await other.acquire(credential, tokens=1, timeout_seconds=5, on_wait=ignore)).release(1)
        await one.slow_down(credential, 40, "429 Too Many Requests")
        await slot.release(0, succeeded=False)

        async def refused(credential: str = credential) -> bool:
            try:
                await (await other.acquire(credential, tokens=1, timeout_seconds=0.01, on_wait=ignore)).release(1)
            except LimitTimeout as wait:
                backs_off = "backing off" in wait.reason and "429 Too Many Requests" in wait.reason
                return backs_off and 30 < wait.retry_in_seconds <= 40
            return False

        await eventually(refused)
        with pytest.raises(LimitTimeout):
            await one.acquire(credential, tokens=1, timeout_seconds=5, on_wait=ignore)


async def test_a_back_off_grows_with_repeats_and_is_small_again_after_a_success(
    store: Store, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The longest back-off that chance can choose, so that most of it is left when it is looked at.
    monkeypatch.setattr("runlane.rate_limits.limiter.random.random", lambda: 0.999)
    await limit(store, "acme", in_flight=4)
    limiter = await make()

    async def streak() -> int:
        return (await store.sql("select streak from provider_states where credential = 'acme'"))[0]["streak"]

    async def end_back_off() -> None:
        await store.sql("update provider_states set slow_until = 0, slowed_at = slowed_at - 1000000")
        await eventually(limiter_is_free)

    async def limiter_is_free() -> bool:
        limiter.state._own_slow.clear()
        await limiter.state.refresh()
        return limiter.state.slow("acme")[0] <= 0

    waits: list[float] = []
    for _ in range(4):
        # Several calls get it at once, which counts as one repeat.
        await asyncio.gather(*(limiter.slow_down("acme", None, "429") for _ in range(5)))
        waits.append(limiter.state.slow("acme")[0])
        await end_back_off()
    assert await streak() == 4
    assert 0.4 < waits[0] <= 1
    assert 3.9 < waits[3] <= 8
    slot = await limiter.acquire("acme", tokens=1, timeout_seconds=5, on_wait=ignore)
    await slot.release(1)
    assert await streak() == 0


async def test_slots_of_the_dead_come_back_and_those_of_the_living_are_renewed(
    store: Store, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "RENEW_SECONDS", 0.2)
    monkeypatch.setattr(slots, "LEASE_SECONDS", 2.0)
    await limit(store, "acme", in_flight=2)
    dead, living, other = await make(), await make(), await make()
    await dead.acquire("acme", tokens=1, timeout_seconds=5, on_wait=ignore)
    kept = await living.acquire("acme", tokens=1, timeout_seconds=5, on_wait=ignore)
    # Slots are neither renewed nor released, as if their process were gone.
    await dead.slots.stop_renewing()
    dead.slots.held.clear()
    slot = await other.acquire("acme", tokens=1, timeout_seconds=PATIENCE, on_wait=ignore)
    with pytest.raises(LimitTimeout, match="2 of 2"):
        await other.acquire("acme", tokens=1, timeout_seconds=3, on_wait=ignore)
    await kept.release(1)
    await slot.release(1)


async def test_a_caller_that_is_cancelled_leaves_nothing_behind(store: Store, make: Make) -> None:
    await limit(store, "acme", in_flight=1)
    limiter, other = await make(), await make()
    slot = await limiter.acquire("acme", tokens=1, timeout_seconds=5, on_wait=ignore)
    waiting = [
        asyncio.create_task(limiter.acquire("acme", tokens=1, timeout_seconds=PATIENCE, on_wait=ignore))
        for _ in range(3)
    ]
    await asyncio.sleep(0)
    await eventually(lambda: len(limiter.queues["acme"].calls) == 3)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await slot.release(1)
    for _ in range(20):
        task = asyncio.create_task(limiter.acquire("acme", tokens=1, timeout_seconds=5, on_wait=ignore))
        await asyncio.sleep(0.001)
        task.cancel()
        done = (await asyncio.gather(task, return_exceptions=True))[0]
        if not isinstance(done, BaseException):
            await done.release(1)
    async with asyncio.timeout(10):
        await (await other.acquire("acme", tokens=1, timeout_seconds=10, on_wait=ignore)).release(1)
    assert limiter.slots.held == {}


async def test_the_present_use_of_a_limit_is_reported(store: Store, make: Make) -> None:
    await limit(store, "acme", in_flight=1, requests_per_minute=10)
    limiter = await make()
    slot = await limiter.acquire("acme", tokens=70, timeout_seconds=5, on_wait=ignore)
    task = asyncio.create_task(limiter.acquire("acme", tokens=5, timeout_seconds=PATIENCE, on_wait=ignore))

    async def seen() -> bool:
        busy = await in_use(store, "acme")
        return (busy.in_flight, busy.requests, busy.tokens, busy.waiting) == (1, 1, 70, 1)

    await eventually(seen)
    await slot.release(30)
    await (await task).release(5)
    busy = await in_use(store, "acme")
    assert (busy.in_flight, busy.requests, busy.tokens, busy.waiting) == (0, 2, 35, 0)


async def test_a_zero_timeout_still_takes_a_free_slot(store: Store, make: Make) -> None:
    await limit(store, "acme", in_flight=1)
    limiter = await make()
    slot = await limiter.acquire("acme", tokens=1, timeout_seconds=0, on_wait=ignore)
    for _ in range(2):
        with pytest.raises(LimitTimeout, match="1 of 1"):
            await limiter.acquire("acme", tokens=1, timeout_seconds=0, on_wait=ignore)
    await slot.release(1)
    await (await limiter.acquire("acme", tokens=1, timeout_seconds=0, on_wait=ignore)).release(1)


async def test_a_slot_that_is_released_while_slots_are_renewed_stays_released(
    store: Store, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    await limit(store, "acme", in_flight=1)
    limiter = await make()
    slot = await limiter.acquire("acme", tokens=1, timeout_seconds=5, on_wait=ignore)
    renew, gate = slots.renew_slots, asyncio.Event()

    async def late(database: Database, leases: Sequence[tuple[str, str]], lease_seconds: float) -> None:
        await gate.wait()
        await renew(database, leases, lease_seconds)

    monkeypatch.setattr(slots, "renew_slots", late)
    renewing = asyncio.create_task(limiter.slots.renew())
    await asyncio.sleep(0)
    leaving = asyncio.create_task(slot.release(1))
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(renewing, leaving)
    assert (await in_use(store, "acme")).in_flight == 0


async def test_a_limiter_that_closes_releases_everything_and_lets_no_call_wait(store: Store, make: Make) -> None:
    await limit(store, "acme", in_flight=1)
    limiter, other = await make(), await make()
    await limiter.acquire("acme", tokens=1, timeout_seconds=5, on_wait=ignore)
    waiting = asyncio.create_task(limiter.acquire("acme", tokens=1, timeout_seconds=PATIENCE, on_wait=ignore))
    await eventually(lambda: limiter.queues["acme"].reason is not None)
    await limiter.close()
    with pytest.raises(LimitTimeout, match="this process stops"):
        await waiting
    async with asyncio.timeout(10):
        await (await other.acquire("acme", tokens=1, timeout_seconds=10, on_wait=ignore)).release(1)


async def test_seconds_that_count_no_longer_are_swept(store: Store, make: Make) -> None:
    await limit(store, "acme", in_flight=1)
    await store.sql(
        "insert into provider_seconds (credential, second, requests, tokens) "
        "values ('acme', 5, 1, 1), ('other', 5, 1, 1)"
    )
    limiter = await make()
    await (await limiter.acquire("acme", tokens=1, timeout_seconds=5, on_wait=ignore)).release(1)
    rows = await store.sql("select credential, second from provider_seconds where second < 100")
    assert [row["credential"] for row in rows] == ["other"]


async def test_a_reading_that_is_under_way_ends_with_the_limiter(make: Make) -> None:
    """It would use the database after it is closed."""
    limiter = await make()
    await (await limiter.acquire("acme", tokens=1, timeout_seconds=5, on_wait=ignore)).release(1)
    asking = asyncio.ensure_future(limiter.state.refresh())
    await asyncio.sleep(0)  # a turn of the loop, in which it begins
    reading = limiter.state._reading
    assert reading is not None
    assert not reading.done()
    await limiter.close()
    assert reading.done()
    await asyncio.wait([asking])
