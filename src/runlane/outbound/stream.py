"""The network streams of outbound connections, on asyncio's own transports."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Awaitable
from ssl import SSLContext
from typing import Any, Final, cast

import httpcore2

# A server that sends faster than its response is read is paused at this size.
_BUFFERED_BYTES: Final = 128 * 1024
_UNSENT_BYTES: Final = 64 * 1024


class _Received(asyncio.Protocol):
    """What a server has sent and what the connection is ready for."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = False
        # Whether the end came without the server closing the connection in order.
        self.broken = False
        self.writable = True
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.data += data
        if len(self.data) >= _BUFFERED_BYTES and self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self.ended = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        self.broken = self.broken or exc is not None
        self._wake()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self._wake()

    def take(self, most: int) -> bytes:
        """Return and remove the first bytes that have arrived."""
        if len(self.data) <= most:
            piece = bytes(self.data)
            self.data.clear()
        else:
            piece = bytes(self.data[:most])
            del self.data[:most]
        if self._paused and self._transport is not None and len(self.data) < _BUFFERED_BYTES:
            self._paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()
        return piece

    async def wait_readable(self) -> None:
        """Wait for bytes or for the end."""
        while not self.data and not self.ended:
            await self._change()

    async def wait_writable(self) -> None:
        """Wait until the peer has accepted most of what was written, or the connection has ended."""
        while not self.writable and not self.ended:
            await self._change()

    async def _change(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Stream(httpcore2.AsyncNetworkStream):
    """One connection. It is used by one task at a time."""

    def __init__(self, transport: asyncio.Transport, received: _Received) -> None:
        self._transport = transport
        self._received = received
        # Headers and body are written separately. They are sent together.
        self._unsent = bytearray()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return the next bytes; none at the end."""
        received = self._received
        if not received.data and not received.ended:
            await _within(timeout, received.wait_readable(), httpcore2.ReadTimeout)
        if not received.data and received.broken:
            raise httpcore2.ReadError("the connection was lost")
        return received.take(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send bytes, and wait while the peer does not accept them."""
        if not buffer:
            return
        if self._received.ended or self._transport.is_closing():
            raise httpcore2.WriteError("the connection has ended")
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._send)
        self._unsent += buffer
        if len(self._unsent) >= _UNSENT_BYTES:
            self._send()
        if not self._received.writable:
            await _within(timeout, self._received.wait_writable(), httpcore2.WriteTimeout)

    def _send(self) -> None:
        if self._unsent:
            data, self._unsent = self._unsent, bytearray()
            self._transport.write(data)

    async def aclose(self) -> None:
        """Close the connection at once."""
        self.close()

    def close(self) -> None:
        """Close the connection at once, without sending what is still buffered."""
        self._received.broken = True
        self._unsent.clear()
        self._transport.abort()

    async def start_tls(
        self, ssl_context: SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> Stream:
        """Return the encrypted stream over this connection."""
        loop = asyncio.get_running_loop()
        # Bytes that the server sent in plain text are not part of the encrypted stream.
        received = _Received()
        try:
            async with asyncio.timeout(timeout):
                transport = await loop.start_tls(
                    self._transport, received, ssl_context, server_hostname=server_hostname
                )
        except TimeoutError:
            self.close()
            raise httpcore2.ConnectTimeout("the handshake took too long") from None
        except OSError as error:
            self.close()
            raise httpcore2.ConnectError(str(error)) from error
        except BaseException:
            self.close()
            raise
        if transport is None:
            raise httpcore2.ConnectError("the connection was lost")
        received.connection_made(transport)
        return Stream(transport, received)

    def get_extra_info(self, info: str) -> Any:
        """Return a property of the connection under the name that httpcore2 uses."""
        match info:
            case "is_readable":
                return self._has_unread()
            case "server_addr":
                return self._transport.get_extra_info("peername")
            case "client_addr":
                return self._transport.get_extra_info("sockname")
            case _:
                return self._transport.get_extra_info(info)

    def _has_unread(self) -> bool:
        """Return whether the server has sent bytes or has closed the connection, although nothing was requested."""
        received = self._received
        if received.data or received.ended or self._transport.is_closing():
            return True
        # The event loop may not have read the end yet.
        raw: socket.socket | None = self._transport.get_extra_info("socket")
        if raw is None or raw.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(raw.fileno(), select.POLLIN)
        return bool(poll.poll(0))


async def connect(address: str, port: int, timeout: float | None) -> Stream:
    """Return a connection to an address. Raise ConnectError or ConnectTimeout."""
    try:
        async with asyncio.timeout(timeout):
            transport, received = await asyncio.get_running_loop().create_connection(_Received, address, port)
    except TimeoutError:
        raise httpcore2.ConnectTimeout("the server did not accept the connection in time") from None
    except OSError as error:
        raise httpcore2.ConnectError(str(error)) from error
    return Stream(transport, received)


async def _within(timeout: float | None, work: Awaitable[None], error: type[httpcore2.TimeoutException]) -> None:
    try:
        async with asyncio.timeout(timeout):
            await work
    except TimeoutError:
        raise error from None
