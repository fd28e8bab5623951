"""Alert rules, their runbooks and the dashboards are complete and consistent. `make deploy-check` runs promtool."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.observability.dashboards import DASHBOARDS, FOLDER, build, rendered

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/observability/prometheus/runlane.rules.yaml"
RULE_TESTS = ROOT / "deploy/observability/prometheus/runlane.rules.test.yaml"
SECTIONS = ["Symptom", "Cause", "What to look at", "What to do"]


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def rules() -> list[dict[str, Any]]:
    return [rule for group in load(RULES)["groups"] for rule in group["rules"]]


def names_in(expression: str) -> set[str]:
    """Return the metrics of an expression."""
    return set(re.findall(r"\brunlane_[a-z0-9_]+", expression))


def used_metrics() -> set[str]:
    """Return the metrics of all rules and dashboards."""
    expressions = [rule["expr"] for rule in rules()]
    expressions += [expression for dashboard in DASHBOARDS for expression in dashboard.expressions()]
    return {name for expression in expressions for name in names_in(expression)}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: f"{rule['alert']}-{rule['labels']['severity']}")
def test_every_alert_has_a_severity_a_summary_and_a_runbook(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning", "info", "none")
    assert rule["annotations"]["summary"].endswith(".")
    page = (ROOT / rule["annotations"]["runbook"]).read_text()
    assert page.startswith(f"# {rule['alert']}\n")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == SECTIONS


def test_every_runbook_belongs_to_an_alert() -> None:
    linked = {Path(rule["annotations"]["runbook"]).name for rule in rules()}
    assert {path.name for path in (ROOT / "docs/runbooks").glob("*.md")} == linked


def test_every_alert_fires_in_a_unit_test() -> None:
    expected = {
        (found[1], found[2])
        for test in load(RULE_TESTS)["tests"]
        for check in test["promql_expr_test"]
        for sample in check["exp_samples"]
        if (found := re.search(r'alertname="(\w+)".*severity="(\w+)"', sample["labels"]))
    }
    assert expected == {(rule["alert"], rule["labels"]["severity"]) for rule in rules()}


def test_the_dashboards_are_generated() -> None:
    for name, text in rendered().items():
        assert (FOLDER / name).read_text() == text, "Run: python -m deploy.observability.dashboards"
    assert {path.name for path in FOLDER.glob("*.json")} == set(rendered())


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
def test_a_dashboard_can_be_imported_anywhere(dashboard: Any) -> None:
    built = json.loads(json.dumps(build(dashboard)))
    panels = built["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    assert "id" not in built
    assert built["timezone"] == "utc"
    for panel in panels:
        if panel["type"] == "row":
            continue
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(target["legendFormat"] for target in panel["targets"])


def test_rules_and_dashboards_name_only_documented_metrics() -> None:
    listed = names_in((ROOT / "docs/reference/metrics.md").read_text())
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in used_metrics()} <= listed


def test_the_collector_limits_memory_and_samples_whole_traces() -> None:
    config = load(ROOT / "deploy/observability/otel/otel-collector.yaml")
    pipeline = config["service"]["pipelines"]["traces"]
    assert pipeline["processors"] == ["memory_limiter", "tail_sampling", "batch"]
    for section in ("receivers", "processors", "exporters"):
        assert set(pipeline[section]) <= set(config[section])
    assert config["service"]["extensions"] == list(config["extensions"])
    policies = {policy["name"]: policy["type"] for policy in config["processors"]["tail_sampling"]["policies"]}
    assert policies == {"errors": "status_code", "slow": "latency", "some": "probabilistic"}
