"""How long a worker may work after a renewal: counted from when it was sent, and always shorter than its lease."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from runlane import App
from runlane.worker import heartbeat
from tests.harness import eventually, settings_for

LEASE_SECONDS = 60.0
LATE_SECONDS = 0.3


async def test_a_late_answer_does_not_extend_the_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = App(settings_for(f"sqlite:///{tmp_path / 'runs.db'}", lease_seconds=LEASE_SECONDS, heartbeat_seconds=0.05))
    async with app:
        worker = await app.worker()
        # When each renewal was asked for, and the deadline that the one before it had set.
        asked: list[tuple[float, float]] = []
        renew = heartbeat.renew

        async def late(*arguments: Any, **options: Any) -> Any:
            at, incarnation = time.monotonic(), worker._registration
            renewed = await renew(*arguments, **options)
            if incarnation is not None:
                asked.append((at, incarnation.deadline))
            await asyncio.sleep(LATE_SECONDS)
            return renewed

        monkeypatch.setattr(heartbeat, "renew", late)
        await worker.start()
        try:
            await eventually(lambda: len(asked) >= 3, "three renewals")
        finally:
            await worker.stop(0)
    right = LEASE_SECONDS - heartbeat.fence_margin(LEASE_SECONDS)
    assert 0 < right < LEASE_SECONDS, "a worker stops before others may take its runs"
    for (at, _), (_, deadline) in pairwise(asked):
        assert deadline <= at + right
