"""Requests that a browser session authenticates, and the cookie of the session.

A browser sends a cookie with every request, including requests that a page of another site causes. A request is
therefore accepted only if it provably comes from a page of this server. A request that changes something needs a header
that pages of other sites cannot send, and an Origin or Sec-Fetch-Site of this server; a stream needs one of the two.
Requests with an API key need none of this, because a browser never adds a key on its own.
"""

from __future__ import annotations

from typing import Final

from fastapi import Request
from starlette.responses import Response

from runlane.access.authentication import Authenticator
from runlane.api.client_side import ClientSide, client_side
from runlane.domain.access import Principal
from runlane.domain.browser_session import LIFE_SECONDS
from runlane.errors import Forbidden

# The pages of this server send this header with each request. Its value is ignored.
PAGE_HEADER: Final = "x-runlane-ui"
COOKIE: Final = "runlane_session"
# Browsers accept a cookie with this name over TLS only, for this host only, and never from another host of the domain.
SECURE_COOKIE: Final = f"__Host-{COOKIE}"
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_SAME: Final = "same-origin"


class CrossSiteRefused(Forbidden):
    """A request with the cookie of a session does not come from a page of this server."""

    code = "cross_site_refused"


def session_token(request: Request) -> str | None:
    """Return the token of the session cookie. Over TLS, only the cookie with the name for TLS is read."""
    return request.cookies.get(SECURE_COOKIE if client_side(request).secure else COOKIE)


async def identify_browser(request: Request, token: str, authenticator: Authenticator) -> Principal:
    """Return the principal of a browser session. Raise CrossSiteRefused if another site's page sent the request."""
    require_own_page(request)
    return await authenticator.identify_session(token)


def require_own_page(request: Request) -> None:
    """Raise CrossSiteRefused unless the request comes from a page of this server."""
    headers = request.headers
    site = headers.get("sec-fetch-site")
    origin = headers.get("origin")
    own_origin = origin is not None and origin.lower() == client_side(request).origin
    if (origin is not None and not own_origin) or site in ("cross-site", "same-site"):
        raise CrossSiteRefused(
            "A page of another origin sent the request. Browser sessions are valid on pages of this server only. "
            "Send an API key instead: Authorization: Bearer sk-rl-..."
        )
    if request.method not in _SAFE:
        if PAGE_HEADER not in headers or not (own_origin or site == _SAME):
            raise CrossSiteRefused(
                "A change with a browser session needs the header X-Runlane-UI and the Origin of this server. "
                "Programs send an API key instead: Authorization: Bearer sk-rl-..."
            )
        _require_json(request)
    elif _is_stream(request) and site != _SAME and PAGE_HEADER not in headers:
        raise CrossSiteRefused(
            "A stream with a browser session needs Sec-Fetch-Site: same-origin or the header X-Runlane-UI. "
            "Programs send an API key instead: Authorization: Bearer sk-rl-..."
        )


def set_cookie(response: Response, token: str, side: ClientSide) -> None:
    """Set the cookie of a session."""
    response.set_cookie(
        SECURE_COOKIE if side.secure else COOKIE,
        token,
        max_age=LIFE_SECONDS,
        path="/",
        secure=side.secure,
        httponly=True,
        samesite="strict",
    )


def delete_cookies(response: Response, side: ClientSide) -> None:
    """Delete the cookie of a session."""
    name = SECURE_COOKIE if side.secure else COOKIE
    response.set_cookie(name, "", max_age=0, path="/", secure=side.secure, httponly=True, samesite="strict")


def _require_json(request: Request) -> None:
    """Refuse the content types that an HTML form can send."""
    kind = request.headers.get("content-type")
    if kind is not None and kind.partition(";")[0].strip().lower() != "application/json":
        raise CrossSiteRefused(f'A body with a browser session must be application/json, not "{kind[:80]}".')


def _is_stream(request: Request) -> bool:
    path = request.url.path
    return path.endswith(("/stream", "/live")) or "text/event-stream" in request.headers.get("accept", "")
