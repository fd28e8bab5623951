"""Error responses: every error has the same format.

`detail` is the field that FastAPI's clients read, `code` is stable and for programs, `message` is for people. The
response to an invalid request also lists the fields. A server error does not disclose its cause, which is in the log.
Messages are not redacted here: an anonymous caller could then guess a secret by trial. So a message must contain only
what the caller sent and what every caller may see.
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

from runlane.domain.validation import MAX_LISTED
from runlane.errors import (
    InvalidDefinitions,
    InvalidFlowControl,
    InvalidInput,
    InvalidRequest,
    MemoryOwnedElsewhere,
    RateLimited,
    RateQuota,
    RunlaneError,
    Unauthorized,
    Unavailable,
    UniqueConflict,
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
_INTERNAL = "Internal error. The server's log has the cause."


class FieldError(BaseModel):
    """One invalid field."""

    field: str = Field(description="Its location in the request.", examples=["body.priority"])
    message: str = Field(examples=["Input should be a valid integer"])


class ErrorBody(BaseModel):
    """The format of every error."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "detail": 'No run "run_1" exists.',
                    "code": "run_not_found",
                    "message": 'No run "run_1" exists.',
                }
            ]
        }
    )

    detail: str = Field(description="The same as `message`, in the field that clients of FastAPI services read.")
    code: str = Field(description="Stable code for programs.")
    message: str = Field(description="The problem and how to solve it, for people.")
    fields: list[FieldError] | None = Field(default=None, description="With 422: the invalid fields.")
    run_id: str | None = Field(default=None, description="With unique_conflict: the open run.")
    owner_url: str | None = Field(
        default=None, description="With memory_owned_elsewhere: the address of the node that owns the memory."
    )


# The name by which an endpoint's error responses refer to their schema in the OpenAPI description.
_REFERENCE = "#/components/schemas/{model}"
_CONTENT = {"application/json": {"schema": {"$ref": _REFERENCE.format(model=ErrorBody.__name__)}}}


class BodyTooLarge(HTTPException):
    """The request has more bytes than the limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            413, f"The request has more than {limit} bytes (RUNLANE_API_MAX_BODY_BYTES). Send a smaller request."
        )


class ImpossibleEvent(InvalidRequest):
    """A stream cannot be resumed after an event that does not exist."""

    code = "impossible_event_id"
    http_status = 400


def problem(
    status: int,
    code: str,
    message: str,
    *,
    fields: list[dict[str, str]] | None = None,
    headers: Any = None,
    run_id: str | None = None,
    owner_url: str | None = None,
) -> JSONResponse:
    """Return an error response."""
    body: dict[str, Any] = {"detail": message, "code": code, "message": message}
    if fields is not None:
        body["fields"] = fields
    if run_id is not None:
        body["run_id"] = run_id
    if owner_url is not None:
        body["owner_url"] = owner_url
    return JSONResponse(body, status, headers=headers)


def handle_problems(api: FastAPI) -> None:
    """Register a response for every error, and add it to the OpenAPI description."""
    _describe_errors(api)
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
    """Logs the cause of failing requests at intervals with a count, instead of one line per request."""

    def __init__(self) -> None:
        self._logged_at = -math.inf
        self._since = 0

    def note(self, error: Unavailable) -> None:
        """Count a failed request."""
        self._since += 1
        now = time.monotonic()
        if now - self._logged_at >= _OUTAGE_SECONDS:
            log.warning("requests_unavailable", error=str(error), requests=self._since)
            self._logged_at, self._since = now, 0


_outage = _Outage()


def refusal(error: RunlaneError) -> JSONResponse:
    """Return the response for a Runlane error. It discloses nothing about the server; the log contains the details."""
    if isinstance(error, Unavailable):
        _outage.note(error)
    message = _INTERNAL if error.http_status == 500 else error.public_message
    fields = None
    if isinstance(error, InvalidDefinitions):
        fields = [{"field": location, "message": message} for location, message in error.problems]
    if isinstance(error, InvalidInput) and error.fields:
        fields = [{"field": f"body.response.{name}", "message": problem} for name, problem in error.fields.items()]
    if isinstance(error, InvalidFlowControl):
        fields = [{"field": f"body.{name}", "message": problem} for name, problem in error.fields.items()]
    return problem(
        error.http_status,
        error.code,
        message,
        fields=fields,
        headers=_headers(error),
        run_id=error.run_id if isinstance(error, UniqueConflict) else None,
        owner_url=error.owner_url if isinstance(error, MemoryOwnedElsewhere) else None,
    )


def _headers(error: RunlaneError) -> dict[str, str] | None:
    if isinstance(error, Unauthorized):
        return {"WWW-Authenticate": "Bearer"}
    headers = rate_headers(error.quota) if isinstance(error, RateLimited) else {}
    wait: float | None = getattr(error, "retry_after_seconds", None)
    if wait is None and isinstance(error, Unavailable):
        wait = _UNAVAILABLE_SECONDS
    return headers if wait is None else {**headers, "Retry-After": str(max(1, math.ceil(wait)))}


def rate_headers(quota: RateQuota | None) -> dict[str, str]:
    """Return the headers that report the remaining rate of the caller's tenant."""
    if quota is None:
        return {}
    return {
        "RateLimit-Limit": str(quota.limit),
        "RateLimit-Remaining": str(quota.remaining),
        "RateLimit-Reset": str(math.ceil(quota.reset_seconds)),
    }


async def _validation(request: Request, error: Exception) -> Response:
    fields: list[dict[str, str]] = []
    for item in cast("RequestValidationError", error).errors()[:MAX_LISTED]:
        if item["type"] == "json_invalid":
            reason = item.get("ctx", {}).get("error", "")
            return problem(400, "invalid_json", f"The body is not JSON: {reason} at character {item['loc'][-1]}.")
        where = ".".join(str(part) for part in item["loc"])
        fields.append({"field": where, "message": item["msg"].removeprefix("Value error, ")})
    problems = "; ".join(f"{item['field']}: {item['message']}" for item in fields)
    return problem(422, "invalid_request", f"The request is invalid: {problems}.", fields=fields)


async def _http(request: Request, error: Exception) -> Response:
    known = cast("HTTPException", error)
    code: str = getattr(known, "code", None) or _CODES.get(known.status_code, "error")
    message = str(known.detail)
    if known.status_code == 404 and message == "Not Found":
        message = f"{request.url.path} does not exist. See /docs for the paths."
    elif known.status_code == 405:
        message = f"{request.method} is not allowed at {request.url.path}. See /docs."
    return problem(known.status_code, code, message, headers=known.headers)


async def _gone(request: Request, error: Exception) -> Response:
    # The client closed the connection or sent its body too slowly, so nothing is sent.
    return Response(status_code=400)


async def _unexpected(request: Request, error: Exception) -> Response:
    # Starlette logs the error and raises it again. The caller receives this response.
    return problem(500, "internal_error", _INTERNAL)


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the error responses of an endpoint for OpenAPI, including those of every endpoint."""
    descriptions = {
        400: "The body is not JSON, or an event number is impossible.",
        401: "The key is missing, unknown, expired or revoked.",
        403: "The key's role does not allow this.",
        404: "It does not exist, or it belongs to another tenant.",
        409: "The state does not allow this, or the Idempotency-Key was used with another body.",
        412: "It has changed since the version in If-Match was read.",
        413: "The request or the input is too large.",
        415: "The body has a content type that this path does not accept.",
        422: "A field is invalid; `fields` names it.",
        429: "A limit of the tenant is reached; retry after the seconds in Retry-After.",
        503: "The database cannot be reached; retry after the seconds in Retry-After.",
        507: "The disk of the memory node is full; nothing was stored.",
    }
    return {
        status: {"description": descriptions[status], "content": _CONTENT}
        for status in sorted({400, 401, 403, 422, 503, *statuses})
    }


def _describe_errors(api: FastAPI) -> None:
    """Add the schema of errors to the OpenAPI description, whose error responses refer to it by name.

    FastAPI would otherwise prepare a validator for each error response of each route, about two thousand validators.
    """
    generate = api.openapi

    def with_errors() -> dict[str, Any]:
        description = generate()
        error = ErrorBody.model_json_schema(ref_template=_REFERENCE)
        components = description["components"]
        schemas = components["schemas"] | error.pop("$defs") | {ErrorBody.__name__: error}
        components["schemas"] = dict(sorted(schemas.items()))
        return description

    api.openapi = with_errors
