"""Logs of the processes: JSON lines, or text for a person at a terminal; redacted, without control characters."""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator, MutableMapping
from contextlib import contextmanager
from io import StringIO
from typing import Any, TextIO, cast

from runlane.cli.terminal import CurrentStderr, block, one_line
from runlane.redaction import LOGS


@contextmanager
def _uninstalled(*names: str) -> Generator[None]:
    """Make packages look as if they were not installed. Those that are imported already stay."""
    hidden = [name for name in names if name not in sys.modules]
    modules = cast("dict[str, Any]", sys.modules)
    # An import of a name whose module is None raises ModuleNotFoundError.
    modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            del modules[name]


# structlog imports these if they are installed. They take 5 MB and half of its import time, and no log line uses them.
with _uninstalled("greenlet", "rich"):
    import structlog


def configure_logs(*, dev: bool, quiet: bool = False) -> None:
    """Log JSON lines, or readable text with `dev` or on a terminal. Lines carry the id of their run.

    `quiet` logs warnings and errors only, for short commands.
    """
    renderers: list[Any] = (
        [
            _without_control_characters,
            # Tracebacks with the values of variables take seconds, which delays every run, and they show inputs.
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_safe_traceback),
        ]
        if dev or sys.stderr.isatty()
        else [structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([] if dev else [structlog.processors.format_exc_info]),
            *renderers,
            _without_secrets,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING if quiet else logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", CurrentStderr())),
        cache_logger_on_first_use=True,
    )
    # Libraries log here, such as the traceback of a request that failed.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_CleanFormatter("%(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


def _without_control_characters(logger: Any, method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape the fields of a log line before colours are added to it."""
    return {one_line(name): _safe_field(name, value) for name, value in fields.items()}


def _safe_field(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return block(value) if name in ("exception", "stack") else one_line(value)
    # The console formats these with repr(), which escapes the strings inside.
    if name == "exc_info" or value is None or isinstance(value, int | float | list | tuple | dict):
        return value  # pyright: ignore[reportUnknownVariableType]
    return one_line(repr(value))


def _safe_traceback(out: TextIO, exc_info: Any) -> None:
    text = StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    out.write(block(text.getvalue()))


def _without_secrets(logger: Any, method: str, line: Any) -> Any:
    return LOGS.clean_json(line) if isinstance(line, str) else line


class _CleanFormatter(logging.Formatter):
    """Redacts and escapes the log lines of libraries."""

    def format(self, record: logging.LogRecord) -> str:
        return block(LOGS.clean(super().format(record)))
