"""The transport of httpx2 clients, with limits for everything that a server controls.

Redirects are followed here and not by clients, so that every user of the transport has the same protection: each hop is
guarded, and only harmless headers are sent to another origin. Responses are decompressed here as well, because only
then can their real size be counted while they arrive.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from ssl import SSLContext
from typing import Any, Final, cast

import httpx2

from runlane.errors import OutboundRefused, OutboundTimeout, OutboundTooLarge, OutboundUnreachable
from runlane.outbound.guard import Guard
from runlane.outbound.limits import OutboundLimits
from runlane.outbound.pool import BEFORE_SENDING, ConnectionPool
from runlane.outbound.unpack import DamagedGzip, Gunzip

# The extension of a request that contains its own limits.
LIMITS: Final = "runlane.limits"
_KEPT: Final = ("timeout", "trace", BEFORE_SENDING, LIMITS)
_SCHEMES: Final = {"http": 80, "https": 443}
_REDIRECTS: Final = {301, 302, 303, 307, 308}
# Headers that may be sent to another origin. Any other header may contain a credential.
_HARMLESS: Final = {"accept", "accept-language", "content-type", "user-agent"}
_OF_BODIES: Final = {"content-type", "content-length", "content-encoding", "transfer-encoding"}
# How long a body may occupy the event loop before other tasks run. Decompressing in a thread would need a thread switch
# of a quarter of a millisecond per piece, which is more than most pieces take.
_TURN_SECONDS: Final = 0.005


class GuardedTransport(httpx2.AsyncHTTPTransport):
    """HTTP/1.1 through the guard, without proxies and Unix sockets."""

    def __init__(self, guard: Guard, certificates: Callable[[], SSLContext], limits: OutboundLimits) -> None:
        # The base class would create a pool that connects to any address.
        self._pool = cast("Any", ConnectionPool(guard, certificates))
        self._limits = limits

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the response after redirects. Its size is limited while it is read."""
        limits = cast("OutboundLimits", request.extensions.get(LIMITS, self._limits))
        until = None if limits.total_seconds is None else asyncio.get_running_loop().time() + limits.total_seconds
        for _ in range(limits.max_redirects + 1):
            response = await self._ask(request, limits, until)
            target = _target(request, response) if limits.max_redirects else None
            if target is None:
                return response
            await response.aclose()
            request = _followed(request, response.status_code, target)
        raise OutboundRefused(f"{origin(request.url)} redirects more than {limits.max_redirects} times.")

    async def _ask(self, request: httpx2.Request, limits: OutboundLimits, until: float | None) -> httpx2.Response:
        check_url(request.url)
        # Other encodings cannot be decompressed in bounded pieces.
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
    """Raise OutboundRefused if the URL is not http or https."""
    if url.scheme not in _SCHEMES:
        raise OutboundRefused(f'"{url.scheme[:20]}" is not an allowed scheme. Use http or https.')
    if not url.host:
        raise OutboundRefused("The URL does not name a host. Write it as https://host/path.")


def origin(url: httpx2.URL) -> str:
    """Return the part of a URL that messages may contain. The rest may be secret."""
    port = "" if url.port is None else f":{url.port}"
    host = f"[{url.host}]" if ":" in url.host else url.host
    return f"{url.scheme}://{host[:253]}{port}"


def _target(request: httpx2.Request, response: httpx2.Response) -> httpx2.URL | None:
    location = response.headers.get("location")
    if response.status_code not in _REDIRECTS or location is None:
        return None
    try:
        # Fragments and credentials in the location are not used.
        return request.url.join(location).copy_with(fragment=None, username=None, password=None)
    except (httpx2.InvalidURL, ValueError):
        raise OutboundRefused(f"{origin(request.url)} redirects to a location that is not a valid URL.") from None


def _followed(request: httpx2.Request, status: int, target: httpx2.URL) -> httpx2.Request:
    """Return the request to the target of a redirect."""
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
        raise OutboundTooLarge(f"{origin(request.url)} sent more than {limits.max_header_bytes} bytes of headers.")
    encoding = response.headers.get("content-encoding", "").strip().lower()
    packed = encoding in ("gzip", "x-gzip")
    if not packed and encoding not in ("", "identity"):
        raise OutboundUnreachable(f"{origin(request.url)} answered in an encoding that was not requested.")
    declared = response.headers.get("content-length", "")
    most = limits.max_body_bytes
    if most is not None and not packed and request.method != "HEAD" and declared.isdigit() and int(declared) > most:
        raise _too_large(request.url, most)
    # The client must not decompress the body again.
    dropped = (b"content-encoding", b"content-length") if packed else (b"content-encoding",)
    return httpx2.Response(
        response.status_code,
        headers=[(name, value) for name, value in raw if name.lower() not in dropped],
        stream=_Body(cast("httpx2.AsyncByteStream", response.stream), request.url, packed, most, until),
        extensions=response.extensions,
    )


class _Body(httpx2.AsyncByteStream):
    """A body that is decompressed, counted and timed while it is read."""

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
                    # A piece may decompress to a thousand times its size, and thousands of tiny pieces may be buffered.
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
            raise OutboundUnreachable(f"{origin(self._url)} sent a response that cannot be decompressed.") from None

    def _finish(self) -> None:
        try:
            if self._unpacker is not None:
                self._unpacker.finish()
        except DamagedGzip:
            raise OutboundUnreachable(f"{origin(self._url)} broke off its response.") from None

    def _check_size(self, size: int, most: int | None) -> None:
        if most is not None and self._most is not None and size > most:
            raise _too_large(self._url, self._most)

    def _check_time(self) -> None:
        # A completely buffered body never waits, so no read timeout would end it.
        if self._until is not None and asyncio.get_running_loop().time() > self._until:
            raise self._too_slow()

    def _too_slow(self) -> OutboundTimeout:
        return OutboundTimeout(f"{origin(self._url)} did not finish its response in time.")


def _most_packed(most: int | None) -> int | None:
    """Return the limit on compressed bytes. gzip adds a few bytes to content that cannot be compressed."""
    return None if most is None else most + most // 64 + 1024


def _too_large(url: httpx2.URL, most: int) -> OutboundTooLarge:
    return OutboundTooLarge(f"{origin(url)} answered with more than {most} bytes.")
