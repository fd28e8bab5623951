"""Output to the terminal or a pipe, and prompts. No other module of the command line writes to the standard streams.

Names, inputs, results, errors and answers of models come from tenants. Unescaped, they could move the cursor, set the
title or the clipboard of a terminal, or reverse the order in which text is read. Every such character is written as a
JSON escape (ESC as `\\u001b`), so that JSON stays JSON. Escaping is per character, so a sequence that is split over
two pieces of a stream is harmless, too. Colours are added after the escaping.
"""

from __future__ import annotations

import getpass
import re
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

DIM: Final = "2"
RED: Final = "31"
GREEN: Final = "32"
YELLOW: Final = "33"

# C0, DEL and C1; line separators; every character that is not visible or changes the direction of its neighbours
# (Unicode's Bidi_Control and Default_Ignorable_Code_Point); halves of surrogate pairs, which no encoding can carry.
# The joiners U+200C and U+200D and the variation selectors up to U+FE0F stay: Persian, Indic scripts and emoji need
# them, and they can neither move nor hide other text.
_UNSAFE: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\ud800-\udfff\U000e0000-\U000e0fff"
)
_IN_A_BLOCK: Final = re.compile(f"[{_UNSAFE}]")
_IN_A_LINE: Final = re.compile(f"[{_UNSAFE}\t\n]")
_SHORT: Final = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\b": "\\b", "\f": "\\f"}


def one_line(text: str) -> str:
    """Return the text as one line without control characters: line ends and tabs are escaped, too."""
    return _IN_A_LINE.sub(_escaped, text)


def block(text: str, indent: int = 0) -> str:
    """Return the text without control characters except line ends and tabs; all lines but the first are indented."""
    safe = _IN_A_BLOCK.sub(_escaped, text)
    return safe.replace("\n", "\n" + " " * indent) if indent else safe


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    if code > 0xFFFF:
        code -= 0x10000
        return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
    return f"\\u{code:04x}"


class Output:
    """A stream to which text is written without control characters, and with colours only if it is a terminal."""

    def __init__(self, stream: TextIO, *, colours: bool) -> None:
        self._stream = stream
        self._colours = colours

    def write(self, text: str, colour: str | None = None) -> None:
        """Write text that may have several lines."""
        safe = block(text)
        self._stream.write(f"\x1b[{colour}m{safe}\x1b[0m" if colour and self._colours else safe)

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()


def write_line(text: str = "", *, err: bool = False, label: tuple[str, str] | None = None) -> None:
    """Print one line, on stderr with `err`, after an optional label with its colour."""
    out = _output(err)
    if label is not None:
        out.write(*label)
    out.write(f"{one_line(text)}\n")
    out.flush()


def write_block(text: str, *, err: bool = False, indent: int = 0, end: str = "\n") -> None:
    """Print text that may have several lines: an answer, a document, or a message whose later lines are indented."""
    out = _output(err)
    out.write(f"{block(text, indent)}{end}")
    out.flush()


def write_cells(cells: list[str]) -> None:
    """Print a row of a table for programs: cells that are separated by tabs."""
    _output(err=False).write("\t".join(one_line(cell) for cell in cells) + "\n")


def _output(err: bool) -> Output:
    stream = sys.stderr if err else sys.stdout
    return Output(stream, colours=stream.isatty())


def read_line(prompt: str) -> str:
    """Ask for a line. The prompt is one line."""
    return input(one_line(prompt))


def read_hidden(prompt: str) -> str:
    """Ask for a line that is not shown while it is typed."""
    return getpass.getpass(one_line(prompt))


def styled(text: str, style: str = "") -> Text:
    """Return a line for a rich console."""
    from rich.text import Text

    return Text(one_line(text), style)


def console() -> Console:
    """Return a rich console on stdout that escapes what it renders and does not read markup in it."""
    # Without markup, `[/]` in a name is text; without emoji, `:x:` is. Tables and bars use these defaults, too.
    return _safe_console()(markup=False, emoji=False, highlight=False)


@cache
def _safe_console() -> type[Console]:
    """Return the console's class. Loading rich takes longer than most commands, so it is loaded when it is needed."""
    from rich.console import Console
    from rich.segment import Segment

    class SafeConsole(Console):
        def render(self, *arguments: Any, **options: Any) -> Any:
            """Escape text that a renderable has not escaped; what rich itself adds is marked as control."""
            for segment in super().render(*arguments, **options):
                yield segment if segment.control else Segment(block(segment.text), segment.style)

    return SafeConsole


class CurrentStderr:
    """Writes each line to the current standard error: loggers are cached, and a program may replace the stream."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()
