"""The API as an application: routes, error responses, and the lifespan of the services behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from runlane.api.a2a import routes as a2a_routes
from runlane.api.ag_ui import routes as ag_ui_routes
from runlane.api.agent_server import assistants, commands, crons, items, sockets, stateless_runs, states, threads
from runlane.api.agent_server import runs as thread_runs
from runlane.api.agent_server import system as agent_system
from runlane.api.auth import AuthenticateFirst, LoopbackOnly, RequestAccess, authenticate
from runlane.api.body import BodyLimit
from runlane.api.client_side import ProxyTrust
from runlane.api.compat import lane_admin, memory_v0
from runlane.api.cross_origin import CrossOrigin
from runlane.api.custom_routes import CustomRoutes, CustomRoutesFirst, load_custom_routes, report_conflicts
from runlane.api.dashboard import routes as dashboard_routes
from runlane.api.dashboard.assets import load_dashboard
from runlane.api.error_responses import handle_problems
from runlane.api.identity import Identity
from runlane.api.mcp import routes as mcp_routes
from runlane.api.mcp.gateway import McpGateway
from runlane.api.memory_forwarding import MemoryForwarder, forward_to_owner
from runlane.api.openai import response_routes
from runlane.api.openai import routes as openai_routes
from runlane.api.openai.errors import PREFIX as OPENAI_PREFIX
from runlane.api.openai.errors import OpenAiErrors, handle_openai_problems
from runlane.api.read_only import ReadOnly
from runlane.api.route_table import RouteTable
from runlane.api.routes import access as access_routes
from runlane.api.routes import (
    action_links,
    actions,
    bulk,
    bundles,
    chat,
    concurrency_limits,
    dead_letters,
    definitions,
    editing,
    events,
    figures,
    finding,
    flow_control,
    health,
    inbox,
    lane_changes,
    lanes,
    limits,
    live,
    memory,
    memory_operations,
    memory_runs,
    memory_vaults,
    orchestrations,
    run_views,
    runs,
    scaling,
    schedules,
    secrets,
    slack_answers,
    stream,
    stream_tokens,
    system,
    tasks,
    ui,
    webhook_sources,
    webhooks,
    workers,
)
from runlane.api.serializers import ROOT
from runlane.api.server_heartbeat import ServerHeartbeat
from runlane.api.services import WorkerOptions, keep_parts, start_parts, stop_parts
from runlane.api.sse import StreamingApi
from runlane.app import App
from runlane.errors import MemoryOwnedElsewhere
from runlane.observability import tracing
from runlane.settings import Settings
from runlane.version import VERSION

_ABOUT = "Durable runs: an accepted run is stored and survives crashes."


def build_api(
    app: App,
    *,
    access: RequestAccess = RequestAccess.KEYS,
    worker: WorkerOptions | None = None,
    identity: Identity | None = None,
    ui: bool = True,
) -> FastAPI:
    """Return the API of an app, with the dashboard.

    Its lifespan connects the app and starts the services and the worker.
    """
    settings = app.settings
    tracing.start_tracing(settings, "runlane-api")

    options = app.agent_server.http
    custom = load_custom_routes(options)
    api = StreamingApi(
        title="Runlane",
        description=_ABOUT,
        version=VERSION,
        lifespan=_lifespan(app, access, worker, custom),
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=_operation_id,
        # A redirect of a POST with a trailing slash would be more surprising than a 404.
        redirect_slashes=False,
        telemetry=_telemetry(),
    )
    api.state.identity = identity
    _prepare_pages(api, settings, ui=ui and settings.ui)
    origins = _origins(settings.api_cors_origins) | {origin.lower() for origin in options.origins}
    if origins:
        api.cross_origin = CrossOrigin(origins, options.exposed_headers)
    handle_problems(api)
    table = _include_routes(api)
    # The middleware added last runs first.
    api.add_middleware(AuthenticateFirst)
    if custom is not None:
        report_conflicts(custom, table)
        api.add_middleware(CustomRoutesFirst, custom=custom, own=table)
    api.state.large_bodies = Counter[str]()
    api.add_middleware(BodyLimit, limit=settings.api_max_body_bytes, counts=api.state.large_bodies)
    if settings.paused:
        api.add_middleware(ReadOnly)
    if access is RequestAccess.OPEN_ON_LOOPBACK:
        api.add_middleware(LoopbackOnly, origins=origins)
    api.add_middleware(OpenAiErrors)
    return api


def _lifespan(
    app: App, access: RequestAccess, worker: WorkerOptions | None, custom: CustomRoutes | None
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(api: FastAPI) -> AsyncGenerator[None]:
        parts = await start_parts(app, access, worker)
        parts.mcp = McpGateway(parts, authenticate)
        parts.forwarder = MemoryForwarder()
        keep_parts(api, parts)
        api.state.heartbeat = ServerHeartbeat(parts)
        try:
            async with api.state.heartbeat.beating(), nullcontext() if custom is None else custom.lifespan():
                yield
        finally:
            await stop_parts(parts)
            tracing.stop_tracing()

    return lifespan


def _prepare_pages(api: StreamingApi, settings: Settings, *, ui: bool) -> None:
    """Load the files and settings that the dashboard's pages and their proxies need."""
    api.state.proxy_trust = ProxyTrust(settings)
    api.state.serves_dashboard = ui
    api.state.dashboard = load_dashboard() if ui else None
    api.base_path = settings.ui_base_path


def _include_routes(api: FastAPI) -> RouteTable:
    table = RouteTable(api)
    # Routes are tried in this order. The most frequent route is the first.
    table.include(tasks.fast_path, prefix=ROOT)
    table.include(system.public)
    table.include(system.router)
    table.include(webhook_sources.hooks)
    table.include(slack_answers.router)
    table.include(action_links.pages)
    for router in _routers():
        table.include(router, prefix=ROOT)
    for router in _run_routers():
        table.include(router, prefix=f"{ROOT}/runs")
        table.include(router, prefix=f"{ROOT}/orchestrations/runs")
    for router in (lane_admin.router, lane_admin.changes, memory_v0.router, *_agent_routers()):
        table.include(router)
    for router in (openai_routes.router, response_routes.router):
        table.include(router, prefix=OPENAI_PREFIX)
    handle_openai_problems(api)
    api.add_exception_handler(MemoryOwnedElsewhere, forward_to_owner)
    table.include(ag_ui_routes.router, prefix=ag_ui_routes.PREFIX)
    table.include(dashboard_routes.router)
    table.include(a2a_routes.router, prefix=a2a_routes.PREFIX)
    table.include(mcp_routes.router)
    table.include(mcp_routes.public)
    return table


def _origins(listed: str | None) -> set[str]:
    return {origin.strip().lower() for origin in (listed or "").split(",") if origin.strip()}


def _run_routers() -> list[APIRouter]:
    return [
        runs.single,
        run_views.single,
        stream.router,
        actions.single,
        orchestrations.single,
        orchestrations.forks,
        orchestrations.changes,
    ]


def _routers() -> list[APIRouter]:
    return [
        tasks.router,
        tasks.batches,
        orchestrations.collection,
        inbox.router,
        inbox.changes,
        action_links.changes,
        chat.router,
        chat.changes,
        run_views.collection,
        figures.router,
        finding.router,
        finding.changes,
        runs.collection,
        actions.collection,
        bulk.router,
        bulk.changes,
        dead_letters.router,
        dead_letters.changes,
        lanes.router,
        lanes.changes,
        lane_changes.router,
        lane_changes.changes,
        workers.router,
        workers.changes,
        scaling.router,
        health.router,
        flow_control.router,
        concurrency_limits.router,
        concurrency_limits.changes,
        limits.router,
        limits.changes,
        definitions.router,
        definitions.changes,
        editing.router,
        editing.changes,
        bundles.router,
        bundles.changes,
        events.router,
        events.changes,
        webhook_sources.router,
        webhook_sources.changes,
        access_routes.router,
        access_routes.changes,
        secrets.router,
        secrets.changes,
        schedules.router,
        schedules.changes,
        webhooks.router,
        webhooks.changes,
        live.router,
        ui.public,
        ui.router,
        memory.router,
        memory_operations.router,
        memory_runs.router,
        memory_vaults.router,
        stream_tokens.router,
    ]


def _agent_routers() -> list[APIRouter]:
    return [
        agent_system.public,
        assistants.router,
        threads.router,
        states.router,
        thread_runs.router,
        crons.router,
        commands.router,
        sockets.router,
        stateless_runs.router,
        items.router,
    ]


def _operation_id(route: APIRoute) -> str:
    return (
        f"{route.name}_{route.path_format}_{min(route.methods or ['GET'])}".replace("/", "_")
        .replace("{", "")
        .replace("}", "")
    )


def _telemetry() -> Any:
    """Return FastAPI's instrumentation if tracing is on. It excludes streams, which last for hours, and probes."""
    if tracing.provider() is None:
        return {"tracing": False, "metrics": False, "logs": False}
    return {
        "tracer_provider": tracing.provider(),
        "metrics": False,
        "logs": False,
        "operation_spans": False,
        "exclude": _untraced,
    }


def _untraced(scope: Any) -> bool:
    path = str(scope.get("path", ""))
    return path.endswith(("/stream", "/live")) or path in ("/health", "/ready", "/metrics")
