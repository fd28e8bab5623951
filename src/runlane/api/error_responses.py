"""Errors as answers: one shape for every one of them, whoever raised it.

`detail` is what FastAPI's clients look for, `code` is stable and for programs, `message` is for people. An answer about
a request that does not fit also names the fields. A server error tells nothing of its cause; the log has it.

Nothing here is compared with secrets: whoever asks without a key could find one out by guessing. So a message must hold
nothing but what the caller sent, and what every caller may know.
"""

from __future__ import annotations

import math
import time
from typing import Any, cast

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from runlane.errors import (
    InvalidDefinitions,
    InvalidInput,
    InvalidRequest,
    RateLimited,
    RateQuota,
    RunlaneError,
    Unauthorized,
    Unavailable,
)

log = structlog.get_logger(__name__)

_CODES = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    413: "too_large",
    415: "unsupported_media_type",
}
_UNAVAILABLE_SECONDS = 2
_OUTAGE_SECONDS = 10.0
_INTERNAL = "Something went wrong here; the server's log tells what."


class FieldError(BaseModel):
    """One field that does not fit."""

    field: str = Field(description="Where it is.", examples=["body.priority"])
    message: str = Field(examples=["Input should be a valid integer"])


class ErrorBody(BaseModel):
    """Every error looks like this."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "detail": 'No run "run_1" is kept here.',
                    "code": "run_not_found",
                    "message": 'No run "run_1" is kept here.',
                }
            ]
        }
    )

    detail: str = Field(description="The message again, where clients of FastAPI services look for it.")
    code: str = Field(description="Stable; for programs.")
    message: str = Field(description="What is wrong and what to do, for people.")
    fields: list[FieldError] | None = Field(default=None, description="With 422: what does not fit.")


class BodyTooLarge(HTTPException):
    """More bytes arrive than a request may have."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            413, f"The request has more than {limit} bytes (RUNLANE_API_MAX_BODY_BYTES). Send less at once."
        )


class ImpossibleEvent(InvalidRequest):
    """A stream cannot be resumed after a number that it never had."""

    code = "impossible_event_id"
    http_status = 400


def problem(
    status: int, code: str, message: str, *, fields: list[dict[str, str]] | None = None, headers: Any = None
) -> JSONResponse:
    """An error as an answer."""
    body: dict[str, Any] = {"detail": message, "code": code, "message": message}
    if fields is not None:
        body["fields"] = fields
    return JSONResponse(body, status, headers=headers)


def handle_problems(api: FastAPI) -> None:
    """Give every error its answer."""
    api.add_exception_handler(RunlaneError, _runlane)
    api.add_exception_handler(RequestValidationError, _validation)
    api.add_exception_handler(HTTPException, _http)
    api.add_exception_handler(ClientDisconnect, _gone)
    api.add_exception_handler(Exception, _unexpected)


async def _runlane(request: Request, error: Exception) -> Response:
    known = cast("RunlaneError", error)
    if known.http_status >= 500 and not isinstance(known, Unavailable):
        log.error("request_failed", path=request.url.path, error=str(known), exc_info=known)
    return refusal(known)


class _Outage:
    """Logs what makes requests fail, with a count instead of a line for each of them."""

    def __init__(self) -> None:
        self._told_at = -math.inf
        self._since = 0

    def note(self, error: Unavailable) -> None:
        """Count a request that failed."""
        self._since += 1
        now = time.monotonic()
        if now - self._told_at >= _OUTAGE_SECONDS:
            log.warning("requests_unavailable", error=str(error), requests=self._since)
            self._told_at, self._since = now, 0


_outage = _Outage()


def refusal(error: RunlaneError) -> JSONResponse:
    """One of our own errors as an answer, which says nothing about the server itself; the log does."""
    if isinstance(error, Unavailable):
        _outage.note(error)
    message = _INTERNAL if error.http_status == 500 else error.public_message
    fields = None
    if isinstance(error, InvalidDefinitions):
        fields = [{"field": place, "message": message} for place, message in error.problems]
    if isinstance(error, InvalidInput) and error.fields:
        fields = [{"field": f"body.response.{name}", "message": told} for name, told in error.fields.items()]
    return problem(error.http_status, error.code, message, fields=fields, headers=_headers(error))


def _headers(error: RunlaneError) -> dict[str, str] | None:
    if isinstance(error, Unauthorized):
        return {"WWW-Authenticate": "Bearer"}
    headers = rate_headers(error.quota) if isinstance(error, RateLimited) else {}
    wait: float | None = getattr(error, "retry_after_seconds", None)
    if wait is None and isinstance(error, Unavailable):
        wait = _UNAVAILABLE_SECONDS
    return headers if wait is None else {**headers, "Retry-After": str(max(1, math.ceil(wait)))}


def rate_headers(quota: RateQuota | None) -> dict[str, str]:
    """Return the headers that tell a client what is left of its tenant's rate."""
    if quota is None:
        return {}
    return {
        "RateLimit-Limit": str(quota.limit),
        "RateLimit-Remaining": str(quota.remaining),
        "RateLimit-Reset": str(math.ceil(quota.reset_seconds)),
    }


async def _validation(request: Request, error: Exception) -> Response:
    fields: list[dict[str, str]] = []
    for item in cast("RequestValidationError", error).errors():
        if item["type"] == "json_invalid":
            reason = item.get("ctx", {}).get("error", "")
            return problem(400, "invalid_json", f"The body is not JSON: {reason} at character {item['loc'][-1]}.")
        where = ".".join(str(part) for part in item["loc"])
        fields.append({"field": where, "message": item["msg"].removeprefix("Value error, ")})
    told = "; ".join(f"{item['field']}: {item['message']}" for item in fields)
    return problem(422, "invalid_request", f"The request does not fit: {told}.", fields=fields)


async def _http(request: Request, error: Exception) -> Response:
    known = cast("HTTPException", error)
    code = _CODES.get(known.status_code, "error")
    message = str(known.detail)
    if known.status_code == 404 and message == "Not Found":
        message = f"There is nothing at {request.url.path}. See /docs for the paths."
    elif known.status_code == 405:
        message = f"{request.method} is not possible at {request.url.path}. See /docs."
    return problem(known.status_code, code, message, headers=known.headers)


async def _gone(request: Request, error: Exception) -> Response:
    # The client closed the connection, or was too slow, in the middle of its body. Nothing of this is sent.
    return Response(status_code=400)


async def _unexpected(request: Request, error: Exception) -> Response:
    # Starlette logs the error itself and raises it on; this is what the caller sees of it.
    return problem(500, "internal_error", _INTERNAL)


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error answers of an endpoint, for OpenAPI; those that every endpoint can give are among them."""
    told = {
        400: "The body is not JSON, or an event number is impossible.",
        401: "The key is missing, unknown, expired or revoked.",
        403: "The key's role does not allow this.",
        404: "There is no such thing, or it belongs to another tenant.",
        409: "The state does not allow this, or the Idempotency-Key was used with another body.",
        413: "The request or the input is too large.",
        422: "A field does not fit; `fields` names it.",
        429: "A limit of the tenant is reached; Retry-After says when to come back.",
        503: "The database cannot be reached; Retry-After says when to come back.",
    }
    return {
        status: {"model": ErrorBody, "description": told[status]}
        for status in sorted({400, 401, 403, 422, 503, *statuses})
    }
