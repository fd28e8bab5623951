"""What the command line writes: no control characters from data, and all of it through one module."""

from __future__ import annotations

import ast
import json
import unicodedata
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import runlane.cli
from runlane.cli import terminal
from runlane.cli.output import print_json, print_table
from runlane.cli.terminal import DIM, Output, block, console, one_line, styled


def is_harmful(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(character) in {
        "LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI",
    }  # fmt: skip


@given(st.text())
def test_no_text_comes_out_with_control_characters(text: str) -> None:
    assert not any(map(is_harmful, one_line(text)))
    assert not any(map(is_harmful, block(text).replace("\n", "").replace("\t", "")))
    assert one_line(one_line(text)) == one_line(text)


@given(st.text(), st.integers(0, 50))
def test_two_pieces_are_as_harmless_as_the_whole(text: str, cut: int) -> None:
    assert block(text[:cut]) + block(text[cut:]) == block(text)


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"]))
    )
)
def test_json_stays_the_same_value(value: dict[str, str]) -> None:
    assert json.loads(block(json.dumps(value, ensure_ascii=False))) == value


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("\x1b[31m", "\\u001b[31m"),
        ("a\r\nb\tc\b", "a\\r\\nb\\tc\\b"),
        ("\x9b0m \x7f", "\\u009b0m \\u007f"),
        ("\u202eabc\u2069", "\\u202eabc\\u2069"),
        ("\U000e0041", "\\udb40\\udc41"),
        ("\ud800", "\\ud800"),
        ("Grüße, 日本語, 👨‍👩‍👧, می‌خواهم, ❤️", "Grüße, 日本語, 👨‍👩‍👧, می‌خواهم, ❤️"),
        ("[/][bold]", "[/][bold]"),
    ],
)
def test_only_control_characters_are_escaped(given: str, shown: str) -> None:
    assert one_line(given) == shown


def test_lines_of_a_block_are_indented() -> None:
    assert block("a\nb\tc\x1b", indent=2) == "a\n  b\tc\\u001b"


def test_colours_are_added_after_the_text_was_escaped() -> None:
    out = StringIO()
    Output(out, colours=True).write("a\x1b[0m", DIM)
    Output(out, colours=False).write("b", DIM)
    assert out.getvalue() == "\x1b[2ma\\u001b[0m\x1b[0mb"


def test_json_and_tables_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a\x9b": "\u202e\x7f"})
    assert capsys.readouterr().out == '{\n  "a\\u009b": "\\u202e\\u007f"\n}\n'
    print_table(["a", "b"], [["x\ty\nz", None]], "Nothing.")
    assert capsys.readouterr().out == "a\tb\nx\\ty\\nz\t-\n"


def test_tables_at_a_terminal_do_not_read_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    print_table(["name"], [["[/] [bold]x[/bold] :smile: \x1b]0;t\x07"]], "Nothing.")
    assert "[/] [bold]x[/bold] :smile: \\u001b]0;t\\u0007" in capsys.readouterr().out


def test_the_console_escapes_what_others_have_not(capsys: pytest.CaptureFixture[str]) -> None:
    console().print("a\x9b[/]", styled("b\x1b"))
    assert capsys.readouterr().out == "a\\u009b[/] b\\u001b\n"


def test_the_command_line_writes_in_one_module_only() -> None:
    """Other modules of it do not print, ask, or write to the standard streams themselves."""
    for file in Path(runlane.cli.__path__[0]).glob("*.py"):
        if file == Path(terminal.__file__):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in {"print", "input", "Console", "getpass.getpass", "typer.echo"}, file.name
                assert not called.startswith(("sys.stdout.write", "sys.stderr.write")), file.name
