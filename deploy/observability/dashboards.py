"""Generate the Grafana dashboards: `python -m deploy.observability.dashboards` writes grafana/*.json.

The data source is an input of the dashboards, so that they work in every Grafana. Gauges of the installation are
aggregated with max, because every server reports the same; counters and histograms with sum.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent / "grafana"
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH: Final = 24
_HEIGHT: Final = 7


@dataclass(frozen=True)
class Panel:
    """A panel: queries by their legend, and the unit of the values."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    description: str = ""


@dataclass(frozen=True)
class Row:
    """A row of panels that share its width."""

    title: str
    panels: Sequence[Panel]
    height: int = _HEIGHT


@dataclass(frozen=True)
class Dashboard:
    """A dashboard. `variables` are label queries by the name of the variable."""

    uid: str
    title: str
    rows: Sequence[Row]
    variables: dict[str, str] = field(default_factory=dict[str, str])

    def expressions(self) -> Iterator[str]:
        for row in self.rows:
            for panel in row.panels:
                yield from panel.queries.values()


def percentile(share: float, metric: str, by: str, chosen: str = "") -> str:
    """Return the expression of a percentile of a histogram."""
    labels = f"{by}, le" if by else "le"
    rates = f"sum by ({labels}) (rate({metric}_bucket{chosen}[$__rate_interval]))"
    return f"histogram_quantile({share}, {rates})"


def rate(metric: str, by: str, chosen: str = "") -> str:
    """Return the expression of the rate of a counter."""
    return f"sum by ({by}) (rate({metric}{chosen}[$__rate_interval]))"


def gauge(metric: str, by: str = "", chosen: str = "") -> str:
    """Return the expression of a gauge that every server reports."""
    return f"max by ({by}) ({metric}{chosen})" if by else f"max({metric}{chosen})"


_HEALTH = Row(
    "Health",
    [
        Panel("Workers online", {"workers": gauge("runlane_workers", chosen='{status="online"}')}, kind="stat"),
        Panel("Queued", {"runs": "sum(max by (lane) (runlane_lane_depth))"}, kind="stat"),
        Panel("Oldest ready run", {"age": gauge("runlane_lane_oldest_seconds")}, "s", "stat"),
        Panel("Open dead letters", {"letters": "sum(max by (target) (runlane_dead_letters_open))"}, kind="stat"),
        Panel("Open questions", {"questions": "sum(max by (kind) (runlane_questions_open))"}, kind="stat"),
        Panel("Versions", {"{{version}}": "count by (version) (runlane_build_info)"}, kind="stat"),
    ],
    height=4,
)
_LANES = Row(
    "Lanes",
    [
        Panel("Ready runs", {"{{lane}}": gauge("runlane_lane_depth", "lane")}),
        Panel("Age of the oldest ready run", {"{{lane}}": gauge("runlane_lane_oldest_seconds", "lane")}, "s"),
        Panel("Started", {"{{lane}}": rate("runlane_run_wait_seconds_count", "lane")}, "ops"),
        Panel(
            "Ready but not startable",
            {"{{lane}} {{reason}}": gauge("runlane_lane_blocked", "lane, reason")},
            description="Runs that a cap, a hold or a disabled lane keeps back. More workers would not start them.",
        ),
    ],
)
_WORKERS = Row(
    "Workers",
    [
        Panel("Workers", {"{{status}}": gauge("runlane_workers", "status")}),
        Panel("Slots", {"{{state}}": gauge("runlane_worker_slots", "state")}),
        Panel("Lost workers and takeovers", {
            "lost workers": "sum(increase(runlane_lost_workers_total[$__rate_interval]))",
            "takeovers": "sum(increase(runlane_takeovers_total[$__rate_interval]))",
            "fenced writes": "sum(increase(runlane_fenced_writes_total[$__rate_interval]))",
        }),
    ],
)  # fmt: skip
_TIMES = Row(
    "Wait and duration",
    [
        Panel("Wait, p50 and p95", {
            "{{lane}} p50": percentile(0.5, "runlane_run_wait_seconds", "lane"),
            "{{lane}} p95": percentile(0.95, "runlane_run_wait_seconds", "lane"),
        }, "s"),
        Panel("Duration of runs, p95", {"{{target}}": percentile(0.95, "runlane_run_duration_seconds", "target")}, "s"),
        Panel("Duration of attempts and steps, p95", {
            "attempts": percentile(0.95, "runlane_attempt_seconds", ""),
            "steps": percentile(0.95, "runlane_step_seconds", ""),
        }, "s"),
    ],
)  # fmt: skip
_OUTCOMES = Row(
    "Outcomes",
    [
        Panel("Accepted and ended", {
            "accepted": "sum(rate(runlane_runs_accepted_total[$__rate_interval]))",
            "{{outcome}}": rate("runlane_runs_ended_total", "outcome"),
        }, "ops"),
        Panel("Failed runs by target", {"{{target}}": rate("runlane_runs_ended_total", "target", '{outcome="failed"}')},
              "ops"),
        Panel("Attempts", {"{{outcome}}": rate("runlane_attempts_total", "outcome")}, "ops"),
        Panel("Dead letters by code", {"{{target}} {{code}}": rate("runlane_dead_letters_total", "target, code")},
              "ops"),
    ],
)  # fmt: skip
_MODELS = Row(
    "Models",
    [
        Panel("Model calls", {"{{provider}} {{outcome}}": rate("runlane_model_calls_total", "provider, outcome")},
              "ops"),
        Panel("Cost per hour", {"{{model}}": "3600 * " + rate("runlane_model_cost_usd_total", "model")}, "currencyUSD"),
        Panel("Tokens", {"{{model}} {{direction}}": rate("runlane_model_tokens_total", "model, direction")}, "ops"),
        Panel("Wait for limits, p95", {"{{provider}}": percentile(0.95, "runlane_provider_wait_seconds", "provider")},
              "s"),
    ],
)  # fmt: skip
_PEOPLE = Row(
    "Inbox, schedules, webhooks",
    [
        Panel("Questions", {"{{kind}}": gauge("runlane_questions_open", "kind")}),
        Panel("Age of the oldest question", {"age": gauge("runlane_question_oldest_seconds")}, "s"),
        Panel("Schedules", {
            "lag": gauge("runlane_schedule_lag_seconds"),
            "missed": "sum(increase(runlane_schedule_missed_total[$__rate_interval]))",
        }, "short"),
        Panel("Webhooks", {
            "pending": gauge("runlane_webhook_pending"),
            "{{outcome}}": rate("runlane_webhook_attempts_total", "outcome"),
        }),
        Panel("Age of the oldest webhook", {"age": gauge("runlane_webhook_oldest_seconds")}, "s"),
    ],
)  # fmt: skip
_STORAGE = Row(
    "Database and streams",
    [
        Panel("Slowest statements, p95", {
            "{{statement}}": f"topk(10, {percentile(0.95, 'runlane_db_query_seconds', 'statement')})"
        }, "s"),
        Panel("Statements", {"{{statement}}": f"topk(10, {rate('runlane_db_query_seconds_count', 'statement')})"},
              "ops"),
        Panel("Connections in use", {"{{instance}}": "sum by (instance) (runlane_db_pool_in_use)"}),
        Panel("Oldest transaction, retention", {
            "oldest transaction": gauge("runlane_oldest_transaction_seconds"),
            "retention lag": gauge("runlane_retention_lag_seconds"),
        }, "s"),
        Panel("Followers", {"{{instance}}": "sum by (instance) (runlane_followers)"}),
        Panel("Bus connected", {"{{instance}}": "min by (instance) (runlane_bus_connected)"}),
    ],
)  # fmt: skip
OVERVIEW: Final = Dashboard(
    "runlane-overview", "Runlane", [_HEALTH, _LANES, _WORKERS, _TIMES, _OUTCOMES, _MODELS, _PEOPLE, _STORAGE]
)

_IN_LANE: Final = '{lane=~"$lane"}'
_OF_TARGET: Final = '{target=~"$target"}'
DETAIL: Final = Dashboard(
    "runlane-detail",
    "Runlane: lanes and targets",
    [
        Row(
            "Lane $lane",
            [
                Panel("Ready, startable, running", {
                    "{{lane}} ready": gauge("runlane_lane_depth", "lane", _IN_LANE),
                    "{{lane}} startable": gauge("runlane_lane_startable", "lane", _IN_LANE),
                    "{{lane}} running": gauge("runlane_lane_running", "lane", _IN_LANE),
                }),
                Panel("Enabled and held", {
                    "{{lane}} enabled": gauge("runlane_lane_enabled", "lane", _IN_LANE),
                    "{{lane}} held": gauge("runlane_lane_held", "lane", _IN_LANE),
                }),
                Panel("Wait", {
                    "{{lane}} p50": percentile(0.5, "runlane_run_wait_seconds", "lane", _IN_LANE),
                    "{{lane}} p99": percentile(0.99, "runlane_run_wait_seconds", "lane", _IN_LANE),
                }, "s"),
            ],
        ),
        Row(
            "Target $target",
            [
                Panel("Ended", {
                    "{{target}} {{outcome}}": rate("runlane_runs_ended_total", "target, outcome", _OF_TARGET)
                }, "ops"),
                Panel("Duration", {
                    "{{target}} p50": percentile(0.5, "runlane_run_duration_seconds", "target", _OF_TARGET),
                    "{{target}} p99": percentile(0.99, "runlane_run_duration_seconds", "target", _OF_TARGET),
                }, "s"),
                Panel("Open dead letters", {"{{target}}": gauge("runlane_dead_letters_open", "target", _OF_TARGET)}),
            ],
        ),
    ],
    {
        "lane": "label_values(runlane_lane_depth, lane)",
        "target": "label_values(runlane_runs_ended_total, target)",
    },
)  # fmt: skip
DASHBOARDS: Final = (OVERVIEW, DETAIL)


def build(dashboard: Dashboard) -> dict[str, Any]:
    """Return a dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in dashboard.rows:
        panels.append({
            "id": len(panels) + 1,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": top, "w": _WIDTH, "h": 1},
        })  # fmt: skip
        top += 1
        width = max(4, _WIDTH // len(row.panels))
        per_line = _WIDTH // width
        for position, panel in enumerate(row.panels):
            place = {
                "x": position % per_line * width,
                "y": top + position // per_line * row.height,
                "w": width,
                "h": row.height,
            }
            panels.append(_panel(panel, len(panels) + 1, place))
        top += -(-len(row.panels) // per_line) * row.height
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["runlane"],
        "timezone": "utc",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_source_variable(), *(_variable(*pair) for pair in dashboard.variables.items())]},
        "panels": panels,
    }


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    letters = "ABCDEFGH"
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"showLegend": True}} if panel.kind == "timeseries" else {},
        "targets": [
            {"refId": letters[index], "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
            for index, (legend, expression) in enumerate(panel.queries.items())
        ],
    }


def _source_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
    }


def rendered() -> dict[str, str]:
    """Return the text of every file."""
    return {
        f"{dashboard.uid}.json": json.dumps(build(dashboard), indent=2, ensure_ascii=False) + "\n"
        for dashboard in DASHBOARDS
    }


def main() -> None:
    for name, text in rendered().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
