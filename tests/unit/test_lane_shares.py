"""How a worker's free slots are shared out between lanes, tenants with limits, and quarantined runs."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from runlane.domain.slots import Quarantined, Queue, QueueKey, Shares, SlotCap, WorkerLoad, share_slots

ranks = st.integers(-(10**12), 10**15)
caps = st.builds(SlotCap, st.none() | st.integers(0, 20), st.integers(0, 25))
slot_counts = st.integers(0, 60)


@st.composite
def queue_lists(draw: st.DrawFn, *, tenants: int = 3) -> list[Queue]:
    """Queues as a claim sees them: the bounds of a lane and of a tenant are the same in every queue."""
    lanes = {f"lane-{number}": (draw(caps), draw(st.booleans())) for number in range(draw(st.integers(0, 6)))}
    of_tenants = {f"tenant-{number}": draw(caps) for number in range(tenants)} | {None: SlotCap()}
    return [
        Queue(QueueKey(lane, tenant), draw(ranks), enabled, lane_cap, tenant_cap)
        for lane, (lane_cap, enabled) in lanes.items()
        for tenant, tenant_cap in of_tenants.items()
        if draw(st.booleans())
    ]


@st.composite
def quarantined_lists(draw: st.DrawFn, queues: list[Queue]) -> list[Quarantined]:
    if not queues:
        return []
    chosen = draw(st.lists(st.sampled_from(queues), max_size=6))
    return [
        Quarantined(f"run-{number}", draw(st.integers(0, 10)), queue, draw(st.booleans()))
        for number, queue in enumerate(chosen)
    ]


def free_of(queue: Queue) -> int | None:
    return min((free for free in (queue.lane_cap.free, queue.tenant_cap.free) if free is not None), default=None)


def can_take(queue: Queue) -> bool:
    return queue.enabled and free_of(queue) != 0


def of_lanes(shares: Shares) -> Counter[str]:
    counted: Counter[str] = Counter()
    for key, count in shares.queues.items():
        counted[key.lane] += count
    return counted


@given(queue_lists(), slot_counts)
def test_never_more_than_the_worker_has(queues: list[Queue], slots: int) -> None:
    assert sum(share_slots(queues, slots).queues.values()) <= slots


@given(st.data(), queue_lists(), slot_counts)
def test_never_more_than_a_lane_or_a_tenant_has_free(data: st.DataObject, queues: list[Queue], slots: int) -> None:
    quarantined = data.draw(quarantined_lists(queues))
    shares = share_slots(queues, slots, quarantined)
    by_id = {run.run_id: run.queue.key for run in quarantined}
    lanes, tenants = of_lanes(shares), Counter[str | None]()
    for key, count in shares.queues.items():
        tenants[key.tenant] += count
    for run_id in shares.quarantined:
        lanes[by_id[run_id].lane] += 1
        tenants[by_id[run_id].tenant] += 1
    for queue in queues:
        lane_free, tenant_free = queue.lane_cap.free, queue.tenant_cap.free
        assert lane_free is None or lanes[queue.key.lane] <= lane_free
        assert tenant_free is None or tenants[queue.key.tenant] <= tenant_free


@given(queue_lists(), slot_counts)
def test_only_enabled_lanes_with_room_get_any(queues: list[Queue], slots: int) -> None:
    shares = share_slots(queues, slots).queues
    assert set(shares) <= {queue.key for queue in queues if can_take(queue)}
    assert all(share > 0 for share in shares.values())


@given(queue_lists(tenants=0), slot_counts)
def test_no_slot_is_left_while_a_lane_could_use_it(queues: list[Queue], slots: int) -> None:
    shares = share_slots(queues, slots).queues
    if sum(shares.values()) < slots:
        for queue in queues:
            if can_take(queue):
                assert shares[queue.key] == free_of(queue)


@given(queue_lists(tenants=0), slot_counts)
def test_no_lane_is_starved_when_there_is_a_slot_for_each(queues: list[Queue], slots: int) -> None:
    open_queues = [queue for queue in queues if can_take(queue)]
    if slots >= len(open_queues):
        assert set(share_slots(queues, slots).queues) == {queue.key for queue in open_queues}


@given(queue_lists(tenants=0), slot_counts)
def test_lanes_that_are_not_held_by_their_cap_differ_by_one_at_most(queues: list[Queue], slots: int) -> None:
    shares = share_slots(queues, slots).queues
    unheld = [
        shares.get(queue.key, 0)
        for queue in queues
        if can_take(queue) and ((free := free_of(queue)) is None or shares.get(queue.key, 0) < free)
    ]
    if unheld:
        assert max(shares.values(), default=0) - min(unheld) <= 1


@given(st.lists(ranks, min_size=2, max_size=6, unique=True))
def test_a_single_slot_goes_to_the_queue_whose_head_comes_first(heads: list[int]) -> None:
    keys = [QueueKey("lane", None if number == 0 else f"tenant-{number}") for number in range(len(heads))]
    queues = [Queue(key, head) for key, head in zip(keys, heads, strict=True)]
    assert share_slots(queues, 1).queues == {keys[heads.index(min(heads))]: 1}


def test_queues_of_one_lane_share_it_evenly() -> None:
    queues = [Queue(QueueKey("a"), 1), Queue(QueueKey("a", "t"), 2, tenant_cap=SlotCap(2)), Queue(QueueKey("b"), 3)]
    assert share_slots(queues, 20).queues == {("a", None): 8, ("a", "t"): 2, ("b", None): 10}


def test_a_tenants_bound_holds_over_its_lanes() -> None:
    queues = [Queue(QueueKey(lane, "t"), 1, tenant_cap=SlotCap(5, running=2)) for lane in ("a", "b", "c")]
    assert sum(share_slots(queues, 20).queues.values()) == 3


@given(st.data(), queue_lists(), slot_counts, st.integers(0, 8), st.none() | st.integers(0, 12))
def test_no_quarantined_run_has_more_neighbors_than_it_may(
    data: st.DataObject, queues: list[Queue], slots: int, active: int, max_active: int | None
) -> None:
    quarantined = data.draw(quarantined_lists(queues))
    shares = share_slots(queues, slots, quarantined, WorkerLoad(active, max_active))
    together = active + len(shares.quarantined) + sum(shares.queues.values())
    neighbors = {run.run_id: run.max_neighbors for run in quarantined}
    if together > active:
        assert max_active is None or together <= max_active
        assert all(together - 1 <= neighbors[run_id] for run_id in shares.quarantined)


def test_a_run_that_fits_is_taken_before_the_others_and_keeps_them_away() -> None:
    queue = Queue(QueueKey("a"), 5)
    alone = Quarantined("alone", 0, Queue(QueueKey("a"), 1))
    assert share_slots([queue], 10, [alone]) == Shares(("alone",), {})
    assert share_slots([queue], 10, [alone], WorkerLoad(active=1)) == Shares((), {queue.key: 10})


def test_a_group_fills_up_to_its_smallest_bound() -> None:
    queue = Queue(QueueKey("a"), 5)
    pairs = [Quarantined(f"run-{number}", 2, Queue(QueueKey("a"), number)) for number in range(4)]
    assert share_slots([queue], 10, pairs).quarantined == ("run-0", "run-1", "run-2")
    few = Quarantined("few", 3, Queue(QueueKey("a"), 0))
    assert share_slots([queue], 10, [few]) == Shares(("few",), {queue.key: 3})


def test_a_run_that_needs_room_stops_other_claims_until_it_fits() -> None:
    queue = Queue(QueueKey("a"), 5)
    waiting = Quarantined("waiting", 0, Queue(QueueKey("a"), 1), needs_room=True)
    assert share_slots([queue], 10, [waiting], WorkerLoad(active=3)) == Shares((), {})
    assert share_slots([queue], 10, [waiting], WorkerLoad(active=0)) == Shares(("waiting",), {})


def test_a_paused_lane_or_a_tenant_at_its_bound_makes_no_worker_wait() -> None:
    queue = Queue(QueueKey("a"), 5)
    paused = Quarantined("paused", 0, Queue(QueueKey("b"), 1, enabled=False), needs_room=True)
    full = Quarantined("full", 0, Queue(QueueKey("b", "t"), 1, tenant_cap=SlotCap(1, 1)), needs_room=True)
    assert share_slots([queue], 4, [paused, full], WorkerLoad(active=3)) == Shares((), {queue.key: 4})


def test_free_is_never_negative() -> None:
    assert SlotCap(2, 5).free == 0
