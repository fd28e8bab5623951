"""Routes that serve the dashboard under /ui/. Its files are public and contain no data of the installation."""

from __future__ import annotations

from typing import Final, cast

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from runlane.api.client_side import client_side
from runlane.api.conditional import has_copy
from runlane.api.dashboard.assets import Asset, DashboardFiles
from runlane.api.dashboard.pages import missing_page, new_nonce, page, security_headers
from runlane.api.router import RawRouter

router = RawRouter(include_in_schema=False)

_METHODS: Final = ["GET", "HEAD"]
_FOREVER: Final = "public, max-age=31536000, immutable"


@router.api_route("/", methods=_METHODS)
async def get_root(request: Request) -> Response:
    """Redirect browsers to the dashboard."""
    _require_dashboard(request)
    if "text/html" not in request.headers.get("accept", ""):
        raise HTTPException(404)
    return _to_dashboard(request)


@router.api_route("/ui", methods=_METHODS)
async def get_without_slash(request: Request) -> Response:
    """Redirect browsers to the page, whose links are relative to its folder."""
    _require_dashboard(request)
    return _to_dashboard(request)


@router.api_route("/ui/{path:path}", methods=_METHODS)
async def get_dashboard(request: Request, path: str) -> Response:
    """Return a file of the dashboard, or its page for every path that is not a file."""
    _require_dashboard(request)
    files = cast("DashboardFiles | None", request.app.state.dashboard)
    asset = None if files is None else files.assets.get(path)
    if asset is not None:
        return _file(request, asset)
    if "." in path.rpartition("/")[2]:
        raise HTTPException(404)
    return _page(request, files)


def _page(request: Request, files: DashboardFiles | None) -> Response:
    nonce = new_nonce()
    prefix = client_side(request).prefix
    headers = {**security_headers(nonce), "Cache-Control": "no-store", "Vary": "X-Forwarded-Prefix"}
    if files is None:
        return Response(missing_page(prefix), 503, headers, "text/html")
    return Response(page(files.index, prefix, nonce), 200, {**headers, "ETag": files.etag}, "text/html")


def _file(request: Request, asset: Asset) -> Response:
    encoding, body = asset.encoded(request.headers.get("accept-encoding", ""))
    headers = {
        **security_headers(new_nonce()),
        "Cache-Control": _FOREVER if asset.immutable else "no-cache",
        "ETag": asset.etag,
        "Vary": "Accept-Encoding",
    }
    if has_copy(request, asset.etag):
        return Response(status_code=304, headers=headers)
    if encoding != "identity":
        headers["Content-Encoding"] = encoding
    return Response(body, 200, {**headers, "Content-Type": asset.media_type})


def _to_dashboard(request: Request) -> Response:
    return RedirectResponse(f"{client_side(request).prefix}/ui/", 307, {"Cache-Control": "no-store"})


def _require_dashboard(request: Request) -> None:
    if not request.app.state.serves_dashboard:
        raise HTTPException(404)
