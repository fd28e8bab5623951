"""Bounds of the labels of metrics that are read from the database: each lane and target is a time series.

The lanes and targets with the most runs keep their names. The others are added up as `other`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from runlane.domain.lane import Lane
from runlane.domain.scaling import LaneDemand
from runlane.observability.instruments import OTHER
from runlane.store.failures.letters import OpenLetters

MAX_LABELS = 200


def bounded_lanes(lanes: Sequence[Lane]) -> Sequence[Lane]:
    """Return at most MAX_LABELS lanes, and `other`."""
    if len(lanes) <= MAX_LABELS:
        return lanes
    ranked = sorted(lanes, key=lambda lane: (lane.name == OTHER, -lane.running - lane.queued, lane.name))
    kept, rest = ranked[:MAX_LABELS], ranked[MAX_LABELS:]
    # A run that waits in a lane that starts nothing is not late.
    starting = [lane for lane in rest if lane.enabled and not lane.held]
    waiting = [lane.oldest_queued_at_us for lane in starting if lane.oldest_queued_at_us is not None]
    other = Lane(
        OTHER,
        any(lane.enabled for lane in rest),
        None,
        0,
        running=sum(lane.running for lane in rest),
        queued=sum(lane.queued for lane in rest),
        oldest_queued_at_us=min(waiting, default=None),
        held=not starting,
    )
    return [*kept, other]


def bounded_demand(lanes: Sequence[LaneDemand], names: Collection[str]) -> Sequence[LaneDemand]:
    """Return the demand of the lanes that keep their names, and of the others as one."""
    if len(lanes) <= MAX_LABELS:
        return lanes
    kept = [lane for lane in lanes if lane.lane in names and lane.lane != OTHER]
    rest = [lane for lane in lanes if lane.lane not in names or lane.lane == OTHER]
    blocked = Counter[str]()
    for lane in rest:
        blocked.update(lane.blocked)
    other = LaneDemand(
        OTHER,
        sum(lane.queued for lane in rest),
        sum(lane.running for lane in rest),
        sum(lane.startable for lane in rest),
        max((lane.oldest_seconds for lane in rest), default=0.0),
        dict(blocked),
    )
    return [*kept, other]


def bounded_letters(letters: Sequence[OpenLetters]) -> Sequence[OpenLetters]:
    """Return the open letters of at most MAX_LABELS targets, and of `other`."""
    if len(letters) <= MAX_LABELS:
        return letters
    ranked = sorted(letters, key=lambda entry: (entry.target == OTHER, -entry.count, entry.target))
    kept, rest = ranked[:MAX_LABELS], ranked[MAX_LABELS:]
    died = [entry.oldest_died_at_us for entry in rest if entry.oldest_died_at_us is not None]
    return [*kept, OpenLetters(sum(entry.count for entry in rest), min(died, default=None), OTHER)]
