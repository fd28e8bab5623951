"""Hostile answers against the outbound client: each ends within its limits, and the event loop stays free.

The client runs in a thread with an event loop of its own, so that a client that never returns fails the test instead
of stopping it. A probe task on the client's loop measures the processor time that the loop's thread used between two of
its turns: what the loop was blocked for, whatever else the machine does.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import random
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from runlane.errors import OutboundError, OutboundTimeout, OutboundTooLarge, OutboundUnreachable
from runlane.outbound import Outbound, OutboundLimits
from runlane.settings import load_settings
from tests.integration.http_server import Answering, Request, Writer, plain, serving

MAX_LATE_SECONDS = 0.5
PATIENCE_SECONDS = 60.0
LIMITS = OutboundLimits(connect_seconds=10, read_seconds=10, total_seconds=10, max_body_bytes=1024 * 1024)
SHORT = OutboundLimits(connect_seconds=10, read_seconds=10, total_seconds=1, max_body_bytes=1024 * 1024)
GZIPPED = {"content-encoding": "gzip"}
ENDED = (OutboundTooLarge, OutboundTimeout)

_noise = random.Random(7)
NOISE = _noise.randbytes(200_000)
TEXT = b'{"city": "Bern", "numbers": [1, 2, 3]}' * 50
MEMBER = gzip.compress(TEXT, mtime=0)
EMPTY_MEMBER = gzip.compress(b"", mtime=0)
BOMB = gzip.compress(b"\0" * 50_000_000, mtime=0)


def packed(body: bytes, **headers: str) -> Answering:
    return plain(body, headers={**GZIPPED, **headers})


def damaged(body: bytes, at: int) -> bytes:
    return body[:at] + bytes([body[at] ^ 0xFF]) + body[at + 1 :]


def in_pieces(body: bytes, size: int) -> Answering:
    """Return the packed body in network pieces of this size."""

    async def answer(_request: Request, writer: Writer) -> None:
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {len(body)}\r\n\r\n".encode())
        for start in range(0, len(body), size):
            writer.write(body[start : start + size])
            await writer.drain()
            await asyncio.sleep(0)

    return answer


def chunked(body: bytes, size: int, extension: bytes = b"", head: bytes = b"") -> Answering:
    """Return the body in chunks of this size, all of them with the extension."""

    async def answer(_request: Request, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n" + head + b"\r\n")
        for start in range(0, len(body), size):
            piece = body[start : start + size]
            writer.write(b"%x%s\r\n%s\r\n" % (len(piece), extension, piece))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    return answer


def endless(head: bytes, *pieces: bytes, pause_seconds: float = 0.0) -> Answering:
    """Return the head, then the pieces, of which the last is repeated until the client goes away."""

    async def answer(_request: Request, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n" + head)
        for piece in itertools.chain(pieces[:-1], itertools.repeat(pieces[-1])):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_seconds)

    return answer


def members_of(content: bytes, size: int) -> bytes:
    return b"".join(gzip.compress(content[start : start + size]) for start in range(0, len(content), size))


def gzip_header_with_name(length: int) -> bytes:
    return b"\x1f\x8b\x08\x08\0\0\0\0\0\xff" + b"n" * length


def empty_blocks(count: int) -> bytes:
    """A member of deflate blocks that unpack to nothing."""
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"\0\0\0\xff\xff" * count


def two_codes() -> bytes:
    """A valid member with many tiny dynamic blocks, which are the slowest to unpack."""
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    parts = [packer.compress(NOISE[n : n + 3]) + packer.flush(zlib.Z_FULL_FLUSH) for n in range(0, 30_000, 3)]
    return b"".join(parts) + packer.flush()


ON_GZIP = b"content-encoding: gzip\r\n\r\n"
PLAIN = b"\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"

# Answers that are legal, however odd, and what they unpack to.
LEGAL: dict[str, tuple[Answering, bytes]] = {
    "one member": (packed(MEMBER), TEXT),
    "two members": (packed(MEMBER + MEMBER), TEXT * 2),
    "two members byte by byte": (in_pieces(MEMBER + MEMBER, 1), TEXT * 2),
    "two members, cut inside the second head": (in_pieces(MEMBER + MEMBER, len(MEMBER) + 1), TEXT * 2),
    "members of noise": (
        packed(b"".join(gzip.compress(NOISE[n : n + 999]) for n in range(0, 99_900, 999))),
        NOISE[:99_900],
    ),
    "a member between empty ones": (packed(EMPTY_MEMBER + MEMBER + EMPTY_MEMBER), TEXT),
    "many empty members": (packed(EMPTY_MEMBER * 40_000), b""),
    "many members of one byte": (packed(gzip.compress(b"x") * 40_000), b"x" * 40_000),
    "empty member": (packed(EMPTY_MEMBER), b""),
    "no byte at all": (packed(b""), b""),
    "trailing zeros": (packed(MEMBER + b"\0" * 5000), TEXT),
    "trailing text": (packed(MEMBER + b"<!-- served by a careless proxy -->" * 500), TEXT),
    "trailing text after two members": (packed(MEMBER + MEMBER + b"x"), TEXT * 2),
    "nested": (packed(gzip.compress(MEMBER)), MEMBER),
    "not compressible": (packed(gzip.compress(NOISE, 1)), NOISE),
    "tiny blocks": (packed(two_codes()), NOISE[:30_000]),
    "chunks of one byte": (chunked(NOISE[:50_000], 1), NOISE[:50_000]),
    "packed, chunks of one byte": (chunked(MEMBER + MEMBER, 1, head=b"content-encoding: gzip\r\n"), TEXT * 2),
    "chunk extensions": (chunked(TEXT, 10, b';name="' + b"v" * 2000 + b'"'), TEXT),
}

# Answers that must end with an error, and which.
ILLEGAL: dict[str, tuple[Answering, tuple[type[OutboundError], ...]]] = {
    "bomb": (packed(BOMB), (OutboundTooLarge,)),
    "bomb behind a member": (packed(MEMBER + BOMB), (OutboundTooLarge,)),
    "bomb of members": (packed(gzip.compress(b"\0" * 100_000) * 100), (OutboundTooLarge,)),
    "packed bytes without content": (packed(EMPTY_MEMBER * 60_000), (OutboundTooLarge,)),
    "empty blocks": (packed(empty_blocks(300_000)), (OutboundTooLarge,)),
    "head of a member that never ends": (packed(gzip_header_with_name(2_000_000)), (OutboundTooLarge,)),
    "trailing bytes beyond the limit": (packed(MEMBER + b"\0" * 2_000_000), (OutboundTooLarge,)),
    "cut in the head": (packed(MEMBER[:5]), (OutboundUnreachable,)),
    "cut in the content": (packed(MEMBER[:30]), (OutboundUnreachable,)),
    "cut in the checksum": (packed(MEMBER[:-3]), (OutboundUnreachable,)),
    "second member cut after a byte": (packed(MEMBER + MEMBER[:1]), (OutboundUnreachable,)),
    "second member cut": (packed(MEMBER + MEMBER[:-1]), (OutboundUnreachable,)),
    "wrong checksum": (packed(damaged(MEMBER, -6 % len(MEMBER))), (OutboundUnreachable,)),
    "second member damaged": (packed(MEMBER + damaged(MEMBER, 12)), (OutboundUnreachable,)),
    "not gzip": (packed(TEXT), (OutboundUnreachable,)),
    "raw deflate": (plain(zlib.compress(TEXT), headers={"content-encoding": "deflate"}), (OutboundUnreachable,)),
    "two encodings": (packed(gzip.compress(MEMBER), **{"content-encoding": "gzip, gzip"}), (OutboundUnreachable,)),
    "endless": (endless(PLAIN, b"x" * 10_000), ENDED),
    "endless member": (endless(ON_GZIP, BOMB[:10], BOMB[10:20_000], b"\0"), (*ENDED, OutboundUnreachable)),
    "endless members": (endless(ON_GZIP, MEMBER), ENDED),
    "endless empty members": (endless(ON_GZIP, EMPTY_MEMBER * 500), ENDED),
    "endless trailing bytes": (endless(ON_GZIP, MEMBER, b"\0" * 10_000), ENDED),
    "endless header": (endless(b"x: ", b"y" * 10_000), (OutboundTooLarge,)),
    "many headers": (plain(b"", headers={f"x-{n}": "y" * 100 for n in range(800)}), (OutboundTooLarge,)),
    "endless headers": (endless(b"", b"x: y\r\n" * 1000), (OutboundTooLarge,)),
    "folded header": (endless(b"x: y\r\n", b" y\r\n" * 1000), (OutboundTooLarge,)),
    "endless chunks of one byte": (endless(CHUNKED, b"1\r\nx\r\n" * 5000), ENDED),
    "endless chunk extension": (endless(CHUNKED, b"1;", b"x" * 10_000), (*ENDED, OutboundUnreachable)),
    "endless trailers": (endless(CHUNKED, b"1\r\nx\r\n0\r\n", b"x: y\r\n" * 1000), (*ENDED, OutboundUnreachable)),
    "chunk that is too long a number": (endless(CHUNKED, b"f" * 5000 + b"\r\n"), (OutboundUnreachable,)),
}

# Answers that only the clock ends.
SLOW: dict[str, Answering] = {
    "silence": endless(PLAIN, b"", pause_seconds=3600),
    "a byte now and then": endless(PLAIN, b"x", pause_seconds=0.02),
    "a packed byte now and then": endless(ON_GZIP, empty_blocks(0), b"\0\0\0\xff\xff", pause_seconds=0.02),
    "an empty member now and then": endless(ON_GZIP, EMPTY_MEMBER, pause_seconds=0.02),
    "a header now and then": endless(b"", b"x: y\r\n", pause_seconds=0.02),
    "informational answers": endless(b"\r\n", b"HTTP/1.1 103 Early Hints\r\n\r\n", pause_seconds=0.02),
}


@dataclass
class Ended:
    """How a request ended, and the longest time that its event loop was blocked."""

    body: bytes | None
    error: Exception | None
    late_seconds: float


class Client:
    """An outbound client with an event loop in a thread of its own."""

    def __init__(self, limits: OutboundLimits) -> None:
        self._limits = limits
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hostile-answers", daemon=True)
        self._thread.start()

    async def get(self, url: str, way: str) -> Ended:
        """Fail unless the request ends within the time limit of the test."""
        future = asyncio.run_coroutine_threadsafe(self._probed(url, way), self._loop)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), PATIENCE_SECONDS)
        except TimeoutError:
            raise AssertionError(f"the request did not end within {PATIENCE_SECONDS:g} s") from None

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        if not self._thread.is_alive():
            self._loop.close()

    async def _probed(self, url: str, way: str) -> Ended:
        late = 0.0

        async def probe() -> None:
            nonlocal late
            used = time.thread_time()
            while True:
                await asyncio.sleep(0.001)
                before, used = used, time.thread_time()
                late = max(late, used - before)

        calling = Outbound(load_settings(outbound_allow="127.0.0.1"))
        # Imports and certificates belong to the first request of a process, not to an answer.
        with suppress(OutboundError):
            await calling.request("GET", "http://127.0.0.1:1/", limits=self._limits)
        watching = asyncio.create_task(probe())
        try:
            body = await (self._request(calling, url) if way == "request" else self._stream(calling, url))
            return Ended(body, None, late)
        except Exception as error:
            return Ended(None, error, late)
        finally:
            watching.cancel()
            await calling.close()

    async def _request(self, calling: Outbound, url: str) -> bytes:
        return (await calling.request("GET", url, limits=self._limits)).body

    async def _stream(self, calling: Outbound, url: str) -> bytes:
        import httpx2

        try:
            async with calling.client(self._limits) as client, client.stream("GET", url) as response:
                return b"".join([piece async for piece in response.aiter_bytes()])
        except httpx2.RemoteProtocolError as error:
            # What a library that uses the client gets to see.
            raise (OutboundTooLarge if "too long" in str(error) else OutboundUnreachable)(str(error)) from None


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    client = Client(getattr(request, "param", LIMITS))
    yield client
    client.close()


ways = pytest.mark.parametrize("way", ["request", "stream"])


@ways
@pytest.mark.parametrize("name", LEGAL)
async def test_odd_but_legal_answers_are_read(client: Client, name: str, way: str) -> None:
    answer, expected = LEGAL[name]
    async with serving(answer) as server:
        ended = await client.get(server.url(), way)
    assert ended.error is None
    assert ended.body == expected
    assert ended.late_seconds < MAX_LATE_SECONDS


@ways
@pytest.mark.parametrize("name", ILLEGAL)
async def test_hostile_answers_end_with_an_error(client: Client, name: str, way: str) -> None:
    answer, expected = ILLEGAL[name]
    async with serving(answer) as server:
        ended = await client.get(server.url(), way)
    assert isinstance(ended.error, expected), ended.error
    assert ended.late_seconds < MAX_LATE_SECONDS


@ways
@pytest.mark.parametrize("client", [SHORT], indirect=True)
@pytest.mark.parametrize("name", SLOW)
async def test_slow_answers_end_with_the_total_time(client: Client, name: str, way: str) -> None:
    async with serving(SLOW[name]) as server:
        ended = await client.get(server.url(), way)
    assert isinstance(ended.error, OutboundTimeout), ended.error
    assert ended.late_seconds < MAX_LATE_SECONDS


@pytest.mark.parametrize("client", [OutboundLimits(total_seconds=None, max_body_bytes=None)], indirect=True)
async def test_a_stream_without_a_size_limit_leaves_the_loop_free(client: Client) -> None:
    async with serving(packed(BOMB)) as server:
        ended: Any = await client.get(server.url(), "stream")
    assert len(ended.body) == 50_000_000
    assert ended.late_seconds < MAX_LATE_SECONDS


@pytest.mark.parametrize("client", [OutboundLimits(total_seconds=0.5, max_body_bytes=None)], indirect=True)
async def test_the_total_time_also_ends_an_answer_that_never_waits(client: Client) -> None:
    async with serving(endless(ON_GZIP, gzip.compress(b"\0" * 5_000_000))) as server:
        ended = await client.get(server.url(), "request")
    assert isinstance(ended.error, OutboundTimeout), ended.error
