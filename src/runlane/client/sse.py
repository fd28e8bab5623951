"""Parse server-sent events from bytes that arrive in chunks of any size.

The parser follows the standard: lines end with CR, LF or both, and a chunk may end anywhere, even inside a character. A
frame without the empty line at its end is discarded when the connection ends, so a truncated frame is never used.
"""

from __future__ import annotations

from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"
_COLON = ord(":")


class SseFrame(NamedTuple):
    """One server-sent event. `id` is the id in this frame, or None."""

    id: str | None
    event: str
    data: str


class SseParser:
    """Parses the chunks of one connection."""

    def __init__(self) -> None:
        self.retry_ms: int | None = None
        self._pieces: list[bytes] = []
        self._after_cr = False
        self._at_start = True
        self._reset()

    def feed(self, chunk: bytes) -> list[SseFrame]:
        """Return the frames that these bytes complete."""
        if self._after_cr and chunk:
            # The CR has already ended a line. The LF that belongs to it must not end another line.
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        frames: list[SseFrame] = []
        for piece in chunk.splitlines(keepends=True):
            self._pieces.append(piece)
            if piece.endswith((b"\n", b"\r")):
                line = b"".join(self._pieces).rstrip(b"\r\n")
                self._pieces.clear()
                if self._at_start:
                    self._at_start = False
                    line = line.removeprefix(_BOM)
                if line:
                    self._take(line)
                elif (frame := self._finish()) is not None:
                    frames.append(frame)
        if chunk.endswith(b"\r"):
            self._after_cr = True
        return frames

    def _take(self, line: bytes) -> None:
        if line[0] == _COLON:
            return
        name, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode("utf-8", "replace")
        match name:
            case b"data":
                self._data.append(text)
            case b"id" if "\x00" not in text:
                self._id = text
            case b"event":
                self._event = text
            case b"retry" if text.isascii() and text.isdigit():
                self.retry_ms = int(text)
            case _:
                pass

    def _finish(self) -> SseFrame | None:
        frame = SseFrame(self._id, self._event or "message", "\n".join(self._data)) if self._data else None
        self._reset()
        return frame

    def _reset(self) -> None:
        self._id: str | None = None
        self._event = ""
        self._data: list[str] = []
