"""Limits of model providers: the same promises with Redis and without, over every database."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from itertools import count
from typing import Any

import pytest

from runlane.domain.rate_limit import LimitChange
from runlane.rate_limits import backend
from runlane.rate_limits import coordinator as boards
from runlane.rate_limits.limiter import ClusterLimiter, LimitTimeout, make_limiter
from runlane.settings import Settings
from runlane.store.rate_limits.limits import list_limits, reset_limits, set_limits
from runlane.store.sql.database import open_database
from runlane.testing import ExternalRedis, RedisServer, redis_for_tests
from tests.harness import Store, eventually, settings_for

_numbers = count(1)
PATIENCE = 30.0


async def nobody(reason: str) -> None:
    """Waiting without a word."""


@pytest.fixture(scope="session")
def redis_server() -> Generator[RedisServer | ExternalRedis]:
    with redis_for_tests() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres", "postgres-pgbouncer", "sqlite-redis", "postgres-redis"])
def settings(request: pytest.FixtureRequest) -> Settings:
    database, _, other = request.param.partition("-")
    url: str = request.getfixturevalue(f"{database}_url")
    if other != "redis":
        return settings_for(url, pgbouncer=other == "pgbouncer")
    server: RedisServer | ExternalRedis = request.getfixturevalue("redis_server")
    return settings_for(url, redis_url=server.url, redis_prefix=f"limits{next(_numbers)}")


Make = Callable[[], Awaitable[ClusterLimiter]]


@pytest.fixture
async def make(settings: Settings) -> AsyncGenerator[Make]:
    """Limiters as different processes have them: each with its own connections."""
    made: list[tuple[ClusterLimiter, Any]] = []

    async def one() -> ClusterLimiter:
        database = await open_database(settings)
        made.append((make_limiter(settings, database), database))
        return made[-1][0]

    yield one
    for limiter, database in made:
        await limiter.close()
        await database.close()


async def limit(store: Store, credential: str, **fields: Any) -> None:
    await set_limits(store.database, credential, LimitChange(**fields), actor="test")


class Meter:
    """How many calls are in flight, counted where they are made."""

    def __init__(self) -> None:
        self.now = self.most = self.calls = 0
        self.by: Counter[str] = Counter()

    async def call(
        self, limiter: ClusterLimiter, who: str = "", credential: str = "acme", seconds: float = 0.0
    ) -> None:
        async with await limiter.enter(credential, tokens=10, patience_seconds=PATIENCE, waiting=nobody):
            self.now += 1
            self.most = max(self.most, self.now)
            self.calls += 1
            self.by[who] += 1
            await asyncio.sleep(seconds)
            self.now -= 1


async def test_a_limit_is_never_passed_and_everybody_gets_through(store: Store, make: Make) -> None:
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


async def test_what_has_no_limit_asks_nobody(store: Store, make: Make) -> None:
    limiter = await make()
    async with await limiter.enter("elsewhere", tokens=5, patience_seconds=0, waiting=nobody):
        pass
    desk = limiter.board.desk
    asked: list[str] = []
    for name in ("take", "leave", "hold"):
        setattr(desk, name, lambda *args, name=name: asked.append(name))  # pyright: ignore[reportUnknownLambdaType]
    read: list[float] = []
    real = limiter.board.refresh

    async def refresh() -> None:
        read.append(time.monotonic())
        await real()

    limiter.board.refresh = refresh
    meter = Meter()
    await asyncio.gather(*(meter.call(limiter, credential="elsewhere") for _ in range(200)))
    assert (meter.most > 2, meter.calls, asked) == (True, 200, [])
    assert len(read) <= 2


async def test_defaults_are_by_provider_and_a_reset_brings_them_back(store: Store, make: Make) -> None:
    known = {item.credential: item.limits for item, _, _ in await list_limits(store.database)}
    assert {name: limits.in_flight for name, limits in known.items()} == {"anthropic": 4, "ollama": 1, "openai": 8}
    limiter = await make()
    slot = await limiter.enter("ollama:gpu.local:11434", tokens=1, patience_seconds=5, waiting=nobody)
    with pytest.raises(LimitTimeout, match=r"^ollama:gpu.local:11434: 1 of 1 calls are in flight$"):
        await limiter.enter("ollama:gpu.local:11434", tokens=1, patience_seconds=0.05, waiting=nobody)
    await slot.leave(1)
    await limit(store, "ollama", in_flight=3, requests_per_minute=7)
    assert (await reset_limits(store.database, "ollama", actor="test"))[1].limits.in_flight == 1
    (entry,) = await store.sql("select * from audit where action = 'limits.reset'")
    assert entry["subject"] == "ollama"


async def test_a_wait_is_told_once_with_its_reason_and_ends_when_patience_does(store: Store, make: Make) -> None:
    await limit(store, "acme", in_flight=1)
    limiter = await make()
    reasons: list[str] = []

    async def waiting(reason: str) -> None:
        reasons.append(reason)

    slot = await limiter.enter("acme", tokens=1, patience_seconds=PATIENCE, waiting=waiting)
    assert reasons == []
    with pytest.raises(LimitTimeout) as caught:
        await limiter.enter("acme", tokens=1, patience_seconds=0.3, waiting=waiting)
    assert reasons == ["acme: 1 of 1 calls are in flight"] == [caught.value.reason]
    assert 1 <= caught.value.retry_in_seconds <= 3
    second = asyncio.create_task(limiter.enter("acme", tokens=1, patience_seconds=PATIENCE, waiting=waiting))
    await eventually(lambda: len(reasons) == 2)
    await slot.leave(1)
    await (await second).leave(1)
    assert len(reasons) == 2


async def test_those_who_wait_longest_come_first_in_one_process_and_between_them(store: Store, make: Make) -> None:
    await limit(store, "acme", in_flight=1)
    first, second = await make(), await make()
    order: list[str] = []
    slot = await first.enter("acme", tokens=1, patience_seconds=PATIENCE, waiting=nobody)

    async def stand(limiter: ClusterLimiter, name: str, begun: asyncio.Event) -> None:
        async def waiting(reason: str) -> None:
            begun.set()

        async with await limiter.enter("acme", tokens=1, patience_seconds=PATIENCE, waiting=waiting):
            order.append(name)

    tasks: list[asyncio.Task[None]] = []
    for limiter, name in ((first, "a1"), (second, "b1"), (first, "a2"), (second, "b2")):
        begun = asyncio.Event()
        tasks.append(asyncio.create_task(stand(limiter, name, begun)))
        await begun.wait()
    await slot.leave(1)
    await asyncio.gather(*tasks)
    # The last two have come within the same millisecond, and only the first of a process is known to the others.
    assert (order[:2], set(order[2:])) == (["a1", "b1"], {"a2", "b2"})


async def test_nobody_starves_beside_a_process_that_always_has_more_to_do(store: Store, make: Make) -> None:
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
        async with await limiter.enter("acme", tokens=1, patience_seconds=PATIENCE, waiting=nobody):
            meter.now += 1
            meter.most = max(meter.most, meter.now)
            await gate.wait()
            meter.now -= 1

    tasks = [asyncio.create_task(call(limiters[number % 2])) for number in range(6)]
    await eventually(lambda: meter.now == 1)
    began = time.monotonic()
    await limit(store, "acme", in_flight=4)
    await eventually(lambda: meter.now == 4)
    assert time.monotonic() - began < 5
    await limit(store, "acme", unlimited=frozenset({"in_flight"}))
    await eventually(lambda: meter.now == 6)
    gate.set()
    await asyncio.gather(*tasks)


async def test_nothing_begins_while_the_limit_is_0(store: Store, make: Make) -> None:
    await limit(store, "acme", in_flight=0)
    limiter = await make()
    with pytest.raises(LimitTimeout, match="acme: paused, its limit is 0 calls in flight"):
        await limiter.enter("acme", tokens=1, patience_seconds=0.2, waiting=nobody)


async def test_requests_per_minute_are_counted_in_the_whole_cluster(store: Store, make: Make) -> None:
    await limit(store, "acme", requests_per_minute=3)
    limiters = [await make(), await make()]
    meter = Meter()
    for number in range(3):
        await meter.call(limiters[number % 2])
    with pytest.raises(LimitTimeout, match=r"^acme: 3 of 3 requests of this minute are used$") as caught:
        await limiters[1].enter("acme", tokens=1, patience_seconds=5, waiting=nobody)
    assert 50 < caught.value.retry_in_seconds <= 61


async def test_tokens_are_reserved_before_and_corrected_after(store: Store, make: Make) -> None:
    await limit(store, "acme", tokens_per_minute=100)
    one, other = await make(), await make()
    slot = await one.enter("acme", tokens=80, patience_seconds=5, waiting=nobody)
    with pytest.raises(LimitTimeout, match="80 of 100 tokens of this minute are used, and this call needs about 30"):
        await other.enter("acme", tokens=30, patience_seconds=0.2, waiting=nobody)
    await slot.leave(20)
    await (await other.enter("acme", tokens=30, patience_seconds=5, waiting=nobody)).leave(75)
    with pytest.raises(LimitTimeout, match="95 of 100 tokens"):
        await one.enter("acme", tokens=30, patience_seconds=0.2, waiting=nobody)


async def test_a_call_that_is_larger_than_the_limit_goes_when_nothing_else_does(store: Store, make: Make) -> None:
    await limit(store, "acme", tokens_per_minute=100)
    limiter = await make()
    await (await limiter.enter("acme", tokens=5000, patience_seconds=5, waiting=nobody)).leave(0)
    await (await limiter.enter("acme", tokens=5000, patience_seconds=5, waiting=nobody)).leave(5000)
    with pytest.raises(LimitTimeout, match=r"needs about 1$"):
        await limiter.enter("acme", tokens=1, patience_seconds=0.2, waiting=nobody)


async def test_one_slow_down_holds_for_everybody_also_where_nothing_is_limited(store: Store, make: Make) -> None:
    await limit(store, "acme", in_flight=4)
    one, other = await make(), await make()
    for credential in ("acme", "elsewhere"):
        slot = await one.enter(credential, tokens=1, patience_seconds=5, waiting=nobody)
        await (await other.enter(credential, tokens=1, patience_seconds=5, waiting=nobody)).leave(1)
        await one.slow_down(credential, 40, "429 Too Many Requests")
        await slot.leave(0, succeeded=False)

        async def refused(credential: str = credential) -> bool:
            try:
                await (await other.enter(credential, tokens=1, patience_seconds=0.01, waiting=nobody)).leave(1)
            except LimitTimeout as wait:
                said = "everybody slows down" in wait.reason and "429 Too Many Requests" in wait.reason
                return said and 30 < wait.retry_in_seconds <= 40
            return False

        await eventually(refused)
        with pytest.raises(LimitTimeout):
            await one.enter(credential, tokens=1, patience_seconds=5, waiting=nobody)


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
        limiter.board._own_slow.clear()
        await limiter.board.refresh()
        return limiter.board.slow("acme")[0] <= 0

    waits: list[float] = []
    for _ in range(4):
        # Several calls hear it at once: that is one repeat.
        await asyncio.gather(*(limiter.slow_down("acme", None, "429") for _ in range(5)))
        waits.append(limiter.board.slow("acme")[0])
        await end_back_off()
        if limiter.board.epoch:
            await _forget_slow(limiter)
    assert await streak() == 4
    assert 0.4 < waits[0] <= 1
    assert 3.9 < waits[3] <= 8
    slot = await limiter.enter("acme", tokens=1, patience_seconds=5, waiting=nobody)
    await slot.leave(1)
    assert await streak() == 0


async def _forget_slow(limiter: ClusterLimiter) -> None:
    """The server's copy of a back-off that the test has ended."""
    desk: Any = limiter.board.desk
    await desk._client.script("return redis.call('hdel', KEYS[1], 'slow_until')", [desk._key("acme", "state")], [])


async def test_slots_of_the_dead_come_back_and_those_of_the_living_are_renewed(
    store: Store, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (backend, boards):
        monkeypatch.setattr(module, "RENEW_SECONDS", 0.2)
    for name in ("database", "redis"):
        monkeypatch.setattr(f"runlane.rate_limits.{name}.LEASE_SECONDS", 2.0)
    await limit(store, "acme", in_flight=2)
    dead, living, other = await make(), await make(), await make()
    await dead.enter("acme", tokens=1, patience_seconds=5, waiting=nobody)
    kept = await living.enter("acme", tokens=1, patience_seconds=5, waiting=nobody)
    # Nobody renews, nobody gives back: as if its process were gone.
    await dead.board.close()
    dead.board.held.clear()
    slot = await other.enter("acme", tokens=1, patience_seconds=PATIENCE, waiting=nobody)
    with pytest.raises(LimitTimeout, match="2 of 2"):
        await other.enter("acme", tokens=1, patience_seconds=3, waiting=nobody)
    await kept.leave(1)
    await slot.leave(1)


async def test_a_caller_that_is_cancelled_leaves_nothing_behind(store: Store, make: Make) -> None:
    await limit(store, "acme", in_flight=1)
    limiter, other = await make(), await make()
    slot = await limiter.enter("acme", tokens=1, patience_seconds=5, waiting=nobody)
    waiting = [
        asyncio.create_task(limiter.enter("acme", tokens=1, patience_seconds=PATIENCE, waiting=nobody))
        for _ in range(3)
    ]
    await asyncio.sleep(0)
    await eventually(lambda: len(limiter._lines["acme"]) == 3)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await slot.leave(1)
    for _ in range(20):
        task = asyncio.create_task(limiter.enter("acme", tokens=1, patience_seconds=5, waiting=nobody))
        await asyncio.sleep(0.001)
        task.cancel()
        done = (await asyncio.gather(task, return_exceptions=True))[0]
        if not isinstance(done, BaseException):
            await done.leave(1)
    async with asyncio.timeout(10):
        await (await other.enter("acme", tokens=1, patience_seconds=10, waiting=nobody)).leave(1)
    assert limiter.board.held == {}


async def test_what_is_used_now_can_be_seen(store: Store, make: Make) -> None:
    await limit(store, "acme", in_flight=1, requests_per_minute=10)
    limiter = await make()
    slot = await limiter.enter("acme", tokens=70, patience_seconds=5, waiting=nobody)
    task = asyncio.create_task(limiter.enter("acme", tokens=5, patience_seconds=PATIENCE, waiting=nobody))

    async def seen() -> bool:
        busy = (await limiter.board.desk.busy(["acme"]))["acme"]
        return (busy.in_flight, busy.requests, busy.tokens, busy.waiting) == (1, 1, 70, 1)

    await eventually(seen)
    await slot.leave(30)
    await (await task).leave(5)
    busy = (await limiter.board.desk.busy(["acme", "never"]))["acme"]
    assert (busy.in_flight, busy.requests, busy.tokens, busy.waiting) == (0, 2, 35, 0)


async def test_without_patience_there_is_still_an_answer(store: Store, make: Make) -> None:
    await limit(store, "acme", in_flight=1)
    limiter = await make()
    slot = await limiter.enter("acme", tokens=1, patience_seconds=0, waiting=nobody)
    for _ in range(2):
        with pytest.raises(LimitTimeout, match="1 of 1"):
            await limiter.enter("acme", tokens=1, patience_seconds=0, waiting=nobody)
    await slot.leave(1)
    await (await limiter.enter("acme", tokens=1, patience_seconds=0, waiting=nobody)).leave(1)


async def test_a_slot_that_is_given_back_while_slots_are_renewed_stays_given_back(store: Store, make: Make) -> None:
    await limit(store, "acme", in_flight=1)
    limiter = await make()
    slot = await limiter.enter("acme", tokens=1, patience_seconds=5, waiting=nobody)
    desk: Any = limiter.board.desk
    hold, gate = desk.hold, asyncio.Event()

    async def late(*told: Any) -> None:
        await gate.wait()
        await hold(*told)

    desk.hold = late
    renewing = asyncio.create_task(limiter.board._hold())
    await asyncio.sleep(0)
    leaving = asyncio.create_task(slot.leave(1))
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(renewing, leaving)
    assert (await desk.busy(["acme"]))["acme"].in_flight == 0


async def test_a_limiter_that_closes_gives_everything_back_and_lets_nobody_wait(store: Store, make: Make) -> None:
    await limit(store, "acme", in_flight=1)
    limiter, other = await make(), await make()
    await limiter.enter("acme", tokens=1, patience_seconds=5, waiting=nobody)
    waiting = asyncio.create_task(limiter.enter("acme", tokens=1, patience_seconds=PATIENCE, waiting=nobody))
    await eventually(lambda: "acme" in limiter._reasons)
    await limiter.close()
    with pytest.raises(LimitTimeout, match="this process stops"):
        await waiting
    async with asyncio.timeout(10):
        await (await other.enter("acme", tokens=1, patience_seconds=10, waiting=nobody)).leave(1)


async def test_seconds_that_count_no_longer_are_swept(store: Store, make: Make) -> None:
    await limit(store, "acme", in_flight=1)
    await store.sql(
        "insert into provider_seconds (credential, second, requests, tokens) "
        "values ('acme', 5, 1, 1), ('other', 5, 1, 1)"
    )
    limiter = await make()
    limiter.board._redis = None
    await (await limiter.enter("acme", tokens=1, patience_seconds=5, waiting=nobody)).leave(1)
    rows = await store.sql("select credential, second from provider_seconds where second < 100")
    assert [row["credential"] for row in rows] == ["other"]


async def test_a_reading_that_is_under_way_ends_with_the_limiter(make: Make) -> None:
    """It would ask Redis after the connections are closed, and open one that nobody closes."""
    limiter = await make()
    await (await limiter.enter("acme", tokens=1, patience_seconds=5, waiting=nobody)).leave(1)
    asking = asyncio.ensure_future(limiter.board.refresh())
    await asyncio.sleep(0)  # a turn of the loop, in which it begins
    reading = limiter.board._reading
    assert reading is not None
    assert not reading.done()
    await limiter.close()
    assert reading.done()
    await asyncio.wait([asking])
