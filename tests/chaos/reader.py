"""A reader of a run's stream over a plain socket, which keeps every byte that it receives.

After a cut it reconnects to any replica, with the last number that it has. It checks nothing: tests compare what it
holds at the end with the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

API = "/api/v2"


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """A frame with a number, and its data as it came."""

    seq: int
    data: bytes

    @property
    def type(self) -> str:
        return self.data.removeprefix(b'{"type":"').partition(b'"')[0].decode()


@dataclass(slots=True)
class Reader:
    """Reads one run from after a number on, and keeps what it reads."""

    run_id: str
    after: int = 0
    received: list[ReceivedEvent] = field(default_factory=list[ReceivedEvent])
    unnumbered: list[bytes] = field(default_factory=list[bytes])
    # The data of both, in the order in which they came.
    frames: list[bytes] = field(default_factory=list[bytes])
    connections: int = 0
    # The server ended the stream in order, after its last frame.
    ended: bool = False

    @property
    def done(self) -> bool:
        return self.ended and bool(self.received) and self.received[-1].type == "done"

    @property
    def lines(self) -> list[tuple[int, bytes]]:
        return [(event.seq, event.data) for event in self.received]

    async def follow(self, urls: Sequence[str], chance: random.Random, longest_seconds: float = 2.0) -> None:
        """Read to the end of the run, over connections that are cut at some moment, each to another server."""
        url = ""
        while not self.done:
            url = chance.choice([other for other in urls if other != url] or urls)
            with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
                await self.read(url, chance.uniform(0, longest_seconds))

    async def read(self, url: str, seconds: float | None = None) -> None:
        """Read one connection until the server ends it, or for `seconds` from the beginning of the answer.

        Not from the connect: readers that left a slow server and reconnected at once would make it even slower.
        """
        target = urlsplit(url)
        incoming, outgoing = await asyncio.open_connection(target.hostname, target.port)
        self.connections += 1
        try:
            known = self.received[-1].seq if self.received else self.after
            resume = f"last-event-id: {known}\r\n" if known else ""
            path = f"{API}/runs/{self.run_id}/stream"
            outgoing.write(f"GET {path} HTTP/1.1\r\nhost: {target.netloc}\r\n{resume}\r\n".encode())
            head = await incoming.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise AssertionError(f"{head!r} {await incoming.read(2000)!r}")
            rest = b""
            async with asyncio.timeout(seconds):
                while size := int((await incoming.readuntil(b"\r\n")).strip(), 16):
                    rest = self._take(rest + (await incoming.readexactly(size + 2))[:-2])
            self.ended = True
        finally:
            outgoing.transport.abort()

    def _take(self, waiting: bytes) -> bytes:
        """Keep every whole frame; return the beginning of the next one."""
        *frames, rest = waiting.split(b"\n\n")
        for frame in frames:
            if frame.startswith(b"id: "):
                number, data = frame.split(b"\n", 1)
                self.received.append(ReceivedEvent(int(number.removeprefix(b"id: ")), data.removeprefix(b"data: ")))
                self.frames.append(self.received[-1].data)
            elif frame.startswith(b"data: "):
                self.unnumbered.append(frame.removeprefix(b"data: "))
                self.frames.append(self.unnumbered[-1])
        return rest


def wire(row: dict[str, Any]) -> tuple[int, bytes]:
    """Return what a reader must hold of a stored event, built from its row without the code of the server."""
    at = datetime.fromtimestamp(row["at"] // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    head = (
        f'{{"type":"{row["type"]}","seq":{row["seq"]},"run_id":"{row["run_id"]}","attempt":{row["attempt"]},'
        f'"at":"{at}.{row["at"] % 1_000_000:06}Z"'
    )
    own = row["data"].removeprefix("{")
    return row["seq"], (head + (own if own == "}" else f",{own}")).encode()
