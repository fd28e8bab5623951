"""What a real server and worker report under load: every metric, and one trace from the request to the webhook."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from prometheus_client.parser import text_string_to_metric_families

from runlane.testing import ExternalPostgres, PostgresServer
from tests.deploy.live import SECRET_TEXT, TRACE_ID, TRACEPARENT, Telemetry, observe
from tests.deploy.test_observability_files import ROOT, names_in, used_metrics
from tests.harness import settings_for

# Metrics of the whole installation, which every server reads from the database.
OF_SERVERS = {
    "runlane_lane_depth",
    "runlane_lane_running",
    "runlane_lane_startable",
    "runlane_lane_blocked",
    "runlane_lane_oldest_seconds",
    "runlane_lane_enabled",
    "runlane_lane_held",
    "runlane_workers",
    "runlane_worker_slots",
    "runlane_questions_open",
    "runlane_question_oldest_seconds",
    "runlane_dead_letters_open",
    "runlane_dead_letter_oldest_seconds",
    "runlane_schedule_lag_seconds",
    "runlane_webhook_pending",
    "runlane_webhook_oldest_seconds",
    "runlane_webhook_endpoints_disabled",
    "runlane_retention_lag_seconds",
    "runlane_oldest_transaction_seconds",
    "runlane_allowance_used_ratio",
    "runlane_bus_connected",
    "runlane_followers",
}
# Metrics of a process, as the server and the worker report them.
OF_PROCESSES = {
    "runlane_build_info",
    "runlane_runs_accepted_total",
    "runlane_runs_ended_total",
    "runlane_attempts_total",
    "runlane_run_wait_seconds",
    "runlane_run_duration_seconds",
    "runlane_schedule_missed_total",
    "runlane_webhook_attempts_total",
    "runlane_model_calls_total",
    "runlane_model_cost_usd_total",
    "runlane_model_tokens_total",
    "runlane_provider_wait_seconds",
    "runlane_db_pool_in_use",
    "runlane_db_query_seconds",
    "runlane_budget_notices_total",
    "runlane_provider_backoffs_total",
}


@pytest.fixture(scope="module")
def telemetry(
    postgres_server: PostgresServer | ExternalPostgres, postgres_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Telemetry]:
    name = "runlane_telemetry"
    postgres_server.drop_database(name)
    url = postgres_server.create_database(name, postgres_template)
    yield observe(settings_for(url), tmp_path_factory.mktemp("telemetry"))
    postgres_server.drop_database(name)


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def families(text: str) -> set[str]:
    return {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}


def test_every_metric_is_exposed(telemetry: Telemetry) -> None:
    assert families(telemetry.server_metrics) >= OF_SERVERS | OF_PROCESSES
    assert families(telemetry.worker_metrics) >= OF_PROCESSES


def test_the_load_moves_the_metrics(telemetry: Telemetry) -> None:
    worker, server = samples(telemetry.worker_metrics), samples(telemetry.server_metrics)

    def of(found: dict[Any, float], name: str, **labels: str) -> float:
        return found[f"runlane_{name}", tuple(sorted(labels.items()))]

    assert of(worker, "runs_ended_total", target="lookup", outcome="completed") == 1
    assert of(worker, "runs_ended_total", target="break", outcome="failed") == 1
    assert of(worker, "runs_ended_total", target="orchestration:answer", outcome="completed") == 1
    assert of(worker, "attempts_total", outcome="completed") == 2
    assert of(worker, "attempts_total", outcome="failed") == 1
    assert of(worker, "run_wait_seconds_count", lane="default") == 4
    assert of(worker, "run_duration_seconds_count", target="orchestration:answer") == 1
    model = next(
        {"provider": dict(labels)["provider"], "model": dict(labels)["model"]}
        for name, labels in worker
        if name == "runlane_model_calls_total"
    )
    assert model["model"] == "gpt-4o-mini"
    assert of(worker, "model_calls_total", **model, outcome="completed") == 2
    assert of(worker, "model_tokens_total", **model, direction="in") > 0
    assert of(worker, "model_tokens_total", **model, direction="out") > 0
    assert of(worker, "model_cost_usd_total", **model) >= 0
    assert of(worker, "provider_wait_seconds_count", provider=model["provider"]) >= 3
    assert of(worker, "provider_backoffs_total", provider=model["provider"]) == 1
    assert of(worker, "db_query_seconds_count", statement="record") > 0
    assert of(worker, "build_info", version=_version(worker)) == 1
    assert of(server, "runs_accepted_total") == 4
    assert of(server, "dead_letters_open", target="break") == 1
    assert of(server, "questions_open", kind="open") == 1
    assert of(server, "question_oldest_seconds") > 0
    assert of(server, "allowance_used_ratio", allowance="runs_per_day") > 0
    assert of(server, "db_query_seconds_count", statement="database_clock") > 0
    # The scrape itself uses a connection only for each of its queries.
    assert of(server, "db_pool_in_use") >= 0
    assert of(server, "webhook_pending") == 0


def _version(found: dict[Any, float]) -> str:
    return next(dict(labels)["version"] for name, labels in found if name == "runlane_build_info")


def test_every_metric_of_rules_and_dashboards_is_in_a_live_scrape(telemetry: Telemetry) -> None:
    found = {name for name, _ in (*samples(telemetry.server_metrics), *samples(telemetry.worker_metrics))}
    assert used_metrics() - found == set()


def test_the_reference_lists_every_metric(telemetry: Telemetry) -> None:
    listed = names_in((ROOT / "docs/reference/metrics.md").read_text())
    found = families(telemetry.server_metrics) | families(telemetry.worker_metrics)
    assert listed == {name for name in found if name.startswith("runlane_")}


def test_no_metric_has_a_run_or_a_tenant_as_label(telemetry: Telemetry) -> None:
    found = {**samples(telemetry.worker_metrics), **samples(telemetry.server_metrics)}
    labels = {label for _, pairs in found for label, _ in pairs}
    assert not labels & {"run_id", "run", "tenant", "worker", "worker_id"}


def test_one_trace_leads_from_the_request_to_the_webhook(telemetry: Telemetry) -> None:
    ours = {span.span_id: span for span in telemetry.spans if span.trace_id.hex() == TRACE_ID}
    chat = [
        span for span in ours.values() if span.name == "chat gpt-4o-mini" and not _attributes(span).get("error.type")
    ]
    assert len(chat) == 2
    assert _path(ours, chat[0]) == [
        "chat gpt-4o-mini",
        "invoke_agent clerk",
        "step ask",
        "run orchestration:answer",
        "accept answer",
        "POST /api/v2/orchestrations/{orchestration_id}/run",
    ]
    (tool,) = (span for span in ours.values() if span.name == "execute_tool search")
    assert _path(ours, tool)[1:3] == ["invoke_agent clerk", "step ask"]
    run_id = _attributes(ours[_parents(ours, chat[0])[3].span_id])["runlane.run_id"]
    (webhook,) = (
        span for span in ours.values() if span.name == "POST webhook" and _attributes(span)["runlane.run_id"] == run_id
    )
    assert _path(ours, webhook)[1:] == ["accept answer", "POST /api/v2/orchestrations/{orchestration_id}/run"]
    assert _attributes(webhook)["http.response.status_code"] == 204
    # The receiver continues the same trace, under the span of the request that it got.
    sent = {headers["traceparent"] for headers in telemetry.webhooks}
    assert f"00-{TRACE_ID}-{webhook.span_id.hex()}-01" in sent
    assert TRACEPARENT not in sent


def test_spans_follow_the_conventions_for_generative_ai(telemetry: Telemetry) -> None:
    calls = [_attributes(span) for span in telemetry.spans if span.name == "chat gpt-4o-mini"]
    answered = [call for call in calls if "error.type" not in call]
    assert len(calls) - len(answered) == 1
    for call in answered:
        assert call["gen_ai.operation.name"] == "chat"
        assert call["gen_ai.provider.name"].startswith("openai")
        assert call["gen_ai.request.model"] == "gpt-4o-mini"
        assert call["gen_ai.agent.name"] == "clerk"
        assert call["gen_ai.usage.input_tokens"] > 0
        assert call["gen_ai.usage.output_tokens"] > 0
    kinds = {span.kind for span in telemetry.spans if span.name == "chat gpt-4o-mini"}
    assert kinds == {Span.SPAN_KIND_CLIENT}
    (tool,) = (_attributes(span) for span in telemetry.spans if span.name == "execute_tool search")
    assert (tool["gen_ai.operation.name"], tool["gen_ai.tool.name"]) == ("execute_tool", "search")
    assert tool["gen_ai.tool.call.id"]


def test_spans_have_no_content(telemetry: Telemetry) -> None:
    for content in (SECRET_TEXT, "It is found.", "found it"):
        assert content.encode() not in telemetry.exported


def _attributes(span: Span) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in span.attributes:
        kind = pair.value.WhichOneof("value")
        found[pair.key] = None if kind is None else getattr(pair.value, kind)
    return found


def _parents(spans: dict[bytes, Span], span: Span) -> list[Span]:
    found = [span]
    while found[-1].parent_span_id in spans:
        found.append(spans[found[-1].parent_span_id])
    return found


def _path(spans: dict[bytes, Span], span: Span) -> list[str]:
    return [parent.name for parent in _parents(spans, span)]
