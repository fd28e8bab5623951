"""Requests with a stream token: the streams that it opens, and the key that issued it."""

from __future__ import annotations

import re
import time
from typing import Final

from fastapi import Request

from runlane.access.policy import LOCAL
from runlane.access.stream_tokens import StreamGrant, StreamPrincipal, open_token
from runlane.api.serializers import ROOT
from runlane.api.services import Services, parts_of
from runlane.domain.access import Principal
from runlane.errors import Forbidden, Unauthorized
from runlane.store.access.keys import find_principals

TOKEN_PARAMETER: Final = "stream_token"  # noqa: S105 - the name of a parameter
# The paths of the streams that a token opens. A group has the name of the scope whose subject it is.
_STREAMS: Final = (
    re.compile(rf"{ROOT}/(?:orchestrations/)?runs/(?P<run>[^/]+)/stream"),
    re.compile(rf"{ROOT}/chat/(?P<session>[^/]+)/stream"),
    re.compile(r"/threads/(?P<thread>[^/]+)/stream"),
    re.compile(r"/threads/(?P<thread>[^/]+)/runs/(?P<run>[^/]+)/stream"),
)


async def identify_reader(request: Request) -> StreamPrincipal:
    """Return the principal of a request with a stream token. Unauthorized, or Forbidden for another path."""
    parts = parts_of(request)
    given = request.query_params.getlist(TOKEN_PARAMETER)
    if len(given) != 1:
        raise Unauthorized
    grant = open_token(parts.connection.vault.keyring, given[0], time.time())
    if _subjects(request.scope["path"]).get(grant.scope) != grant.subject:
        raise Forbidden(
            f'The stream token is for the {grant.scope.value} "{grant.subject}" and opens its streams alone. '
            "Request a token for this one: POST /api/v2/stream-tokens"
        )
    return StreamPrincipal.of(await _issuer(parts, grant), grant)


def _subjects(path: str) -> dict[str, str]:
    """Return what a stream belongs to, by scope; empty for a path that is not a stream."""
    for stream in _STREAMS:
        if found := stream.fullmatch(path):
            return found.groupdict()
    return {}


async def _issuer(parts: Services, grant: StreamGrant) -> Principal:
    """Return the principal that issued a token, if its key is still valid."""
    if grant.key_id == LOCAL.key_id:
        # Only an open server issues such tokens, and another one that has the same secret key is not open.
        if not parts.without_keys:
            raise Unauthorized
        return LOCAL
    found = (await find_principals(parts.database, [grant.key_id])).get(grant.key_id)
    if found is None or found.tenant != grant.tenant:
        raise Unauthorized
    return found
