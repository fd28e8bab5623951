"""A real worker with its maintenance services in this process, on SQLite and on Postgres."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from runlane.settings import Settings
from tests.harness import settings_for
from tests.integration.process import Process


@pytest.fixture(params=["sqlite", "postgres"])
def settings(request: pytest.FixtureRequest) -> Settings:
    """Return settings that keep waits short."""
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    fields: dict[str, Any] = {
        "timer_seconds": 0.02,
        "reaper_seconds": 0.1,
        "heartbeat_seconds": 0.1,
        "cancel_grace_seconds": 5,
        "grace_seconds": 5,
    }
    marker = request.node.get_closest_marker("settings")
    if marker is not None:
        fields |= marker.kwargs
    return settings_for(url, **fields)


@pytest.fixture
async def process(settings: Settings) -> AsyncGenerator[Process]:
    """Yield an app without tasks; its worker starts with `process.start()`."""
    process = Process(settings)
    try:
        yield process
    finally:
        await process.stop()
