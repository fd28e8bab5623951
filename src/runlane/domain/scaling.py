"""Compute how many workers a pool needs, from its running runs and the ready runs that could start with more slots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, with_config

from runlane.domain.slots import SlotCap
from runlane.domain.wire import WIRE


@dataclass(frozen=True, slots=True)
class ReadyRuns:
    """Ready runs of a lane. `tenant` is None for those of all tenants without limits."""

    lane: str
    tenant: str | None
    count: int
    oldest_at_us: int


@dataclass(frozen=True, slots=True)
class LaneRoom:
    """A lane as a claim sees it. `starts` is False while it is disabled or held."""

    name: str
    starts: bool
    cap: SlotCap


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class LaneDemand:
    """The waiting and the running runs of a lane, and how many could start now."""

    lane: str
    queued: Annotated[int, Field(description="Ready runs.")]
    running: int
    startable: Annotated[
        int, Field(description="Ready runs that would start if workers had slots: within the caps of lane and tenants.")
    ]
    oldest_seconds: Annotated[float, Field(description="For how long the oldest ready run has waited; 0 without one.")]
    blocked: Annotated[
        dict[str, int],
        Field(
            description="Ready runs that could not start, by reason: `stopped` (the lane is disabled or held), "
            "`lane_cap`, `tenant_cap`. Every reason is present."
        ),
    ]


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class Demand:
    """The demand of a pool of workers that serves some lanes. All numbers are of one moment."""

    wanted_slots: Annotated[int, Field(description="`running` and `startable` together.")]
    wanted_workers: Annotated[int, Field(description="`wanted_slots` divided by the concurrency, rounded up.")]
    queued: int
    running: int
    startable: int
    oldest_seconds: float
    lanes: tuple[LaneDemand, ...]


def demand_of(
    lanes: Sequence[LaneRoom],
    ready: Sequence[ReadyRuns],
    tenants: Mapping[str, SlotCap],
    *,
    now_us: int,
    concurrency: int = 1,
) -> Demand:
    """Return the demand in these lanes. The room of a tenant is used up across lanes."""
    free = {tenant: cap.free for tenant, cap in tenants.items()}
    found = [_lane_demand(lane, [runs for runs in ready if runs.lane == lane.name], free, now_us) for lane in lanes]
    running, startable = sum(lane.running for lane in found), sum(lane.startable for lane in found)
    return Demand(
        wanted_slots=running + startable,
        wanted_workers=workers_for(running + startable, concurrency),
        queued=sum(lane.queued for lane in found),
        running=running,
        startable=startable,
        oldest_seconds=max((lane.oldest_seconds for lane in found), default=0.0),
        lanes=tuple(found),
    )


def workers_for(slots: int, concurrency: int) -> int:
    """Return how many workers with this concurrency have that number of slots."""
    return math.ceil(slots / concurrency)


def _lane_demand(lane: LaneRoom, ready: Sequence[ReadyRuns], free: dict[str, int | None], now_us: int) -> LaneDemand:
    queued = sum(runs.count for runs in ready)
    room = queued if lane.cap.free is None else lane.cap.free
    startable = 0
    blocked = {"stopped": 0 if lane.starts else queued, "lane_cap": 0, "tenant_cap": 0}
    # Runs without a tenant's bound first: they leave the room of tenants to other lanes.
    for runs in sorted(ready, key=lambda runs: (runs.tenant is not None, runs.tenant or "")) if lane.starts else ():
        bound = None if runs.tenant is None else free.get(runs.tenant)
        admitted = runs.count if bound is None else min(runs.count, bound)
        count = min(admitted, room - startable)
        if runs.tenant is not None and bound is not None:
            free[runs.tenant] = bound - count
        startable += count
        blocked["tenant_cap"] += runs.count - admitted
        blocked["lane_cap"] += admitted - count
    oldest = min((runs.oldest_at_us for runs in ready), default=now_us)
    waited = round(max(0, now_us - oldest) / 1_000_000, 3)
    return LaneDemand(lane.name, queued, lane.cap.running, startable, waited, blocked)
