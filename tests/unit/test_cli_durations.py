"""Options for time spans take a number of seconds, or a number with a unit."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from runlane.cli.options import Timeout

app = typer.Typer()


@app.command()
def watch(timeout: Timeout = None) -> None:
    print(timeout)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("90s", 90.0), ("0.5", 0.5), ("250ms", 0.25), ("1.5m", 90.0), ("2 h", 7200.0), ("7d", 604800.0)],
)
def test_a_duration_has_a_unit_or_is_in_seconds(text: str, seconds: float) -> None:
    assert float(CliRunner().invoke(app, ["--timeout", text]).output) == seconds


@pytest.mark.parametrize("text", ["", "-5", "5x", "m", "1h30m", "nan", "inf", "1e3"])
def test_other_text_is_refused_with_examples(text: str) -> None:
    result = CliRunner().invoke(app, [f"--timeout={text}"])
    assert result.exit_code == 2
    assert "not a valid duration" in result.output
