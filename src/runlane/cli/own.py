"""The app of a command that works on the database itself: no tasks, and nothing on stdout but the command's answer."""

from __future__ import annotations

from runlane.app import App
from runlane.cli.terminal import write_line
from runlane.resources import report_unknown_settings


def own_app() -> App:
    """An app for one command. What its parts log goes to stderr: stdout may be JSON that a program reads."""
    # A log line would go to stdout, where a program reads the answer.
    report_unknown_settings(_warn)
    app = App()
    if app.settings.redis_url is not None:
        # Only the connection to Redis logs as a matter of course, and logging takes long to load.
        from runlane.cli.process import configure_logs

        configure_logs(dev=False, quiet=True)
    return app


def _warn(name: str, hint: str) -> None:
    write_line(f"Warning: {name} is not a known setting and is ignored{hint}.", err=True)
