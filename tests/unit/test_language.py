"""The language of the project: what docs/contributing/language.md bans does not occur in code and pages.

Comments, docstrings and strings of Python files, the prose of Markdown pages outside of code, and `--help` are searched
for whole words.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from runlane.cli.commands import cli, load_command

ROOT = Path(__file__).parents[2]
SEARCHED = ("src/runlane", "docs", "examples", "bench", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "tests", "ui")
# The guide and this module list the banned words.
GUIDE = ROOT / "docs" / "contributing" / "language.md"
BANNED = re.compile(
    r"\b(whoever|somebody|nobody|everybody|someone else|anybody"
    r"|tells?|told|hears?|heard"
    r"|anew|for ever|so many (?:seconds|times)|also if|news are|at work|in all(?=[.,;:)]|$)|goes? on|going on"
    r"|(?<!there )is no(?= (?:[a-z]|[A-Z]{2}))|counts as no|is none of them|a text|texts"
    r"|speaks? (?:like|the|its|their)|says so|passing (?:error|failure)s?|is there(?=[.,;:)]|$)"
    r"|under way|the page before|what became of|became of it|asking (?:again|twice)|last words|dut(?:y|ies)"
    r"|lets? (?:\w+ ){1,3}go(?: on)?(?=[.,;:)]|$)|(?:runs?|entries|keys?) that fits?|one's own"
    r"|looks? why|choose of|would pass that|(?:is|are) looked for)(?!\w)",
    re.IGNORECASE,
)
# Conventional English and words of the wire that contain a banned one, with the reason.
ALLOWED = (
    re.compile(r"is no longer", re.IGNORECASE),  # conventional
    re.compile(r"is no (?:secret|limit)\b", re.IGNORECASE),  # "is not a secret" says the same
    re.compile(r"It's a Secret to Everybody"),  # the secret in GitHub's documentation of signatures
    re.compile(r'"nobody"'),  # an account of Unix systems
    re.compile(r'"duty"'),  # part of the keys of advisory locks, which processes of different versions share
    re.compile(r"The script says so"),  # the default message of a fake provider's fault, which clients see
)


def banned_in(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the word of each banned word."""
    for number, line in enumerate(text.splitlines(), 1):
        cleaned = line
        for allowed in ALLOWED:
            cleaned = allowed.sub(" ", cleaned)
        for found in BANNED.finditer(cleaned):
            yield number, found.group()


def python_prose(source: str) -> str:
    """Return the comments and strings of a module, each in its line, without names and operators."""
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


def prose_of(file: Path) -> str:
    """Return what is searched of a file; of TypeScript all of it."""
    source = file.read_text()
    if file.suffix == ".py":
        return python_prose(source)
    return markdown_prose(source) if file.suffix == ".md" else source


def files_of(root: str) -> list[Path]:
    path = ROOT / root
    kinds = ("*.py", "*.md", "*.ts", "*.tsx", "*.mjs")
    files = [path] if path.is_file() else [file for kind in kinds for file in path.rglob(kind)]
    foreign = ("node_modules", "schema.d.ts")
    skipped = (GUIDE, Path(__file__))
    return sorted(file for file in files if file not in skipped and not any(name in file.parts for name in foreign))


@pytest.mark.parametrize("root", SEARCHED)
def test_code_and_pages_have_no_banned_words(root: str) -> None:
    files = files_of(root)
    assert files
    found = [
        f"{file.relative_to(ROOT)}:{number}: {word}" for file in files for number, word in banned_in(prose_of(file))
    ]
    assert not found, "\n".join(found)


def help_pages() -> Iterator[tuple[str, str]]:
    """Yield the path of each command with the help of the command and its parameters."""
    root = typer.main.get_group(cli)
    waiting: list[tuple[str, Any]] = [("", root), *((name, load_command(name)) for name in root.commands)]
    while waiting:
        path, command = waiting.pop()
        parameters = (str(getattr(parameter, "help", None) or "") for parameter in command.params)
        yield path, "\n".join([command.short_help or "", command.help or "", *parameters])
        inner = {} if command is root else getattr(command, "commands", {})
        waiting += [(f"{path} {name}", child) for name, child in inner.items()]


def test_help_has_no_banned_words() -> None:
    pages = list(help_pages())
    assert len(pages) > 60
    found = [f"runlane {path} --help: {word}" for path, page in pages for _, word in banned_in(page)]
    assert not found, "\n".join(found)


def test_the_search_finds_words_in_comments_strings_and_prose() -> None:
    module = 'told = 1  # Nobody is told.\n"""It is no file."""\nname = f"a text {told}"\n'
    assert list(banned_in(python_prose(module))) == [(1, "Nobody"), (1, "told"), (2, "is no"), (3, "a text")]
    assert list(banned_in(markdown_prose("```sh\ntold\n```\n`told` anew\n"))) == [(4, "anew")]
    assert not list(banned_in("It is no longer needed."))
