"""Requests to other servers, and guarded httpx2 clients for libraries that make their own requests.

One instance serves a process. Its requests share no state and in particular no cookies, because they are made for many
tenants. The HTTP library is loaded at the first request, because most workers never make one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, Final

from runlane.addresses import parse_allow_list
from runlane.errors import OutboundError, OutboundRefused, OutboundTimeout, OutboundTooLarge, OutboundUnreachable
from runlane.fairness import FairGate
from runlane.outbound.limits import MAX_CONNECTIONS, TENANT_CONNECTIONS, OutboundLimits
from runlane.outbound.resolve import Resolve, resolve_name
from runlane.settings import Settings
from runlane.version import VERSION

if TYPE_CHECKING:
    import httpx2

    from runlane.outbound.transport import GuardedTransport

_DEFAULTS: Final = OutboundLimits()
_CUT_OFF_SECONDS: Final = 1.0
_USER_AGENT: Final = f"runlane/{VERSION}"
# The server names the charset. Most of Python's codecs must not be applied to its bytes.
_CHARSETS: Final = {"utf-8", "us-ascii", "ascii", "iso-8859-1", "latin-1", "windows-1252", "utf-16", "utf-16le"}


@dataclass(frozen=True, slots=True)
class OutboundResponse:
    """A response. Names of headers are case-insensitive. `address` is the address of the connection, if known."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    address: str | None = None

    @property
    def media_type(self) -> str:
        """The media type, such as application/json; empty if the server does not send one."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def text(self) -> str:
        """The body as a string. Bytes that cannot be decoded are replaced."""
        charset = self.headers.get("content-type", "").lower().partition("charset=")[2].partition(";")[0].strip(" \"'")
        return self.body.decode(charset if charset in _CHARSETS else "utf-8", "replace")


class Outbound:
    """Calls other servers. `resolve` and `ssl_context` are for tests and special networks.

    `connections` divides the connections of this process fairly between tenants. A caller enters it before its timeout
    starts.
    """

    def __init__(
        self, settings: Settings, *, resolve: Resolve = resolve_name, ssl_context: SSLContext | None = None
    ) -> None:
        self._allowed = parse_allow_list(settings.outbound_allow or "")
        self._resolve = resolve
        self._ssl_context = ssl_context
        self._shared: GuardedTransport | None = None
        self.connections = FairGate(MAX_CONNECTIONS, TENANT_CONNECTIONS)

    def transport(self, limits: OutboundLimits = _DEFAULTS) -> GuardedTransport:
        """Return a separate transport, which the caller closes."""
        from runlane.outbound.guard import Guard
        from runlane.outbound.transport import GuardedTransport

        return GuardedTransport(Guard(self._allowed, self._resolve), self._certificates, limits)

    def _certificates(self) -> SSLContext:
        """Return the context of all https connections.

        It is created for the first connection, because it takes megabytes.
        """
        import httpx2

        if self._ssl_context is None:
            # An operator's own certificate authority (SSL_CERT_FILE) is used; proxies and .netrc are not.
            self._ssl_context = httpx2.create_ssl_context()
        return self._ssl_context

    def client(
        self, limits: OutboundLimits = _DEFAULTS, *, headers: Mapping[str, str] | None = None
    ) -> httpx2.AsyncClient:
        """Return a guarded client for a library that accepts one. The caller closes it.

        The client raises OutboundRefused, OutboundTimeout and OutboundTooLarge in addition to the errors of httpx2. It
        follows redirects. For endless streams, pass limits without a total time and without a size.
        """
        import httpx2

        return httpx2.AsyncClient(
            transport=self.transport(limits),
            trust_env=False,
            follow_redirects=False,
            timeout=httpx2.Timeout(**limits.timeouts),
            headers={"user-agent": _USER_AGENT, **(headers or {})},
        )

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        limits: OutboundLimits = _DEFAULTS,
        keep_bytes: int | None = None,
    ) -> OutboundResponse:
        """Send a request and read the whole response. Raise OutboundError, whose message contains only the request's
        origin.

        With `keep_bytes`, at most that many bytes of the body are read, and errors after the headers are ignored.
        """
        import httpx2

        from runlane.outbound.pool import BEFORE_SENDING
        from runlane.outbound.transport import LIMITS

        sent = False

        def before_sending() -> None:
            nonlocal sent
            sent = True

        try:
            target = _parsed(url)
            named = {"user-agent": _USER_AGENT} | {name.lower(): value for name, value in (headers or {}).items()}
            request = httpx2.Request(
                method,
                target,
                headers=[(name.encode(), value.encode()) for name, value in named.items()],
                content=content,
                extensions={"timeout": limits.timeouts, BEFORE_SENDING: before_sending, LIMITS: limits},
            )
            return await self._answer(request, limits, keep_bytes)
        except OutboundError as error:
            error.sent = error.sent and sent
            raise

    async def close(self) -> None:
        """Close all connections. Safe to call at any time."""
        shared, self._shared = self._shared, None
        if shared is not None:
            await shared.aclose()

    async def _answer(
        self, request: httpx2.Request, limits: OutboundLimits, keep_bytes: int | None
    ) -> OutboundResponse:
        import httpx2

        from runlane.outbound.transport import origin

        where = origin(request.url)
        try:
            # If the body may be truncated, the body's own timeout ends it first.
            total = limits.total_seconds
            async with asyncio.timeout(total if total is None or keep_bytes is None else total + _CUT_OFF_SECONDS):
                return await self._read(request, keep_bytes)
        except OutboundError:
            raise
        except (TimeoutError, httpx2.TimeoutException):
            raise OutboundTimeout(f"{where} did not answer in time.") from None
        except httpx2.LocalProtocolError:
            # The message of the library contains the header's value.
            refused = OutboundRefused(
                f"The request to {where} cannot be sent: a header has characters that HTTP does not allow."
            )
            refused.sent = False
            raise refused from None
        except httpx2.HTTPError as error:
            raise _failure(where, str(error)) from None

    async def _read(self, request: httpx2.Request, keep_bytes: int | None) -> OutboundResponse:
        import httpx2

        if self._shared is None:
            self._shared = self.transport()
        response = await self._shared.handle_async_request(request)
        # The pieces are not collected in a list: a server may send single bytes, and each piece takes fifty times the
        # size of a byte.
        body, address = bytearray(), _address(response)
        try:
            async for piece in _stream(response):
                body += piece
                if keep_bytes is not None and len(body) >= keep_bytes:
                    break
        except (OutboundError, httpx2.HTTPError):
            if keep_bytes is None:
                raise
        finally:
            await response.aclose()
        return OutboundResponse(response.status_code, response.headers, bytes(body[:keep_bytes]), address)


def _address(response: httpx2.Response) -> str | None:
    stream = response.extensions.get("network_stream")
    address = None if stream is None else stream.get_extra_info("server_addr")
    return None if not address else str(address[0])


def _stream(response: httpx2.Response) -> Any:
    return response.stream


def _parsed(url: str) -> httpx2.URL:
    import httpx2

    from runlane.outbound.transport import check_url

    try:
        target = httpx2.URL(url)
    except (httpx2.InvalidURL, ValueError, UnicodeError):
        raise OutboundRefused("The URL cannot be parsed. Write it as https://host/path.") from None
    check_url(target)
    if target.userinfo:
        raise OutboundRefused("The URL contains a user or a password. Send them in a header.")
    return target.copy_with(fragment=None) if target.fragment else target


def _failure(where: str, message: str) -> OutboundError:
    """Return the error for a library's message, which is inspected but not included."""
    if "too long" in message:
        return OutboundTooLarge(f"{where} answered with more headers than allowed.")
    if "CERTIFICATE_VERIFY_FAILED" in message:
        return OutboundUnreachable(
            f"The certificate of {where} is not trusted, or is for another name. Name the certificates of your own "
            "authority in SSL_CERT_FILE."
        )
    return OutboundUnreachable(f"{where} cannot be reached, or broke off its response.")
