"""Observability: metrics, tracing, the context of log lines, and one log line per outage."""
