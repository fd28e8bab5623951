"""The words of the project: what docs/contributing/language.md bans does not occur in finished code and pages.

Comments, docstrings and strings of Python files, the prose of Markdown pages outside of code, and `--help` are searched
for whole words. A root is added to FINISHED once its texts are rewritten.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from runlane.cli.commands import cli

ROOT = Path(__file__).parents[2]
FINISHED = (
    "src/runlane/addresses.py",
    "src/runlane/catalog",
    "src/runlane/definitions",
    "src/runlane/errors",
    "src/runlane/fairness.py",
    "src/runlane/offload.py",
    "src/runlane/outbound",
    "src/runlane/private_files.py",
    "src/runlane/redaction",
    "src/runlane/settings",
    "src/runlane/templates",
    "src/runlane/testing",
    "src/runlane/version.py",
    "docs/reference/settings.md",
    "docs/reference/testing.md",
    "tests",
)
# Groups of commands whose --help is rewritten; "" is the whole command line.
FINISHED_HELP: tuple[str, ...] = ()
# The guide and this module list the banned words.
GUIDE = ROOT / "docs" / "contributing" / "language.md"
BANNED = re.compile(
    r"\b(whoever|somebody|nobody|everybody|someone else|anybody"
    r"|tells?|told|hears?|heard"
    r"|anew|for ever|so many (?:seconds|times)|also if|news are|at work|in all(?=[.,;:)]|$)|goes? on|going on"
    r"|(?<!there )is no(?= (?:[a-z]|[A-Z]{2}))|counts as no|is none of them|a text|texts"
    r"|speaks? (?:like|the|its|their)|says so|passing (?:error|failure)s?|is there(?=[.,;:)]|$))(?!\w)",
    re.IGNORECASE,
)
# Conventional English and words of the wire that contain a banned one, with the reason.
ALLOWED = (
    re.compile(r"is no longer", re.IGNORECASE),  # conventional
    re.compile(r"is no (?:secret|limit)\b", re.IGNORECASE),  # "is not a secret" says the same
    re.compile(r'"nobody"'),  # an account of Unix systems
    re.compile(r"fit: it is no JSON"),  # the tool result for an answer that is not JSON
    re.compile(r"The script says so"),  # the default message of a fake provider's fault, which clients see
)


def banned_in(text: str) -> Iterator[tuple[int, str]]:
    """Return the line and the word of everything in a text that is banned."""
    for number, line in enumerate(text.splitlines(), 1):
        cleaned = line
        for allowed in ALLOWED:
            cleaned = allowed.sub(" ", cleaned)
        for found in BANNED.finditer(cleaned):
            yield number, found.group()


def python_prose(source: str) -> str:
    """Return the comments and strings of a module, each in its line; names and operators are left out."""
    lines = [""] * (source.count("\n") + 2)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_text = token.type in (tokenize.COMMENT, tokenize.STRING) or tokenize.tok_name[token.type] == "FSTRING_MIDDLE"
        if is_text:
            text = re.sub(r"\{[^{}]*\}", "_", token.string) if token.string[:1] == "f" else token.string
            for offset, line in enumerate(text.splitlines()):
                lines[token.start[0] + offset - 1] += f" {line}"
    return "\n".join(lines)


def markdown_prose(page: str) -> str:
    """Return a page with its fenced blocks and code spans blanked, line by line."""
    fenced = re.sub(
        r"^```.*?^```", lambda block: "\n" * block.group().count("\n"), page, flags=re.MULTILINE | re.DOTALL
    )
    return re.sub(r"`[^`\n]*`", " ", fenced)


def files_of(root: str) -> list[Path]:
    path = ROOT / root
    files = [path] if path.is_file() else [*path.rglob("*.py"), *path.rglob("*.md")]
    return sorted(file for file in files if file not in (GUIDE, Path(__file__)))


@pytest.mark.parametrize("root", FINISHED)
def test_finished_code_and_pages_have_no_banned_words(root: str) -> None:
    files = files_of(root)
    assert files
    found = [
        f"{file.relative_to(ROOT)}:{number}: {word}"
        for file in files
        for number, word in banned_in(
            python_prose(file.read_text()) if file.suffix == ".py" else markdown_prose(file.read_text())
        )
    ]
    assert not found, "\n".join(found)


def help_texts() -> Iterator[tuple[str, str]]:
    """Return the help of every command and of its parameters, by the path of the command."""
    waiting = [("", typer.main.get_command(cli))]
    while waiting:
        path, command = waiting.pop()
        parameters = (str(getattr(parameter, "help", None) or "") for parameter in command.params)
        yield path, "\n".join([command.help or "", *parameters])
        waiting += [(f"{path} {name}".strip(), inner) for name, inner in getattr(command, "commands", {}).items()]


def test_finished_help_has_no_banned_words() -> None:
    texts = list(help_texts())
    assert len(texts) > 20
    found = [
        f"runlane {path} --help: {word}"
        for path, text in texts
        if any(f"{path} ".startswith(f"{group} ".lstrip()) for group in FINISHED_HELP)
        for _, word in banned_in(text)
    ]
    assert not found, "\n".join(found)


def test_the_search_finds_words_in_comments_strings_and_prose() -> None:
    module = 'told = 1  # Nobody is told.\n"""It is no file."""\nname = f"a text {told}"\n'
    assert list(banned_in(python_prose(module))) == [(1, "Nobody"), (1, "told"), (2, "is no"), (3, "a text")]
    assert list(banned_in(markdown_prose("```sh\ntold\n```\n`told` anew\n"))) == [(4, "anew")]
    assert not list(banned_in("It is no longer needed."))
