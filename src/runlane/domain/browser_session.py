"""Browser sessions: a browser signs in with a session instead of an API key, which scripts of a page could read.

A session is 32 random bytes in a cookie; only its SHA-256 is stored. It acts for the key that it was created with and
has no permission of its own, so it ends when the key does.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Annotated, Final

from pydantic import Field

from runlane.domain.wire import Timestamp

# A session that is not used for this long has ended.
IDLE_SECONDS: Final = 12 * 3600
# The maximum lifetime of a session, regardless of its use.
LIFE_SECONDS: Final = 7 * 86400
MAX_ADDRESS: Final = 64
MAX_AGENT: Final = 200
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """One signed-in browser. Its token is stored nowhere."""

    id: str
    tenant: str
    key_id: str
    key_name: Annotated[str | None, Field(description="Null if the key does not exist any more.")]
    created_at_us: Annotated[Timestamp, Field(alias="created_at")]
    last_seen_at_us: Annotated[Timestamp, Field(alias="last_seen_at")]
    address: Annotated[str, Field(description="The network address that signed in.")]
    agent: Annotated[str, Field(description="The User-Agent header of the browser that signed in.")]
    current: Annotated[bool, Field(description="The session of this request.")] = False

    def marked(self, current: bool) -> BrowserSession:
        """Return the same session, marked or not marked as the session of the request."""
        return replace(self, current=current)


def new_token() -> str:
    """Return a new random token."""
    return secrets.token_urlsafe(32)


def token_hash(token: str) -> str | None:
    """Return the stored hash of a token, or None for a string that is not a token."""
    return sha256(token.encode()).hexdigest() if _TOKEN.fullmatch(token) else None
