"""Observability: metrics, tracing, log context, and one log line per outage."""
