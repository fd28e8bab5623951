"""The transport: what httpx2 clients are given, with bounds on everything that a server may do to us.

Redirects are followed here and not by clients, so that whoever uses the transport gets the same care: every hop is
guarded, and nothing but harmless headers goes to another origin. Answers are unpacked here too, since only then can
their true size be counted while they come in.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from ssl import SSLContext
from typing import Any, Final, cast

import httpcore2
import httpx2

from runlane.errors import OutboundRefused, OutboundTimeout, OutboundTooLarge, OutboundUnreachable
from runlane.outbound.guard import Guard
from runlane.outbound.limits import MAX_CONNECTIONS, OutboundLimits
from runlane.outbound.unpack import DamagedGzip, Gunzip

# Where a request's own limits are among its extensions.
LIMITS: Final = "runlane.limits"
_KEPT: Final = ("timeout", "trace", LIMITS)
_SCHEMES: Final = {"http": 80, "https": 443}
_REDIRECTS: Final = {301, 302, 303, 307, 308}
# What may be told to another origin. Everything else may be a credential, whatever it is called.
_HARMLESS: Final = {"accept", "accept-language", "content-type", "user-agent"}
_OF_BODIES: Final = {"content-type", "content-length", "content-encoding", "transfer-encoding"}
# How long a body may occupy the event loop before other tasks get their turn. Unpacking in a thread would cost a
# switch of a quarter of a millisecond per piece, which is more than most pieces take.
_TURN_SECONDS: Final = 0.005
_MAX_IDLE: Final = 20
_IDLE_SECONDS: Final = 15.0


class GuardedTransport(httpx2.AsyncHTTPTransport):
    """HTTP/1.1 without proxies or sockets in the file system, through the guard."""

    def __init__(self, guard: Guard, ssl_context: SSLContext, limits: OutboundLimits) -> None:
        # The base class has no way to be given a network, and makes nothing but this pool.
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=ssl_context,
            max_connections=MAX_CONNECTIONS,
            max_keepalive_connections=_MAX_IDLE,
            keepalive_expiry=_IDLE_SECONDS,
            network_backend=guard,
        )
        self._limits = limits

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The answer, after redirects. Its body is bounded while it is read."""
        limits = cast("OutboundLimits", request.extensions.get(LIMITS, self._limits))
        until = None if limits.total_seconds is None else asyncio.get_running_loop().time() + limits.total_seconds
        for _ in range(limits.max_redirects + 1):
            response = await self._ask(request, limits, until)
            target = _target(request, response)
            if target is None:
                return response
            await response.aclose()
            request = _followed(request, response.status_code, target)
        raise OutboundRefused(f"{origin(request.url)} redirects more than {limits.max_redirects} times.")

    async def _ask(self, request: httpx2.Request, limits: OutboundLimits, until: float | None) -> httpx2.Response:
        check_url(request.url)
        # An answer in another encoding could not be unpacked in bounded pieces.
        request.headers["accept-encoding"] = "gzip"
        try:
            async with asyncio.timeout_at(until):
                response = await super().handle_async_request(request)
        except TimeoutError:
            raise OutboundTimeout(f"{origin(request.url)} did not answer in time.") from None
        try:
            return _bounded(request, response, limits, until)
        except BaseException:
            await response.aclose()
            raise


def check_url(url: httpx2.URL) -> None:
    """Refuse what is no plain HTTP."""
    if url.scheme not in _SCHEMES:
        raise OutboundRefused(f'Only http and https are called, not "{url.scheme[:20]}".')
    if not url.host:
        raise OutboundRefused("The URL names no host.")


def origin(url: httpx2.URL) -> str:
    """What may be told of a URL: the rest of it may contain a secret."""
    port = "" if url.port is None else f":{url.port}"
    host = f"[{url.host}]" if ":" in url.host else url.host
    return f"{url.scheme}://{host[:253]}{port}"


def _target(request: httpx2.Request, response: httpx2.Response) -> httpx2.URL | None:
    location = response.headers.get("location")
    if response.status_code not in _REDIRECTS or location is None:
        return None
    try:
        # Fragments and credentials in it are nothing that we would pass on.
        return request.url.join(location).copy_with(fragment=None, username=None, password=None)
    except (httpx2.InvalidURL, ValueError):
        raise OutboundRefused(f"{origin(request.url)} redirects to something that is no URL.") from None


def _followed(request: httpx2.Request, status: int, target: httpx2.URL) -> httpx2.Request:
    """The request that a redirect asks for."""
    check_url(target)
    method, drop_body = request.method, False
    if (status == 303 and method != "HEAD") or (status in (301, 302) and method == "POST"):
        method, drop_body = "GET", True
    try:
        body = b"" if drop_body else request.content
    except httpx2.RequestNotRead:
        raise OutboundRefused(
            f"{origin(request.url)} redirects a request whose body cannot be sent a second time."
        ) from None
    same = _origin_key(request.url) == _origin_key(target)
    headers = [
        (name, value)
        for name, value in request.headers.raw
        if (key := name.decode("ascii").lower()) != "host"
        and key != "content-length"
        and (same or key in _HARMLESS)
        and not (drop_body and key in _OF_BODIES)
    ]
    kept: dict[str, Any] = {key: value for key, value in request.extensions.items() if key in _KEPT}
    return httpx2.Request(method, target, headers=headers, content=body or None, extensions=kept)


def _origin_key(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host.lower(), url.port or _SCHEMES.get(url.scheme)


def _bounded(
    request: httpx2.Request, response: httpx2.Response, limits: OutboundLimits, until: float | None
) -> httpx2.Response:
    raw = response.headers.raw
    if sum(len(name) + len(value) for name, value in raw) > limits.max_header_bytes:
        raise OutboundTooLarge(
            f"{origin(request.url)} answered with more than {limits.max_header_bytes} bytes of headers."
        )
    encoding = response.headers.get("content-encoding", "").strip().lower()
    packed = encoding in ("gzip", "x-gzip")
    if not packed and encoding not in ("", "identity"):
        raise OutboundUnreachable(f"{origin(request.url)} answered in an encoding that was not asked for.")
    declared = response.headers.get("content-length", "")
    most = limits.max_body_bytes
    if most is not None and not packed and request.method != "HEAD" and declared.isdigit() and int(declared) > most:
        raise _too_large(request.url, most)
    # Above us nobody may unpack a second time.
    dropped = (b"content-encoding", b"content-length") if packed else (b"content-encoding",)
    return httpx2.Response(
        response.status_code,
        headers=[(name, value) for name, value in raw if name.lower() not in dropped],
        stream=_Body(cast("httpx2.AsyncByteStream", response.stream), request.url, packed, most, until),
        extensions=response.extensions,
    )


class _Body(httpx2.AsyncByteStream):
    """A body, unpacked, counted and against the clock."""

    def __init__(
        self, stream: httpx2.AsyncByteStream, url: httpx2.URL, packed: bool, most: int | None, until: float | None
    ) -> None:
        self._stream = stream
        self._url = url
        self._unpacker = Gunzip() if packed else None
        self._most = most
        self._until = until

    async def __aiter__(self) -> AsyncIterator[bytes]:
        packed = size = 0
        turn_began = time.monotonic()
        async with aclosing(cast("Any", self._stream.__aiter__())) as pieces:
            while (piece := await self._next(pieces)) is not None:
                packed += len(piece)
                self._check_size(packed, _most_packed(self._most))
                for part in self._unpacked(piece):
                    size += len(part)
                    self._check_size(size, self._most)
                    if part:
                        yield part
                    # A piece may unpack to a thousand times its size, and thousands of tiny ones may be waiting.
                    if time.monotonic() - turn_began > _TURN_SECONDS:
                        await asyncio.sleep(0)
                        self._check_time()
                        turn_began = time.monotonic()
        self._finish()

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def _next(self, pieces: Any) -> bytes | None:
        try:
            async with asyncio.timeout_at(self._until):
                return await anext(pieces, None)
        except TimeoutError:
            raise self._too_slow() from None

    def _unpacked(self, piece: bytes) -> Iterable[bytes]:
        if self._unpacker is None:
            yield piece
            return
        try:
            yield from self._unpacker.feed(piece)
        except DamagedGzip:
            raise OutboundUnreachable(f"{origin(self._url)} sent an answer that cannot be unpacked.") from None

    def _finish(self) -> None:
        try:
            if self._unpacker is not None:
                self._unpacker.finish()
        except DamagedGzip:
            raise OutboundUnreachable(f"{origin(self._url)} broke off its answer.") from None

    def _check_size(self, size: int, most: int | None) -> None:
        if most is not None and self._most is not None and size > most:
            raise _too_large(self._url, self._most)

    def _check_time(self) -> None:
        # A body whose bytes are all there never waits, so no timeout would end it.
        if self._until is not None and asyncio.get_running_loop().time() > self._until:
            raise self._too_slow()

    def _too_slow(self) -> OutboundTimeout:
        return OutboundTimeout(f"{origin(self._url)} did not finish its answer in time.")


def _most_packed(most: int | None) -> int | None:
    """The limit on bytes before unpacking: gzip adds a little to content that cannot be compressed."""
    return None if most is None else most + most // 64 + 1024


def _too_large(url: httpx2.URL, most: int) -> OutboundTooLarge:
    return OutboundTooLarge(f"{origin(url)} answered with more than {most} bytes.")
