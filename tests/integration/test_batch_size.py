"""Batches are bounded by what is in them, not only by how many share them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from runlane import App, Context, Settings, Status
from runlane.store.queue.committer import BATCH_CHARACTERS

LARGE = 1024 * 1024 - 100


async def test_large_inputs_do_not_share_one_transaction(tmp_path: Path) -> None:
    app = App(Settings(database_url=f"sqlite:///{tmp_path}/runs.db", worker_health_port=0))  # type: ignore[arg-type]

    @app.task("quick")
    async def quick(ctx: Context, text: str) -> None: ...

    count = 2 * BATCH_CHARACTERS // LARGE
    async with app:
        committer = (await app.connect()).committer
        large = {"text": "x" * LARGE}
        alone = await asyncio.gather(*(app.enqueue("quick", large) for _ in range(count)))
        assert committer.commits >= 2
        before = committer.commits
        together = await app.enqueue_many([("quick", large)] * count)
        assert committer.commits - before >= 2
        assert {run.status for run in (*alone, *together)} == {Status.QUEUED}
        assert len({run.id for run in (*alone, *together)}) == 2 * count
