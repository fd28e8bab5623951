"""Decompress gzip responses in bounded pieces.

A body may consist of several members (RFC 1952), which are decompressed one after another. Bytes after a member that do
not begin another member are ignored, as browsers and GNU gzip do; the common case is zero padding. A truncated or
damaged member is an error. Each step processes at most one window of input or one piece of output, so the caller can
stop or yield to the event loop after each piece.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

_GZIP: Final = zlib.MAX_WBITS | 16
_MAGIC: Final = b"\x1f\x8b"
# zlib copies the rest of its input when a member ends or a piece is full. A small window limits these copies.
# Otherwise the cost of a body with many empty members would grow with the square of its size.
_WINDOW_BYTES: Final = 4 * 1024
_PIECE_BYTES: Final = 64 * 1024


class DamagedGzip(Exception):
    """The body is not gzip, is damaged, or is truncated."""


class Gunzip:
    """Decompresses one body. Call feed() for each piece that arrives, then finish()."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP)
        # Bytes after a member that are too few to decide whether another member follows.
        self._between: bytes | None = None
        self._begun = False
        self._trailing = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Decompress the next bytes. Yield after each bounded amount of work, even if the piece is empty.

        Raise DamagedGzip if the body is not valid.
        """
        view = memoryview(data)
        for start in range(0, len(view), _WINDOW_BYTES):
            if self._trailing:
                return
            yield from self._window(bytes(view[start : start + _WINDOW_BYTES]))

    def finish(self) -> None:
        """Raise DamagedGzip unless the body has ended at the end of a member. An empty body is valid."""
        cut_off = self._begun and not self._member.eof
        # Padding is ignored, but the first byte of another member is a truncated member.
        if cut_off or self._between:
            raise DamagedGzip

    def _window(self, data: bytes) -> Iterator[bytes]:
        self._begun = True
        while True:
            if self._member.eof:
                rest = self._next_member(data)
                if rest is None:
                    return
                data = rest
            try:
                piece = self._member.decompress(data, _PIECE_BYTES)
            except zlib.error:
                raise DamagedGzip from None
            yield piece
            if self._member.eof:
                data = self._member.unused_data
                continue
            data = self._member.unconsumed_tail
            # zlib may hold back output even when it has consumed all of its input.
            if not data and len(piece) < _PIECE_BYTES:
                return

    def _next_member(self, data: bytes) -> bytes | None:
        """Begin the next member and return its first bytes; None if no member follows, or more bytes are needed."""
        data = (self._between or b"") + data
        self._between = None
        if not data:
            return None
        if data.startswith(_MAGIC):
            self._member = zlib.decompressobj(_GZIP)
            return data
        if _MAGIC.startswith(data):
            self._between = data
        else:
            self._trailing = True
        return None
