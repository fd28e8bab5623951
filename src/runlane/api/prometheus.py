"""Metrics for Prometheus: the counters of this process, and the current state of the lanes in the database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from runlane.api.metric_labels import bounded_demand, bounded_lanes, bounded_letters
from runlane.api.services import Services
from runlane.domain.concurrency import SharedLimit
from runlane.domain.lane import Lane
from runlane.domain.scaling import LaneDemand
from runlane.domain.views import WorkerInfo
from runlane.observability import metrics
from runlane.store.failures.letters import OpenLetters, count_open_by_target
from runlane.store.queue.lanes import list_lanes
from runlane.store.queue.operation_gauges import OperationGauges, read_operation_gauges
from runlane.store.queue.shared_limits import read_limit_use
from runlane.store.queue.workers import list_workers
from runlane.store.sql.database import read_clock
from runlane.store.sql.transaction_age import oldest_transaction_seconds
from runlane.store.webhooks.retention import WebhookOverview, webhook_overview

# The number of shared concurrency limits that have metrics, because each limit is a label.
_MAX_LIMITS = 1000
_DAY_SECONDS = 86400
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_process = CollectorRegistry(auto_describe=False)
ProcessCollector(registry=_process)
PlatformCollector(registry=_process)
GCCollector(registry=_process)


class _Families(Collector):
    """Metric families of one scrape."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = tuple(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


async def scrape(parts: Services) -> bytes:
    """Return all metrics in the text format of Prometheus."""
    # The database's clock is used, as for every stored time.
    now_us = await read_clock(parts.database)
    lanes = bounded_lanes(await list_lanes(parts.database))
    demand = await parts.demand.read(parts.database, None, 1)
    workers = await list_workers(parts.database)
    webhooks = await webhook_overview(parts.database)
    registry = CollectorRegistry(auto_describe=False)
    letters = bounded_letters(await count_open_by_target(parts.database))
    limits = await read_limit_use(parts.database, _MAX_LIMITS)
    gauges = await read_operation_gauges(parts.database)
    settings = parts.app.settings
    families = [
        *_lanes(lanes, now_us),
        *_demand(bounded_demand(demand.lanes, {lane.name for lane in lanes})),
        *_workers(workers),
        *_letters(letters, now_us),
        *_limits(limits, by_tenant=settings.metrics_tenants),
        *_streams(parts),
        *_webhooks(webhooks),
        *_operation(gauges, settings.retention_days * _DAY_SECONDS),
        *_allowances(gauges, by_tenant=settings.metrics_tenants),
        GaugeMetricFamily(
            "runlane_oldest_transaction_seconds",
            "The age of the oldest open transaction of the database.",
            value=await oldest_transaction_seconds(parts.database),
        ),
    ]
    registry.register(_Families(families))
    return generate_latest(registry) + metrics.render().encode() + generate_latest(_process)


def _lanes(lanes: Sequence[Lane], now_us: int) -> list[Metric]:
    depth = GaugeMetricFamily("runlane_lane_depth", "Runs ready to start.", labels=["lane"])
    running = GaugeMetricFamily("runlane_lane_running", "Runs that are executed now.", labels=["lane"])
    age = GaugeMetricFamily("runlane_lane_oldest_seconds", "How long the oldest ready run has waited.", labels=["lane"])
    enabled = GaugeMetricFamily("runlane_lane_enabled", "Whether the lane starts runs.", labels=["lane"])
    slots = GaugeMetricFamily("runlane_lane_max_slots", "The cap; lanes without one are missing.", labels=["lane"])
    held = GaugeMetricFamily("runlane_lane_held", "Whether a hold stops the lane from starting runs.", labels=["lane"])
    for lane in lanes:
        oldest = lane.oldest_queued_at_us
        depth.add_metric([lane.name], lane.queued)
        running.add_metric([lane.name], lane.running)
        age.add_metric([lane.name], 0.0 if oldest is None else max(0, now_us - oldest) / 1_000_000)
        enabled.add_metric([lane.name], float(lane.enabled))
        held.add_metric([lane.name], float(lane.held))
        if lane.max_slots is not None:
            slots.add_metric([lane.name], lane.max_slots)
    return [depth, running, age, enabled, held, slots]


def _demand(lanes: Sequence[LaneDemand]) -> list[Metric]:
    startable = GaugeMetricFamily(
        "runlane_lane_startable", "Ready runs that would start if workers had slots.", labels=["lane"]
    )
    blocked = GaugeMetricFamily(
        "runlane_lane_blocked", "Ready runs that could not start, by reason.", labels=["lane", "reason"]
    )
    for lane in lanes:
        startable.add_metric([lane.lane], lane.startable)
        for reason, count in lane.blocked.items():
            blocked.add_metric([lane.lane, reason], count)
    return [startable, blocked]


def _workers(workers: Sequence[WorkerInfo]) -> list[Metric]:
    count = GaugeMetricFamily("runlane_workers", "Live workers.", labels=["status"])
    for status in ("online", "draining"):
        count.add_metric([status], sum(worker.status == status for worker in workers))
    capacity = GaugeMetricFamily("runlane_worker_slots", "Slots of the live workers.", labels=["state"])
    capacity.add_metric(["total"], sum(worker.capacity for worker in workers))
    capacity.add_metric(["busy"], sum(worker.active for worker in workers))
    return [count, capacity]


def _letters(letters: Sequence[OpenLetters], now_us: int) -> list[Metric]:
    count = GaugeMetricFamily("runlane_dead_letters_open", "Open dead letters.", labels=["target"])
    for entry in letters:
        count.add_metric([entry.target], entry.count)
    oldest = min((entry.oldest_died_at_us for entry in letters if entry.oldest_died_at_us is not None), default=now_us)
    age = GaugeMetricFamily(
        "runlane_dead_letter_oldest_seconds",
        "How long the oldest open dead letter has waited; 0 without one.",
        value=max(0, now_us - oldest) / 1_000_000,
    )
    return [count, age]


def _limits(limits: Sequence[SharedLimit], *, by_tenant: bool) -> list[Metric]:
    """Return the use of shared limits. Without the tenant, limits of the same name are added up."""
    labels = ["tenant", "limit"] if by_tenant else ["limit"]
    most = GaugeMetricFamily("runlane_concurrency_limit_max", "The maximum of a shared limit.", labels=labels)
    admitted = GaugeMetricFamily(
        "runlane_concurrency_limit_admitted", "Runs that are queued or running under a shared limit.", labels=labels
    )
    waiting = GaugeMetricFamily(
        "runlane_concurrency_limit_waiting", "Runs that wait for a shared limit, up to 10,000.", labels=labels
    )
    sums: dict[tuple[str, ...], list[int]] = {}
    for one in limits:
        found = sums.setdefault((one.tenant, one.name) if by_tenant else (one.name,), [0, 0, 0])
        for index, number in enumerate((one.max_running, one.admitted, one.waiting)):
            found[index] += number
    for values, numbers in sums.items():
        for family, number in zip((most, admitted, waiting), numbers, strict=True):
            family.add_metric(values, number)
    return [most, admitted, waiting]


def _webhooks(overview: WebhookOverview) -> list[Metric]:
    return [
        GaugeMetricFamily("runlane_webhook_pending", "Webhooks that are not delivered yet.", value=overview.pending),
        GaugeMetricFamily(
            "runlane_webhook_oldest_seconds",
            "The age of the oldest webhook that is not delivered yet.",
            value=overview.oldest_seconds,
        ),
        GaugeMetricFamily("runlane_webhook_endpoints_disabled", "Disabled endpoints.", value=overview.disabled),
    ]


def _streams(parts: Services) -> list[Metric]:
    return [
        GaugeMetricFamily("runlane_followers", "Readers of streams in this process.", value=parts.tail.followers),
        GaugeMetricFamily(
            "runlane_bus_connected",
            "Whether this process receives notifications of other processes without polling.",
            value=float(parts.connection.bus.reaches_others),
        ),
    ]


def _operation(gauges: OperationGauges, keep_seconds: float) -> list[Metric]:
    questions = GaugeMetricFamily("runlane_questions_open", "Questions that wait for a person.", labels=["kind"])
    questions.add_metric(["open"], gauges.questions - gauges.questions_due_soon)
    questions.add_metric(["due_soon"], gauges.questions_due_soon)
    return [
        questions,
        GaugeMetricFamily(
            "runlane_question_oldest_seconds",
            "How long the oldest open question has waited; 0 without one.",
            value=gauges.oldest_question_seconds,
        ),
        GaugeMetricFamily(
            "runlane_schedule_lag_seconds",
            "How late the latest slot of a schedule is; 0 while none is late.",
            value=gauges.schedule_lag_seconds,
        ),
        GaugeMetricFamily(
            "runlane_retention_lag_seconds",
            "How long ago the oldest ended run should have been deleted; 0 while none is late.",
            value=max(0.0, gauges.oldest_ended_seconds - keep_seconds),
        ),
    ]


def _allowances(gauges: OperationGauges, *, by_tenant: bool) -> list[Metric]:
    """Return the used share of budgets and quotas: the largest share of each kind, or the share of every tenant."""
    labels = ["allowance", "tenant"] if by_tenant else ["allowance"]
    used = GaugeMetricFamily(
        "runlane_allowance_used_ratio",
        "The used share of the tenants' budgets and quotas; 1 is all of it.",
        labels=labels,
    )
    if by_tenant:
        for one in gauges.allowances:
            used.add_metric([one.name, one.tenant], one.share)
        return [used]
    largest: dict[str, float] = {}
    for one in gauges.allowances:
        largest[one.name] = max(one.share, largest.get(one.name, 0.0))
    for name, share in sorted(largest.items()):
        used.add_metric([name], share)
    return [used]
