"""Tracing: one trace from the HTTP request through the queue to each attempt, its calls and its webhooks.

A run stores the W3C traceparent of the request that started it; its attempts and webhooks continue that trace. Without
RUNLANE_OTLP_ENDPOINT, OpenTelemetry is not imported and a span costs one comparison. A traceparent of the caller is
stored even then, so that workers with tracing can continue it.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Literal

from runlane.extras import requires_extra
from runlane.redaction import LOGS
from runlane.settings import Settings
from runlane.version import VERSION

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_OFF: Final = nullcontext(None)

# The OpenTelemetry provider of this process; None if tracing is off. Its types must not be imported here.
_provider: Any = None


def start_tracing(settings: Settings, service: str) -> None:
    """Start to export spans if the settings contain an endpoint. Call it once per process."""
    global _provider  # noqa: PLW0603 - a process has one exporter, like its log
    if settings.otlp_endpoint is None or _provider is not None:
        return
    with requires_extra("otel", "RUNLANE_OTLP_ENDPOINT"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": service, "service.version": VERSION}))
    endpoint = f"{settings.otlp_endpoint.rstrip('/')}/v1/traces"
    provider.add_span_processor(BatchSpanProcessor(clean_exporter(OTLPSpanExporter(endpoint=endpoint))))
    _provider = provider


def clean_exporter(inner: Any) -> Any:
    """Return an exporter that redacts secrets in all spans, including FastAPI's and their exceptions."""
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Status

    def cleaned(span: ReadableSpan) -> ReadableSpan:
        events = [Event(LOGS.clean(event.name), _plain(event.attributes), event.timestamp) for event in span.events]
        description = span.status.description
        return ReadableSpan(
            name=LOGS.clean(span.name),
            context=span.context,
            parent=span.parent,
            resource=span.resource,
            attributes=_plain(span.attributes),
            events=events,
            links=span.links,
            kind=span.kind,
            status=Status(span.status.status_code, None if description is None else LOGS.clean(description)),
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=span.instrumentation_scope,
        )

    class Clean(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> Any:
            return inner.export([cleaned(span) for span in spans] if not LOGS.is_empty else spans)

        def shutdown(self) -> None:
            inner.shutdown()

        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            return inner.force_flush(timeout_millis)

    return Clean()


def _plain(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    return LOGS.clean_value(dict(attributes or {}))


def stop_tracing() -> None:
    """Send the remaining spans. Safe to call twice."""
    global _provider
    provider, _provider = _provider, None
    if provider is not None:
        provider.shutdown()


def provider() -> Any:
    """Return the provider of this process; None if tracing is off."""
    return _provider


def valid_parent(traceparent: str | None) -> str | None:
    """Return a traceparent if it is valid by W3C Trace Context, else None, which starts a new trace."""
    if traceparent is None or len(traceparent) > 256:
        return None
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    version, trace_id, span_id, _, more = found.groups()
    if version == "ff" or (version == "00" and more) or not trace_id.strip("0") or not span_id.strip("0"):
        return None
    return traceparent[:55]


def span(name: str, attributes: Mapping[str, Any], parent: str | None = None) -> AbstractContextManager[Any]:
    """Return a span under the given parent, or else under the current span."""
    if _provider is None:
        return _OFF
    return _span(name, parent, attributes)


@contextmanager
def quiet_span(
    name: str,
    attributes: Mapping[str, Any],
    kind: Literal["internal", "client"] = "internal",
    parent: str | None = None,
) -> Generator[Any]:
    """Return a span, or None if tracing is off. A failure is recorded by its code, without message and traceback.

    An exception whose `code` is None is not a failure, such as the suspension of a step. `parent` is a traceparent.
    Without it, the parent is the current span.
    """
    if _provider is None:
        yield None
        return
    from opentelemetry.trace import SpanKind

    with _started(name, attributes, parent, SpanKind[kind.upper()], record_exceptions=False) as span:
        try:
            yield span
        except BaseException as error:
            code = getattr(error, "code", type(error).__name__)
            if code is not None:
                mark_failed(span, str(code))
            raise


def mark_failed(started: Any, code: str) -> None:
    """Mark a span as failed with a code. Do nothing without a span."""
    if started is None:
        return
    from opentelemetry.trace import StatusCode

    started.set_attribute("error.type", code)
    started.set_status(StatusCode.ERROR)


def set_attributes(started: Any, attributes: Mapping[str, str]) -> None:
    """Set the outcome as attributes of a span. The attribute `error` marks the span as failed."""
    from opentelemetry.trace import StatusCode

    for name, value in attributes.items():
        started.set_attribute(f"runlane.{name}", value)
    if "error" in attributes:
        started.set_status(StatusCode.ERROR, attributes["error"])


def current_parent() -> str | None:
    """Return the current span as a traceparent for another process; None if tracing is off."""
    if _provider is None:
        return None
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


@contextmanager
def _span(name: str, parent: str | None, attributes: Mapping[str, Any]) -> Generator[Any]:
    from opentelemetry.trace import SpanKind

    with _started(name, attributes, parent, SpanKind.INTERNAL, record_exceptions=True) as started:
        yield started


def _started(
    name: str, attributes: Mapping[str, Any], parent: str | None, kind: Any, *, record_exceptions: bool
) -> AbstractContextManager[Any]:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    context = None if parent is None else TraceContextTextMapPropagator().extract({"traceparent": parent})
    return _provider.get_tracer("runlane", VERSION).start_as_current_span(
        name,
        context=context,
        kind=kind,
        attributes={key: value for key, value in attributes.items() if value is not None},
        record_exception=record_exceptions,
        set_status_on_exception=record_exceptions,
    )
