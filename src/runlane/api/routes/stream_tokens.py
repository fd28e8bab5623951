"""Stream tokens for browsers, whose EventSource cannot send a key in a header."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import Request
from pydantic import ConfigDict, Field, model_validator

from runlane.access.policy import may_see
from runlane.access.stream_tokens import (
    DEFAULT_TOKEN_SECONDS,
    MAX_TOKEN_SECONDS,
    MIN_TOKEN_SECONDS,
    StreamGrant,
    StreamPrincipal,
    StreamScope,
    sign_token,
)
from runlane.api.auth import RunsRead
from runlane.api.error_responses import answers
from runlane.api.router import RawRouter
from runlane.api.routes.visibility import require_visible
from runlane.api.schemas.fields import Key, RequestModel
from runlane.api.serializers import JsonBody
from runlane.api.services import Services, parts_of
from runlane.domain.access import Principal
from runlane.domain.stream_token import StreamToken
from runlane.domain.wire import to_dict
from runlane.errors import Forbidden, UnknownSession
from runlane.store.chat.turns import find_session
from runlane.store.threads.threads import find_thread

router = RawRouter(tags=["stream tokens"])


class StreamTokenRequest(RequestModel):
    """The subject of the token: one run, one conversation or one thread."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"run_id": "run_01a1eaf8", "ttl_seconds": 300}]})

    run_id: Key | None = None
    session_id: Key | None = None
    thread_id: Key | None = None
    ttl_seconds: Annotated[int, Field(ge=MIN_TOKEN_SECONDS, le=MAX_TOKEN_SECONDS)] = DEFAULT_TOKEN_SECONDS

    @model_validator(mode="after")
    def _check(self) -> StreamTokenRequest:
        if sum(value is not None for value in (self.run_id, self.session_id, self.thread_id)) != 1:
            raise ValueError("send one of run_id, session_id and thread_id")
        return self

    @property
    def subject(self) -> tuple[StreamScope, str]:
        """The scope and the id of the subject."""
        if self.run_id is not None:
            return StreamScope.RUN, self.run_id
        if self.session_id is not None:
            return StreamScope.CONVERSATION, self.session_id
        return StreamScope.THREAD, self.thread_id or ""


@router.post("/stream-tokens", status_code=201, response_model=StreamToken, responses=answers(404))
async def create_stream_token(request: Request, principal: RunsRead, body: StreamTokenRequest) -> JsonBody:
    """Issue a token for the streams of a run, a conversation or a thread. Send it as `?stream_token=`.

    The token is valid until it expires or the key of this request is revoked.
    """
    parts = parts_of(request)
    if isinstance(principal, StreamPrincipal):
        raise Forbidden("A stream token cannot issue another token. Use a key.")
    scope, subject = body.subject
    await _require(parts, principal, scope, subject)
    expires_at = int(time.time()) + body.ttl_seconds
    grant = StreamGrant(principal.key_id, principal.tenant, scope, subject, expires_at)
    token = StreamToken(sign_token(parts.connection.vault.keyring, grant), expires_at * 1_000_000)
    return JsonBody(to_dict(token), 201, {"Cache-Control": "no-store"})


async def _require(parts: Services, principal: Principal, scope: StreamScope, subject: str) -> None:
    """Raise NotFound unless the caller may see the subject."""
    match scope:
        case StreamScope.RUN:
            await require_visible(parts, principal, subject)
        case StreamScope.CONVERSATION:
            if not may_see(principal, (await find_session(parts.database, subject)).tenant):
                raise UnknownSession(subject)
        case StreamScope.THREAD:
            await find_thread(parts.database, principal.tenant, subject)
