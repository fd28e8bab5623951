"""One attempt of a delivery: send the signed request over the guarded client, and interpret the response."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from runlane.access.keyring import Keyring
from runlane.addresses import parse_allow_list
from runlane.domain.retry_after import retry_after_seconds
from runlane.domain.text import clean_text
from runlane.domain.webhook import (
    KEPT_RESPONSE_CHARACTERS,
    MAX_RESPONSE_BYTES,
    DeliveryStatus,
    ErrorKind,
    retry_delay_us,
)
from runlane.errors import (
    InvalidRequest,
    OutboundError,
    OutboundRefused,
    OutboundTimeout,
    OutboundUnreachable,
    RunlaneError,
)
from runlane.observability import metrics, tracing
from runlane.outbound import Outbound, OutboundLimits, OutboundResponse
from runlane.redaction import Redactor
from runlane.redaction.redactor import Values
from runlane.settings import Settings
from runlane.store.webhooks.claims import ClaimedDelivery
from runlane.store.webhooks.results import TryResult
from runlane.version import VERSION
from runlane.webhooks.destination import REFUSED, check_destination
from runlane.webhooks.headers import HeaderRefused, fill_headers, names_in
from runlane.webhooks.keys import open_secrets
from runlane.webhooks.signing import plain_headers, signed_headers

USER_AGENT: Final = f"Runlane/{VERSION}"
_CONNECT_SECONDS: Final = 10.0
# Headers of a response that are kept with the attempt.
_KEPT_HEADERS: Final = ("content-type", "content-length", "date", "location", "retry-after", "server", "x-request-id")
_KEPT_HEADER_CHARACTERS: Final = 500
_NO_URL: Final = "The webhook URL of the run was deleted with the run."
# A server that asks for a slower rate gets at least this pause.
_SLOW_DOWN: Final = frozenset({429, 502, 504})
_SLOW_DOWN_SECONDS: Final = 30.0


class WebhookSender:
    """Sends deliveries. One instance serves a process; it keeps connections open between requests."""

    def __init__(self, settings: Settings, keyring: Keyring, values: Values, outbound: Outbound | None = None) -> None:
        self._keyring = keyring
        self._values = values
        self._allowed = parse_allow_list(settings.outbound_allow or "")
        self._outbound = outbound or Outbound(settings)
        seconds = settings.webhook_timeout_seconds
        self._limits = OutboundLimits(
            connect_seconds=min(_CONNECT_SECONDS, seconds),
            read_seconds=seconds,
            total_seconds=seconds,
            max_body_bytes=None,
            max_redirects=0,
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._outbound.close()

    async def send(self, delivery: ClaimedDelivery, claimed_at: float) -> TryResult:
        """Send a delivery and return the result. `claimed_at` is the time of its claim on the monotonic clock."""
        begun = time.monotonic()
        response: OutboundResponse | None = None
        kind: ErrorKind | None = None
        error: str | None = None
        redactor = Redactor()
        try:
            with tracing.quiet_span("POST webhook", _span_of(delivery), "client", delivery.trace) as span:
                response = await self._request(delivery, redactor)
                kind, error = _judge(response)
                if span is not None:
                    span.set_attribute("http.response.status_code", response.status)
                if kind is not None:
                    tracing.mark_failed(span, kind.value)
        except OutboundRefused:
            kind, error = ErrorKind.REFUSED, REFUSED
        except OutboundTimeout as failure:
            kind, error = ErrorKind.TIMEOUT, str(failure)
        except OutboundUnreachable as failure:
            kind, error = ErrorKind.UNREACHABLE, str(failure)
        except OutboundError as failure:
            kind, error = ErrorKind.INVALID, str(failure)
        except HeaderRefused as failure:
            kind, error = ErrorKind.HEADER, str(failure)
        except InvalidRequest as failure:
            kind, error = ErrorKind.REFUSED, str(failure)
        except RunlaneError as failure:
            kind, error = ErrorKind.SECRET, failure.public_message
        taken = time.monotonic() - begun
        metrics.WEBHOOK_SECONDS.observe(taken)
        status, delay_us = _next(delivery, kind, response)
        return TryResult(
            status=status,
            started_at_us=delivery.claimed_at_us + int((begun - claimed_at) * 1_000_000),
            duration_us=int(taken * 1_000_000),
            status_code=None if response is None else response.status,
            error_kind=kind,
            error=None if error is None else redactor.clean(error),
            response_headers=None if response is None else _kept_headers(response.headers, redactor),
            response_body=None if response is None else _kept_body(response, redactor),
            address=None if response is None else response.address,
            request_headers=delivery.headers,
            delay_us=delay_us,
        )

    async def _request(self, delivery: ClaimedDelivery, redactor: Redactor) -> OutboundResponse:
        """Send the request. The secrets in it are added to the redactor, because a response may repeat them."""
        if not delivery.url:
            raise InvalidRequest(_NO_URL)
        # Checked at each attempt: the rules may have changed since the endpoint was created.
        check_destination(delivery.url, self._allowed)
        body = delivery.body.encode()
        timestamp = int(time.time())
        secrets = open_secrets(self._keyring, delivery.secrets)
        headers = await self._own_headers(delivery, redactor)
        headers |= {"content-type": "application/json", "user-agent": USER_AGENT}
        headers |= signed_headers(secrets, delivery.message_id, timestamp, body)
        # Without tracing, the receiver continues the trace of the caller who started the run.
        trace = tracing.current_parent() or delivery.trace
        if trace is not None:
            headers["traceparent"] = trace
        if delivery.own:
            headers |= plain_headers(secrets[0] if secrets else None, timestamp, body)
        return await self._outbound.request(
            "POST", delivery.url, headers=headers, content=body, limits=self._limits, keep_bytes=MAX_RESPONSE_BYTES
        )

    async def _own_headers(self, delivery: ClaimedDelivery, redactor: Redactor) -> dict[str, str]:
        """Return the headers of the endpoint with the values that their secrets have now."""
        names = names_in(delivery.headers)
        if not names:
            return dict(delivery.headers)
        return fill_headers(delivery.headers, await redactor.learning(self._values)(delivery.tenant, names))


def _span_of(delivery: ClaimedDelivery) -> dict[str, str | int | None]:
    return {
        "http.request.method": "POST",
        "server.address": urlsplit(delivery.url).hostname if delivery.url else None,
        "runlane.run_id": delivery.run_id,
        "runlane.tenant": delivery.tenant,
        "runlane.webhook.type": delivery.type,
        "runlane.webhook.message_id": delivery.message_id,
        "runlane.webhook.try": delivery.tries + 1,
    }


def _judge(response: OutboundResponse) -> tuple[ErrorKind | None, str | None]:
    status = response.status
    if 200 <= status < 300:
        return None, None
    if status == 410:
        return ErrorKind.GONE, "The endpoint answered 410 Gone."
    if 300 <= status < 400:
        return ErrorKind.REDIRECT, f"The endpoint answered {status}; redirects are not followed. Correct its URL."
    return ErrorKind.STATUS, f"The endpoint answered {status}."


def _next(
    delivery: ClaimedDelivery, kind: ErrorKind | None, response: OutboundResponse | None
) -> tuple[DeliveryStatus, int | None]:
    if kind is None:
        return DeliveryStatus.DELIVERED, None
    if kind in (ErrorKind.REFUSED, ErrorKind.GONE, ErrorKind.HEADER):
        return DeliveryStatus.FAILED, None
    requested = None if response is None else retry_after_seconds(response.headers.get("retry-after"))
    if requested is None and response is not None and response.status in _SLOW_DOWN:
        requested = _SLOW_DOWN_SECONDS
    delay_us = retry_delay_us(delivery.tries + 1, delivery.max_tries, random.random(), requested)  # noqa: S311
    return (DeliveryStatus.FAILED, None) if delay_us is None else (DeliveryStatus.PENDING, delay_us)


def _kept_headers(headers: Mapping[str, str], redactor: Redactor) -> dict[str, str]:
    kept = {name: headers.get(name) for name in _KEPT_HEADERS}
    return {
        name: clean_text(redactor.clean(value), _KEPT_HEADER_CHARACTERS)
        for name, value in kept.items()
        if value is not None
    }


def _kept_body(response: OutboundResponse, redactor: Redactor) -> str:
    # The body is redacted before it is cut, because the cut might leave a part of a secret.
    return clean_text(redactor.clean(response.text)[:KEPT_RESPONSE_CHARACTERS])
