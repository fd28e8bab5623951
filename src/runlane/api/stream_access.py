"""Requests with a stream token: the streams that a token gives access to, and the key that issued it."""

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
# The paths of the streams that a token gives access to. A named group is the scope of the subject.
_STREAMS: Final = (
    re.compile(rf"{ROOT}/(?:orchestrations/)?runs/(?P<run>[^/]+)/stream"),
    re.compile(rf"{ROOT}/chat/(?P<session>[^/]+)/stream"),
    re.compile(r"/threads/(?P<thread>[^/]+)/stream"),
    re.compile(r"/threads/(?P<thread>[^/]+)/runs/(?P<run>[^/]+)/stream"),
)


async def identify_reader(request: Request) -> StreamPrincipal:
    """Return the principal of a stream token. Raise Unauthorized for an invalid token, Forbidden for another path."""
    parts = parts_of(request)
    given = request.query_params.getlist(TOKEN_PARAMETER)
    if len(given) != 1:
        raise Unauthorized
    grant = open_token(parts.connection.vault.keyring, given[0], time.time())
    if _subjects(request.scope["path"]).get(grant.scope) != grant.subject:
        raise Forbidden(
            f'The stream token is for the {grant.scope.value} "{grant.subject}" and gives access to its streams only. '
            "Request a token for this stream: POST /api/v2/stream-tokens"
        )
    return StreamPrincipal.of(await _issuer(parts, grant), grant)


def _subjects(path: str) -> dict[str, str]:
    """Return the subjects in a path by scope; empty if the path is not a stream."""
    for stream in _STREAMS:
        if found := stream.fullmatch(path):
            return found.groupdict()
    return {}


async def _issuer(parts: Services, grant: StreamGrant) -> Principal:
    """Return the principal that issued a token. Raise Unauthorized if its key is no longer valid."""
    if grant.key_id == LOCAL.key_id:
        # Only an open server issues such tokens. Another server with the same secret key may not be open.
        if not parts.without_keys:
            raise Unauthorized
        return LOCAL
    found = (await find_principals(parts.database, [grant.key_id])).get(grant.key_id)
    if found is None or found.tenant != grant.tenant:
        raise Unauthorized
    return found
