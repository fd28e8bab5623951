"""How a worker's free slots are shared out between lanes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runlane.model.lane import LaneView, share_slots


@st.composite
def lane_lists(draw: st.DrawFn) -> list[LaneView]:
    count = draw(st.integers(0, 8))
    return [
        LaneView(
            name=f"lane-{number}",
            enabled=draw(st.booleans()),
            max_slots=draw(st.none() | st.integers(0, 20)),
            running=draw(st.integers(0, 25)),
            head=draw(st.none() | st.integers(-(10**12), 10**15)),
        )
        for number in range(count)
    ]


slot_counts = st.integers(0, 60)


def can_take(lane: LaneView) -> bool:
    return lane.enabled and lane.head is not None and lane.free != 0


@given(lane_lists(), slot_counts)
def test_never_more_than_the_worker_has(lanes: list[LaneView], slots: int) -> None:
    assert sum(share_slots(lanes, slots).values()) <= slots


@given(lane_lists(), slot_counts)
def test_never_more_than_a_lane_has_free(lanes: list[LaneView], slots: int) -> None:
    shares = share_slots(lanes, slots)
    for lane in lanes:
        if lane.free is not None:
            assert shares.get(lane.name, 0) <= lane.free


@given(lane_lists(), slot_counts)
def test_only_enabled_lanes_with_ready_runs_get_any(lanes: list[LaneView], slots: int) -> None:
    open_lanes = {lane.name for lane in lanes if can_take(lane)}
    shares = share_slots(lanes, slots)
    assert set(shares) <= open_lanes
    assert all(share > 0 for share in shares.values())


@given(lane_lists(), slot_counts)
def test_no_slot_is_left_while_a_lane_could_use_it(lanes: list[LaneView], slots: int) -> None:
    shares = share_slots(lanes, slots)
    if sum(shares.values()) < slots:
        for lane in lanes:
            if can_take(lane):
                assert lane.free is not None
                assert shares[lane.name] == lane.free


@given(lane_lists(), slot_counts)
def test_no_lane_is_starved_when_there_is_a_slot_for_each(lanes: list[LaneView], slots: int) -> None:
    open_lanes = [lane for lane in lanes if can_take(lane)]
    if slots >= len(open_lanes):
        assert set(share_slots(lanes, slots)) == {lane.name for lane in open_lanes}


@given(lane_lists(), slot_counts)
def test_lanes_that_are_not_held_by_their_cap_differ_by_one_at_most(lanes: list[LaneView], slots: int) -> None:
    shares = share_slots(lanes, slots)
    unheld = [
        shares.get(lane.name, 0)
        for lane in lanes
        if can_take(lane) and (lane.free is None or shares.get(lane.name, 0) < lane.free)
    ]
    if unheld:
        assert max(shares.values(), default=0) - min(unheld) <= 1


@given(st.lists(st.integers(-(10**12), 10**15), min_size=2, max_size=6, unique=True))
def test_a_single_slot_goes_to_the_lane_whose_head_comes_first(heads: list[int]) -> None:
    lanes = [LaneView(f"lane-{number}", True, None, 0, head) for number, head in enumerate(heads)]
    assert share_slots(lanes, 1) == {f"lane-{heads.index(min(heads))}": 1}


def test_free_is_never_negative() -> None:
    assert LaneView("a", True, 2, 5, 1).free == 0
