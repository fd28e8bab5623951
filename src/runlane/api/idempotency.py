"""Idempotency-Key for changes other than creating a run: the response to a successful request is stored for a day.

The key is scoped to the caller's API key, method and URL. The response to a failed request is not stored, because a
retry may succeed. If the process of a request has died, a repeated request takes over the key (see
`store.access.idempotency`).
"""

from __future__ import annotations

import contextlib
import hmac
import re
from collections.abc import Callable, Coroutine
from hashlib import sha256
from typing import Annotated, Any

import orjson
from fastapi import Header, Request
from starlette.responses import Response

from runlane.api.auth import authenticate, known_principal
from runlane.api.body import LargeBodyRoute
from runlane.api.change_hints import hint_change
from runlane.api.serializers import ValueBody
from runlane.api.services import parts_of
from runlane.errors import Conflict, InvalidRequest, RunlaneError
from runlane.event_loop.offload import LARGE_BYTES, offload_if
from runlane.store.access.idempotency import claim_answer, drop_claim, keep_answer

MAX_KEY = 255
_SHOWN_ONCE = frozenset({"key", "secret", "hook_path"})
_VISIBLE = r"^[\x21-\x7e]+$"


class RequestInProgress(Conflict):
    """The first request with this key has no response yet."""

    code = "idempotency_under_way"
    retry_after_seconds = 1.0


class KeyReused(RunlaneError):
    """Another request has used this Idempotency-Key."""

    code = "idempotency_conflict"
    http_status = 409


IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=MAX_KEY,
        pattern=_VISIBLE,
        description="A repeated request with the same key and body gets the same response; another body is 409.",
    ),
]


def is_valid_key(key: str) -> bool:
    """Return whether a header's value matches the declaration above."""
    return len(key) <= MAX_KEY and re.fullmatch(_VISIBLE, key) is not None


def idempotency_header(key: IdempotencyKey = None) -> None:
    """Declare and validate the header; IdempotentRoute reads it."""


class IdempotentRoute(LargeBodyRoute):
    """A route that executes a request once per Idempotency-Key."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def once(request: Request) -> Response:
            key = request.headers.get("idempotency-key")
            if request.method == "GET":
                return await handle(request)
            response = await handle(request) if key is None else await _once(request, key, handle)
            principal = known_principal(request)
            if principal is not None and response.status_code < 300:
                hint_change(request, principal)
            return response

        return once


async def _once(request: Request, key: str, handle: Callable[[Request], Coroutine[Any, Any, Response]]) -> Response:
    if not 0 < len(key) <= MAX_KEY:
        raise InvalidRequest(f"The Idempotency-Key must have 1 to {MAX_KEY} characters.")
    principal = await authenticate(request)
    database = parts_of(request).database
    where = f"{request.url.path}?{request.url.query}"
    scope = "\x1f".join((principal.tenant, principal.key_id, request.method, where, key)).encode()
    name = sha256(scope).hexdigest()
    body = await request.body()
    fingerprint = await offload_if(len(body) > LARGE_BYTES, _fingerprint, scope, body)
    known = await claim_answer(database, name, fingerprint)
    if known is not None:
        if not known.same_request:
            raise KeyReused(f'The Idempotency-Key "{key}" was used before with another body. Use a new one.')
        if known.status is None:
            raise RequestInProgress(
                "The first request with this Idempotency-Key is still in progress. Retry in a moment."
            )
        return Response(known.body, known.status, {"Idempotency-Replayed": "true"}, media_type="application/json")
    kept = False
    try:
        response = await handle(request)
        if response.status_code < 300:
            await keep_answer(database, name, response.status_code, _storable(response))
            kept = True
        return response
    finally:
        if not kept:
            await drop_claim(database, name)


def _fingerprint(scope: bytes, body: bytes) -> str:
    # A body that is not JSON is hashed as bytes; the handler will reject it.
    with contextlib.suppress(orjson.JSONDecodeError):
        body = orjson.dumps(orjson.loads(body), option=orjson.OPT_SORT_KEYS)
    # The hash is keyed with a value that is not stored: a body may contain a secret, which a plain hash would let an
    # attacker guess.
    return hmac.digest(scope, body, "sha256").hex()


def _storable(response: Response) -> str:
    """Return the body to store, without a new API key or other values that are shown once and never stored."""
    body = orjson.loads(bytes(response.body))
    if isinstance(body, dict):
        own = response.shown_once if isinstance(response, ValueBody) else frozenset[str]()
        body.update(dict.fromkeys((_SHOWN_ONCE | own) & body.keys()))
    return orjson.dumps(body).decode()
