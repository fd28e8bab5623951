"""The page of the chat, served beside the API, so that the browser needs no other server and no CORS."""

from __future__ import annotations

from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

WEB = Path(__file__).parent / "web"


def page(request: Request) -> Response:
    """Return the page."""
    if not (WEB / "dist" / "main.js").exists():
        return PlainTextResponse("The page is not built. Run in web/: npm ci && npm run build", 503)
    return FileResponse(WEB / "index.html")


def script(request: Request) -> Response:
    """Return the script that esbuild has made of web/src."""
    return FileResponse(WEB / "dist" / "main.js", media_type="text/javascript")


app = Starlette(routes=[Route("/chat", page), Route("/chat/main.js", script)])
