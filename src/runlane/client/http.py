"""Requests that are safe to repeat, retried until the server responds or the retry policy gives up.

Reads change nothing. Every other request has an idempotency key, from the caller or created for the call. So a request
whose response was lost can be sent again: the server executes it once and repeats its response.
"""

from __future__ import annotations

import asyncio
import random
import re
import ssl
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx2
import orjson

from runlane.addresses import is_loopback
from runlane.client.retry_policy import RetryPolicy
from runlane.client.wire import error_from, load, parse
from runlane.domain.ids import new_id
from runlane.domain.retry_after import retry_after_seconds
from runlane.errors import InvalidInput, InvalidRequest, InvalidSettings, RunlaneError, Unavailable
from runlane.version import VERSION

T = TypeVar("T")

PREFIX = "/api/v2"
# The server sends data at least every 15 seconds. A longer silence means that the connection is broken.
STREAM_SILENCE_SECONDS = 45.0
# A wait is reported when it takes longer than this.
_REPORT_SECONDS = 1.0
_UNAVAILABLE = frozenset({502, 503, 504})
# Another request with the same key is in progress: the request whose response was lost.
_IN_PROGRESS = "idempotency_under_way"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


class ErrorResponse(Exception):
    """An error response of the server. `retryable` means that a retry may succeed."""

    def __init__(self, error: RunlaneError, status: int, retry_after_seconds: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.status = status
        self.retryable = status in _UNAVAILABLE or error.code == _IN_PROGRESS
        self.retry_after_seconds = retry_after_seconds


class Http:
    """The connections to one server. Safe to use from many tasks of one event loop."""

    def __init__(
        self,
        url: str,
        key: str | None,
        timeout_seconds: float,
        retry_policy: RetryPolicy,
        transport: httpx2.AsyncBaseTransport | None,
    ) -> None:
        self.url = _check_url(url)
        self.retry_policy = retry_policy
        self.timeout_seconds = timeout_seconds
        self._is_local = is_loopback(urlsplit(self.url).hostname or "")
        self._has_answered = False
        self._reported_since: float | None = None
        headers = {"user-agent": f"runlane/{VERSION}", "accept": "application/json"}
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        self._client = httpx2.AsyncClient(
            headers=headers,
            timeout=timeout_seconds,
            transport=transport,
            # Loading the certificates takes longer than a request, and plain HTTP does not need them.
            verify=self.url.startswith("https:"),
            # A client may follow any number of runs at once. With a pool limit, the streams would block each other.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    async def read(self, path: str, params: Mapping[str, Any] | None = None, *, wait_seconds: float = 0.0) -> Any:
        """Return the JSON at a path. `wait_seconds` is how long the server may wait before it responds."""
        return await self._repeat("GET", path, params=params, wait_seconds=wait_seconds)

    async def read_list(self, kind: type[T], path: str, key: str, params: Mapping[str, Any] | None = None) -> list[T]:
        """Return the values under a key of the JSON at a path."""
        return [parse(kind, item) for item in (await self.read(path, params))[key]]

    async def pages(
        self, kind: type[T], path: str, key: str, params: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[T]:
        """Yield the values under a key of each page of a list. Pages are read as needed."""
        query = dict(params or {})
        while True:
            page = await self.read(path, query)
            for item in page[key]:
                yield parse(kind, item)
            if page["next_cursor"] is None:
                return
            query["cursor"] = page["next_cursor"]

    async def probe(self, path: str) -> tuple[bool, Any]:
        """Send a request without retries. Return whether it succeeded, and the JSON of the response."""
        try:
            response = await self._client.get(self._address(path))
        except httpx2.TransportError as error:
            raise self._silence(error, 0.0) from error
        return response.is_success, load(response.content, self.url)

    async def change(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        *,
        if_match: int | str | None = None,
    ) -> Any:
        """Request a change, which takes effect once even if it is sent several times."""
        key = new_id("req") if idempotency_key is None else idempotency_key
        if _KEY.fullmatch(key) is None:
            raise InvalidInput(f"The idempotency key {key!r} must be 1 to 255 visible ASCII characters.")
        content = None if body is None else orjson.dumps(body)
        headers = {"idempotency-key": key} | ({} if if_match is None else {"if-match": str(if_match)})
        return await self._repeat(method, path, content=content, headers=headers)

    @asynccontextmanager
    async def stream(self, path: str, after: int | str) -> AsyncGenerator[httpx2.Response]:
        """Open an event stream. Raise ErrorResponse if the server rejects it."""
        # A proxy that compresses would hold events back until it has enough of them.
        headers = {"accept": "text/event-stream", "cache-control": "no-store", "accept-encoding": "identity"}
        if after:
            headers["last-event-id"] = str(after)
        timeout = httpx2.Timeout(self.timeout_seconds, read=STREAM_SILENCE_SECONDS)
        async with self._client.stream("GET", self._address(path), headers=headers, timeout=timeout) as response:
            self._has_answered = True
            if response.status_code != 200:
                await response.aread()
                raise self._refusal(response)
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                await response.aread()
                raise ErrorResponse(error_from(200, response.content, None, self.url), 200)
            yield response

    async def pause(self, tries: int, since: float, cause: Exception) -> None:
        """Wait before the next attempt. Raise Unavailable if the wait would exceed the retry policy."""
        requested = cause.retry_after_seconds if isinstance(cause, ErrorResponse) else None
        seconds = self.retry_policy.wait_seconds(tries, random.random(), requested)  # noqa: S311 - jitter
        if _is_tls_failure(cause):
            raise Unavailable(
                f"{self.url} did not accept a TLS connection ({_describe_cause(cause)}). "
                "Use http:// if the server has no TLS; otherwise make its certificate known to this machine."
            ) from cause
        waited = time.monotonic() - since
        left = self._give_up_seconds(cause) - waited
        if left <= 0 or (requested or 0.0) > left:
            if isinstance(cause, ErrorResponse):
                raise cause.error from None
            raise self._silence(cause, waited) from cause
        # The last attempt is made at the deadline, even if the backoff would be longer.
        seconds = min(seconds, left)
        self._report_wait(since, waited + seconds, cause)
        await asyncio.sleep(seconds)

    def _report_wait(self, since: float, seconds: float, cause: Exception) -> None:
        """Call `retry_policy.waiting` once for each wait that takes longer than a second."""
        if self.retry_policy.waiting is None or seconds <= _REPORT_SECONDS or since == self._reported_since:
            return
        self._reported_since = since
        self.retry_policy.waiting(f"{self.url} does not respond yet ({_describe_cause(cause)})")

    async def _repeat(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        wait_seconds: float = 0.0,
    ) -> Any:
        since, tries = time.monotonic(), 0
        sent = dict(headers or {})
        if content is not None:
            sent["content-type"] = "application/json"
        query = {key: value for key, value in (params or {}).items() if value is not None}
        while True:
            try:
                response = await self._client.request(
                    method,
                    self._address(path),
                    # An empty mapping would remove the query in the path.
                    params=query or None,
                    content=content,
                    headers=sent,
                    timeout=self.timeout_seconds + wait_seconds,
                )
                self._has_answered = True
                if response.is_success:
                    return load(response.content, self.url) if response.content else None
                raise self._refusal(response)
            except httpx2.TransportError as error:
                cause: Exception = error
            except ErrorResponse as answered:
                if not answered.retryable:
                    raise answered.error from None
                cause = answered
            tries += 1
            await self.pause(tries, since, cause)

    def _give_up_seconds(self, cause: Exception) -> float:
        """Return how long to retry. The time is short if probably no server runs at the URL."""
        whole = self.retry_policy.give_up_seconds
        is_refused = isinstance(cause, httpx2.ConnectError) and self._is_local and not self._has_answered
        return min(whole, self.retry_policy.local_seconds) if is_refused else whole

    def _silence(self, cause: Exception, seconds: float) -> Unavailable:
        return Unavailable(
            f"{self.url} did not respond{f' for {seconds:.0f} s' if seconds else ''} ({_describe_cause(cause)}). "
            "Check the URL, and that runlane serve is running there."
        )

    def _address(self, path: str) -> str:
        return f"{self.url}{path}"

    def _refusal(self, response: httpx2.Response) -> ErrorResponse:
        requested = retry_after_seconds(response.headers.get("retry-after"))
        status = response.status_code
        error = error_from(status, response.content, requested, self.url)
        return ErrorResponse(error, status, requested)


def part(name: str) -> str:
    """Return a name, encoded as one segment of a path."""
    if not name:
        raise InvalidRequest("The name is empty.")
    return quote(name, safe="")


def _is_tls_failure(cause: BaseException) -> bool:
    """Return whether the connection failed in the TLS handshake, which a retry does not change."""
    error: BaseException | None = cause
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _describe_cause(cause: Exception) -> str:
    return f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__


def _check_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidSettings(f"{url!r} is not the URL of a server. Use https://runlane.example.com")
    if parts.username is not None or parts.password is not None:
        raise InvalidSettings("The server's URL contains a user or password. Give the key as key= or RUNLANE_API_KEY.")
    return url.rstrip("/").removesuffix(PREFIX)
