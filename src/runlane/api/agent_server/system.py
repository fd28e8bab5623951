"""The server's description of itself for LangGraph clients. It needs no key and discloses nothing about runs."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from runlane.api.error_responses import problem
from runlane.api.router import RawRouter
from runlane.api.serializers import JsonBody
from runlane.api.services import parts_of
from runlane.errors import Unavailable
from runlane.store.sql.migrate import read_version
from runlane.version import VERSION

public = RawRouter(tags=["system"])


@public.get("/ok", response_model=dict[str, Any])
async def get_ok(
    request: Request, check_db: Annotated[bool, Query(description="Check the database, too.")] = False
) -> Response:
    """Return `ok` if the server responds."""
    if check_db:
        try:
            await read_version(parts_of(request).database)
        except Unavailable:
            return problem(503, "unavailable", "The database does not answer. See /ready.")
    return JsonBody({"ok": True, "services": {}})


@public.get("/info", response_model=dict[str, Any])
async def get_info() -> JsonBody:
    """Return the version of the server and its features."""
    return JsonBody(
        {
            "version": VERSION,
            "langgraph_py_version": _langgraph_version(),
            "flags": {"assistants": True, "crons": True, "langsmith": False, "strict_resume": True},
            "host": {"kind": "self-hosted", "project_id": None, "host_revision_id": None, "revision_id": None},
            "metadata": {"server": "runlane"},
        }
    )


@cache
def _langgraph_version() -> str | None:
    """Return the version of LangGraph that is installed beside this server; None if it is not installed."""
    try:
        return version("langgraph")
    except PackageNotFoundError:
        return None
