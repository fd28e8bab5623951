"""Fingerprints of failures: equal for runs that failed for the same reason, however their data differs.

A fingerprint is the hash of the target, the step, the code and what is left of the message without its data; for Python
tasks also of the functions in which the exception was raised. It is stored with the version of this rule, so that the
rule may change without comparing old fingerprints with new ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

import orjson

FINGERPRINT_VERSION: Final = 1
MAX_CHARACTERS: Final = 300
# The rest of a message is not read, so that a long message costs no more than a short one.
_MAX_READ: Final = 4 * MAX_CHARACTERS
_FRAMES: Final = 3

_DATA: Final = (
    # A quotation without an end was cut off.
    (re.compile(r'"[^"]*(?:"|$)'), "<text>"),
    (re.compile(r"(?<!\w)'[^']*(?:'(?!\w)|$)"), "<text>"),
    (re.compile(r"`[^`]*(?:`|$)"), "<text>"),
    (re.compile(r"[^\s<>()\[\],;]+@[^\s<>()\[\],;]+"), "<email>"),
    (re.compile(r"(?<![\w:])[0-9A-Fa-f:]*::[0-9A-Fa-f:]*(?![\w:])"), "#"),
    (re.compile(r"\b[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\b"), "#"),
    (re.compile(r"\b(?:\w*_)?[0-9A-Fa-f]{8,}\b"), "#"),
    # A word with a digit: numbers, ids, hex, times.
    (re.compile(r"\w*\d\w*"), "#"),
    # 1.5, 10:30:00+02:00, 192.0.2.1:80, -3, 2026-01-31 12:00
    (re.compile(r"[-+]?#(?:[-+.:,/%]*#|\s+#)*%?"), "#"),
)
_FRAME: Final = re.compile(r'File "([^"\n]+)", line \d+, in ([^\n]+)')
_BLOCK: Final = "Traceback (most recent call last)"
_FOREIGN: Final = ("/site-packages/", "/dist-packages/", "/lib/python3", "/runlane/", "<frozen")


def fingerprint(target: str, step_id: str | None, error: Mapping[str, Any]) -> str:
    """Return the fingerprint of a failure. `error` is the stored error of a run."""
    parts = [
        FINGERPRINT_VERSION,
        target,
        step_id or "",
        code_of(error),
        normalized(str(error.get("message") or "")),
        own_frames(str(error.get("traceback") or "")),
    ]
    return sha256(orjson.dumps(parts)).hexdigest()


def code_of(error: Mapping[str, Any]) -> str:
    """Return the code of a stored error: of a step, or the type of an exception."""
    return str(error.get("code") or error.get("type") or "unknown")


def normalized(message: str) -> str:
    """Return a message without numbers, ids, addresses, times and quoted strings, at most 300 characters long."""
    text = " ".join(message[:_MAX_READ].encode("utf-8", "replace").decode().split())
    for pattern, name in _DATA:
        text = pattern.sub(name, text)
    return text[:MAX_CHARACTERS]


def own_frames(traceback: str) -> list[str]:
    """Return the innermost functions of the user's own code in a traceback, without line numbers."""
    last = traceback[traceback.rfind(_BLOCK) :] if _BLOCK in traceback else traceback
    own: list[str] = []
    for path, function in _FRAME.findall(last):
        plain = path.replace("\\", "/")
        if not any(mark in plain for mark in _FOREIGN):
            own.append(f"{plain.rsplit('/', 1)[-1]}:{function.strip()}")
    return own[-_FRAMES:]
