"""Redaction: secret values are replaced in logs, traces, events and results.

A `Redactor` holds the values that one attempt of a run has used. Only what this attempt stores or publishes is compared
with them, so the output of a tenant never depends on a secret of another tenant. `LOGS` holds the values of the whole
process: passwords and keys of its settings, and secrets of every tenant. Only log lines and traces are compared with
it, and nothing that a tenant or a caller over HTTP can read.

Redaction is a second line of defence: a value that was changed first (reversed, cut, hashed) is not found.
"""

from __future__ import annotations

from runlane.redaction.forms import MIN_CHARACTERS, MIN_DIFFERENT, REDACTED, is_hidable
from runlane.redaction.logs import LOGS, LogRedactor
from runlane.redaction.redactor import Redactor
from runlane.redaction.stream import RedactedStream

__all__ = [
    "LOGS",
    "MIN_CHARACTERS",
    "MIN_DIFFERENT",
    "REDACTED",
    "LogRedactor",
    "RedactedStream",
    "Redactor",
    "is_hidable",
]
