"""Errors in the format that OpenAI's clients parse: `{"error": {"message", "type", "param", "code"}}`.

Routes, validation of bodies, authentication and limits all raise errors in Runlane's format. One middleware translates
the errors of the OpenAI-compatible paths, so that no error is missed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import orjson
from fastapi import FastAPI, Request
from pydantic import BaseModel, Field
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runlane.domain.text import clean_text
from runlane.errors import RunlaneError

PREFIX: Final = "/v1"
# OpenAI's clients repeat a request after a server error. A failed run is a valid response, and another run would be
# billed.
NO_RETRY: Final = {"x-should-retry": "false"}
_TYPES: Final[Mapping[int, str]] = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES: Final[Mapping[str, str]] = {"unauthorized": "invalid_api_key", "unknown_definition": "model_not_found"}
_PART: Final = re.compile(r"\.([0-9]+)(?=\.|$)")
_INTERNAL: Final = "Internal error. The server's log has the cause."


class OpenAiErrorDetail(BaseModel):
    """The content of an error."""

    message: str = Field(description="The problem and how to solve it, for people.")
    type: str = Field(examples=["invalid_request_error"])
    param: str | None = Field(description="The parameter that is not valid.", examples=["temperature"])
    code: str | None = Field(description="Stable code for programs.", examples=["unsupported_parameter"])


class OpenAiErrorBody(BaseModel):
    """The format of every error."""

    error: OpenAiErrorDetail


class ParameterRefused(RunlaneError):
    """A parameter that is not supported. `param` names it."""

    code: ClassVar[str] = "unsupported_parameter"
    http_status: ClassVar[int] = 400

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class UnknownParameter(ParameterRefused):
    """The API has no parameter of this name."""

    code: ClassVar[str] = "unknown_parameter"


class InvalidValue(ParameterRefused):
    """The value of a parameter is not valid."""

    code: ClassVar[str] = "invalid_value"


class RunEnded(RunlaneError):
    """The run failed or was cancelled, so it has no result."""

    http_status: ClassVar[int] = 500

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.failure = code


class ServerStopping(RunlaneError):
    """This process is stopping before the run has ended."""

    code: ClassVar[str] = "server_stopping"
    http_status: ClassVar[int] = 503


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the error responses of an endpoint for OpenAPI, including those of every endpoint."""
    descriptions = {
        400: "A parameter is not valid, not known or not supported; `param` names it.",
        401: "The key is missing, unknown, expired or revoked.",
        403: "The key's role does not allow this.",
        404: "It does not exist, or it belongs to another tenant.",
        409: "The state does not allow this, or the Idempotency-Key was used with another body.",
        413: "The request is too large.",
        429: "A limit of the tenant is reached; retry after the seconds in Retry-After.",
        500: "The run has failed or was cancelled.",
        503: "The database cannot be reached, or this server is stopping.",
    }
    return {
        status: {"model": OpenAiErrorBody, "description": descriptions[status]}
        for status in sorted({400, 401, 403, 503, *statuses})
    }


def error_body(status: int, message: str, code: str | None, param: str | None = None) -> dict[str, Any]:
    """Return an error in OpenAI's format."""
    kind = _TYPES.get(status) or ("server_error" if status >= 500 else "invalid_request_error")
    # A name or value from the client may contain an unpaired surrogate.
    shown = None if param is None else clean_text(param)
    return {"error": {"message": clean_text(message), "type": kind, "param": shown, "code": code}}


async def handle_refusal(request: Request, error: Exception) -> Response:
    """Return the response for one of the errors above."""
    status = getattr(error, "http_status", 500)
    code = error.failure if isinstance(error, RunEnded) else getattr(error, "code", None)
    param = error.param if isinstance(error, ParameterRefused) else None
    headers = {**(NO_RETRY if status >= 500 else {}), **run_headers(request)}
    body = orjson.dumps(error_body(status, str(error), code, param))
    return Response(body, status, headers, media_type="application/json")


def handle_openai_problems(api: FastAPI) -> None:
    """Register the response for the errors above."""
    for kind in (ParameterRefused, RunEnded, ServerStopping):
        api.add_exception_handler(kind, handle_refusal)


def run_headers(request: Request) -> dict[str, str]:
    """Return a header with the id of the request's run, if the request has one."""
    run_id: str | None = getattr(request.state, "runlane_run_id", None)
    return {} if run_id is None else {"x-runlane-run-id": run_id}


class OpenAiErrors:
    """Translates the error responses of the OpenAI-compatible paths."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(f"{PREFIX}/"):
            await self._app(scope, receive, send)
            return
        translation = _Translation(send)
        try:
            await self._app(scope, receive, translation.send)
        except Exception:
            if not translation.started:
                await translation.send_error(500, error_body(500, _INTERNAL, "internal_error"), [])
            raise


class _Translation:
    """Sends a response. An error is held back until it is complete."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._held: Message | None = None
        self._body = b""
        self.started = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] >= 400:
            self._held = message
        elif self._held is None:
            self.started = True
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                held, self._held = self._held, None
                status, body = translated(held["status"], self._body)
                await self.send_error(status, body, held["headers"])

    async def send_error(self, status: int, body: Mapping[str, Any], headers: list[tuple[bytes, bytes]]) -> None:
        self.started = True
        content = orjson.dumps(body)
        kept = [(name, value) for name, value in headers if name not in (b"content-length", b"content-type")]
        own = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": [*kept, *own]})
        await self._send({"type": "http.response.body", "body": content})


def translated(status: int, content: bytes) -> tuple[int, dict[str, Any]]:
    """Translate an error response of Runlane into OpenAI's format, in which an invalid body has the status 400."""
    try:
        body: Any = orjson.loads(content)
    except orjson.JSONDecodeError:
        body = {}
    if "error" in body:
        return status, body
    fields = body.get("fields") or [{"field": ""}]
    param = _PART.sub(r"[\1]", fields[0]["field"].removeprefix("body").removeprefix(".")) or None
    code = body.get("code")
    if code == "unknown_definition":
        param = "model"
    status = 400 if status == 422 else status
    return status, error_body(status, body.get("message") or "The request failed.", _CODES.get(code, code), param)
