"""Health, readiness, metrics, and the API reference page, which loads nothing from other servers."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import asdict
from hashlib import sha256
from importlib.resources import files
from typing import Final

from fastapi import Request
from starlette.responses import HTMLResponse, Response

from runlane.access.policy import require_platform
from runlane.api.auth import WorkersView
from runlane.api.error_responses import answers
from runlane.api.identity import Identity
from runlane.api.prometheus import CONTENT_TYPE, scrape
from runlane.api.router import RawRouter
from runlane.api.schemas.system import Alive, Ready
from runlane.api.serializers import JsonBody
from runlane.api.services import parts_of
from runlane.errors import Unavailable
from runlane.store.sql.migrate import read_version
from runlane.store.sql.migrations import HEAD
from runlane.version import VERSION

_PAGE: Final = files("runlane.api").joinpath("docs.html").read_text(encoding="utf-8")
_SCRIPT: Final = _PAGE.partition("<script>")[2].partition("</script>")[0]
_SCRIPT_HASH: Final = b64encode(sha256(_SCRIPT.encode()).digest()).decode()
# The page runs only its own script, reads only from this server, and cannot be framed by another page.
_PAGE_HEADERS: Final = {
    "Content-Security-Policy": f"default-src 'none'; script-src 'sha256-{_SCRIPT_HASH}'; style-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}

# No key is needed: probes have none, and the responses disclose nothing about runs.
public = RawRouter(tags=["system"])
router = RawRouter(tags=["system"])


@public.get("/health", response_model=Alive)
async def get_health(request: Request) -> JsonBody:
    """Return `ok` if the process runs and its event loop responds."""
    identity: Identity | None = request.app.state.identity
    return JsonBody({"status": "ok", "version": VERSION, "dev": None if identity is None else asdict(identity)})


# The liveness path of Aegra, which the probes of deployments that are migrated from there use.
public.add_api_route("/live", get_health, include_in_schema=False)


@public.get(
    "/ready",
    response_model=Ready,
    responses={503: {"model": Ready, "description": "Not ready; `problems` lists the reasons."}},
)
async def get_ready(request: Request) -> JsonBody:
    """Return whether this process can serve requests: the database responds, accepts writes and has the schema."""
    parts = parts_of(request)
    problems: list[str] = []
    revision: str | None = None
    try:
        revision = await read_version(parts.database)
        if revision is None or revision < HEAD:
            problems.append(f"the schema is {revision}, this version needs {HEAD}: runlane db upgrade")
    except Unavailable:
        problems.append("the database does not answer")
    if parts.writes.failing and not problems:
        problems.append("the database does not accept writes")
    if parts.stopping:
        problems.append("stopping")
    redis = "not configured"
    if parts.app.settings.redis_url is not None:
        redis = "connected" if parts.connection.bus.reaches_others else "away"
    return JsonBody(
        {
            "status": "not_ready" if problems else "ready",
            "database": "away" if "the database does not answer" in problems else "ok",
            "schema_revision": revision,
            "redis": redis,
            "problems": problems,
        },
        503 if problems else 200,
    )


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        **answers(),
        200: {"description": "Prometheus text.", "content": {"text/plain": {"schema": {"type": "string"}}}},
    },
)
async def get_metrics(request: Request, principal: WorkersView) -> Response:
    """Return metrics of this process and of the lanes, for Prometheus.

    They include the runs of every tenant, so the request needs a key of the default tenant.
    """
    require_platform(principal)
    return Response(await scrape(parts_of(request)), media_type=CONTENT_TYPE)


@public.get("/docs", include_in_schema=False)
async def get_docs() -> HTMLResponse:
    """Return the API reference page, which renders /openapi.json in the browser."""
    return HTMLResponse(_PAGE, headers=_PAGE_HEADERS)
