"""Publish an answer while it arrives: each piece with its offset, redacted, and not too often.

A provider sends a piece per token, hundreds per second, and each would cost a message to every reader. The first piece
is sent at once; those that follow within TOGETHER_SECONDS are sent together.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from runlane.llm.models import Delta, ModelDelta
from runlane.redaction import RedactedStream, Redactor

# Too short to be noticed. Pieces that arrive more slowly are sent one by one.
TOGETHER_SECONDS: Final = 0.02


class DeltaStream:
    """Publishes the pieces of one answer within a `with` block; at its end everything has been sent."""

    def __init__(self, delta: Delta, answer: str, redactor: Redactor) -> None:
        self._delta = delta
        self._answer = answer
        self._redactor = redactor
        self._streams: dict[tuple[str, str | None], tuple[ModelDelta, RedactedStream]] = {}
        self._written: dict[tuple[str, str | None], int] = {}
        self._last: tuple[str, str | None] | None = None
        self._first: ModelDelta | None = None
        self._texts: list[str] = []
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            # Text that was held back because it might have been the beginning of a secret.
            for piece, stream in self._streams.values():
                self._add(piece, stream.rest())
        if self._timer is not None:
            self._timer.cancel()
        self._send()

    def __call__(self, piece: ModelDelta) -> None:
        kind = (piece.kind, piece.call_id)
        if self._last not in (None, kind):
            # Readers print pieces as they arrive, so the end of a thought must not follow the answer.
            before, held = self._streams[self._last]
            self._add(before, held.pause())
        self._last = kind
        _, stream = self._streams.setdefault(kind, (piece, RedactedStream(self._redactor)))
        self._add(piece, stream.feed(piece.text))
        if self._timer is None and self._texts:
            self._send()
            self._wait()

    def _add(self, piece: ModelDelta, text: str) -> None:
        if not text:
            return
        if self._first is None or (self._first.kind, self._first.call_id) != (piece.kind, piece.call_id):
            self._send()
            self._first = piece
        self._texts.append(text)

    def _send(self) -> None:
        if self._first is None:
            return
        piece, text = self._first, "".join(self._texts)
        self._first = None
        self._texts.clear()
        kind = (piece.kind, piece.call_id)
        offset = self._written.get(kind, 0)
        self._written[kind] = offset + len(text)
        self._delta(replace(piece, text=text, answer=self._answer, offset=offset))

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TOGETHER_SECONDS, self._waited)

    def _waited(self) -> None:
        self._timer = None
        if self._texts:
            self._send()
            self._wait()
