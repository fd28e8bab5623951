"""Conditional reads: a client that polls sends the ETag of its copy and gets 304 while nothing has changed."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from runlane.domain.wire import to_json


def conditional_body(request: Request, value: Any) -> Response:
    """Return a value of `runlane.domain` as JSON with its ETag, or 304 if the client's copy is the same."""
    body = to_json(value)
    etag = etag_of(body)
    if has_copy(request, etag):
        return Response(status_code=304, headers={"ETag": etag})
    return Response(body, headers={"ETag": etag}, media_type="application/json")


def etag_of(body: bytes) -> str:
    """Return the ETag of a body."""
    return f'"{sha256(body).hexdigest()[:32]}"'


def has_copy(request: Request, etag: str) -> bool:
    """Return whether If-None-Match names this ETag. A proxy that compresses marks it as weak, which counts as equal."""
    given = [part.strip().removeprefix("W/") for part in request.headers.get("if-none-match", "").split(",")]
    return etag in given or given == ["*"]
