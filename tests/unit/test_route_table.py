"""A request finds its route by the table, and every route that the API describes is in it."""

from __future__ import annotations

import re
from typing import cast

import pytest
from fastapi import APIRouter, FastAPI

from runlane import App
from runlane.api.route_table import RouteTable
from runlane.api.server import build_api


def test_every_described_route_is_found() -> None:
    api = build_api(App())
    table = cast("RouteTable", api.router.middleware_stack)
    described = [(path, method) for path, methods in api.openapi()["paths"].items() for method in methods]
    assert len(described) > 300
    missing = [
        (path, method)
        for path, method in described
        if not table.has(
            {"type": "http", "method": method.upper(), "path": re.sub(r"\{[^}]+\}", "x", path), "root_path": ""}
        )
    ]
    assert missing == []


def test_a_path_without_a_route_is_not_found() -> None:
    table = cast("RouteTable", build_api(App()).router.middleware_stack)
    for path in ("/nothing", "/api/v2", "/api/v2/nothing", "/api/v2/runs/x/nothing"):
        assert not table.has({"type": "http", "method": "GET", "path": path, "root_path": ""})


def test_a_route_that_begins_with_a_parameter_is_refused() -> None:
    def read(name: str) -> str:
        return name

    router = APIRouter()
    router.add_api_route("/{name}", read)
    with pytest.raises(ValueError, match="Begin it with a name"):
        RouteTable(FastAPI()).include(router, "/api/v2")
