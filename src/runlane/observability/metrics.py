"""The metrics of a process since its start.

The metrics endpoints of the API and of workers render them. If the database makes a transaction repeat, which is rare,
a counter in that transaction is incremented twice.
"""

from __future__ import annotations

from typing import Final

from runlane.observability.instruments import (
    Counter,
    Gauge,
    Histogram,
    Info,
    Instrument,
    LabeledCounter,
    LabeledHistogram,
)
from runlane.observability.slow_statements import SLOW_SECONDS, SlowStatements
from runlane.version import VERSION

SECONDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0,
)  # fmt: skip
# Instruments with many label values have fewer buckets.
_LONG_SECONDS: Final = (0.01, 0.05, 0.25, 1.0, 5.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
_QUERY_SECONDS: Final = (0.001, 0.005, 0.025, 0.1, 0.25, 1.0, 5.0)
SIZES: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000)
# Definitions are created and deleted, and each target is a separate time series.
_TARGETS: Final = 200

BUILD = Info("runlane_build_info", "The version of this process.", version=VERSION)
COMMITS = Counter("runlane_commits", "Transactions of the committer.")
BATCH_SIZE = Histogram("runlane_commit_members", "Members that shared one transaction.", SIZES)
FENCED_WRITES = Counter("runlane_fenced_writes", "Writes rejected because the run belonged to another attempt.")
TAKEOVERS = Counter("runlane_takeovers", "Runs that this process requeued from lost workers.")
LOST_WORKERS = Counter("runlane_lost_workers", "Workers that this process declared lost.")
ACCEPTS = Counter("runlane_accept_requests", "Requests to start a run that this process has answered.")
RUNS_ACCEPTED = Counter("runlane_runs_accepted", "Runs that this process stored, without repeated requests.")
RUNS_ENDED = LabeledCounter(
    "runlane_runs_ended", "Runs that ended, by target and outcome.", ("target", "outcome"), most=4 * _TARGETS
)
ATTEMPTS = LabeledCounter("runlane_attempts", "Attempts that ended, by outcome.", ("outcome",))
RUN_WAIT_SECONDS = LabeledHistogram(
    "runlane_run_wait_seconds",
    "From accepting a run to its first start by this worker, including a requested delay.",
    "lane",
    SECONDS,
)
RUN_DURATION_SECONDS = LabeledHistogram(
    "runlane_run_duration_seconds",
    "From accepting a run to its end in this worker, including waits and pauses.",
    "target",
    _LONG_SECONDS,
    most=_TARGETS,
)
RUN_SECONDS = Histogram("runlane_attempt_seconds", "How long attempts ran in this worker.", SECONDS)
STEP_SECONDS = Histogram("runlane_step_seconds", "How long steps of orchestrations took in this worker.", SECONDS)
DEAD_LETTERS = LabeledCounter(
    "runlane_dead_letters", "Runs that failed for good, recorded by this process.", ("target", "code")
)
FLOW_CONTROL = LabeledCounter(
    "runlane_flow_control", "Starts and runs that a rule of flow control has affected.", ("rule", "outcome")
)
SCHEDULE_STARTS = Counter("runlane_schedule_starts", "Runs that this process started for slots of schedules.")
SCHEDULE_SKIPS = Counter("runlane_schedule_skips", "Slots that this process skipped, replaced or refused by overlap.")
SCHEDULE_MISSES = Counter("runlane_schedule_missed", "Slots that this process recorded as missed.")
SCHEDULE_FAILURES = Counter(
    "runlane_schedule_failures", "Slots whose run was not accepted, and tries to decide about a slot that failed."
)
SCHEDULE_DELAY_SECONDS = Histogram(
    "runlane_schedule_delay_seconds", "From the due time of a slot to the decision of this process.", SECONDS
)
WEBHOOK_ATTEMPTS = LabeledCounter(
    "runlane_webhook_attempts",
    "Attempts of webhook deliveries by this process: delivered, retried later, or given up.",
    ("outcome",),
)
WEBHOOK_SECONDS = Histogram("runlane_webhook_seconds", "How long attempts of webhook deliveries took.", SECONDS)
MODEL_CALLS = LabeledCounter(
    "runlane_model_calls", "Model calls of this worker, by outcome.", ("provider", "model", "outcome"), most=400
)
MODEL_COST_USD = LabeledCounter(
    "runlane_model_cost_usd", "Cost of the answers that this worker received.", ("provider", "model"), most=_TARGETS
)
MODEL_TOKENS = LabeledCounter(
    "runlane_model_tokens",
    "Tokens of the answers that this worker received, by direction.",
    ("provider", "model", "direction"),
    most=2 * _TARGETS,
)
PROVIDER_WAIT_SECONDS = LabeledHistogram(
    "runlane_provider_wait_seconds",
    "How long model calls waited for the rate limits of their provider.",
    "provider",
    SECONDS,
)
PROVIDER_BACKOFFS = LabeledCounter(
    "runlane_provider_backoffs", "Rate limit responses of providers that this worker received.", ("provider",)
)
BUDGET_NOTICES = LabeledCounter(
    "runlane_budget_notices", "Notices about budgets that reached a share, by scope and percent.", ("scope", "percent")
)
DATABASE_IN_USE = Gauge("runlane_db_pool_in_use", "Database connections of this process that are in use.")
QUERY_SECONDS = LabeledHistogram(
    "runlane_db_query_seconds", "How long database statements took.", "statement", _QUERY_SECONDS, most=500
)
SLOW_STATEMENTS: Final = SlowStatements()

INSTRUMENTS: Final[tuple[Instrument, ...]] = (
    BUILD,
    COMMITS,
    BATCH_SIZE,
    FENCED_WRITES,
    TAKEOVERS,
    LOST_WORKERS,
    ACCEPTS,
    RUNS_ACCEPTED,
    RUNS_ENDED,
    ATTEMPTS,
    RUN_WAIT_SECONDS,
    RUN_DURATION_SECONDS,
    RUN_SECONDS,
    STEP_SECONDS,
    DEAD_LETTERS,
    FLOW_CONTROL,
    SCHEDULE_STARTS,
    SCHEDULE_SKIPS,
    SCHEDULE_MISSES,
    SCHEDULE_FAILURES,
    SCHEDULE_DELAY_SECONDS,
    WEBHOOK_ATTEMPTS,
    WEBHOOK_SECONDS,
    MODEL_CALLS,
    MODEL_COST_USD,
    MODEL_TOKENS,
    PROVIDER_WAIT_SECONDS,
    PROVIDER_BACKOFFS,
    BUDGET_NOTICES,
    DATABASE_IN_USE,
    QUERY_SECONDS,
)


def render() -> str:
    """Return all metrics in the text format of Prometheus."""
    return "\n".join(line for instrument in INSTRUMENTS for line in instrument.lines()) + "\n"


def observe_statement(name: str, seconds: float) -> None:
    """Count a database statement. Record it if it was slow."""
    QUERY_SECONDS.observe(seconds, name)
    if seconds >= SLOW_SECONDS:
        SLOW_STATEMENTS.add(name, seconds)
