"""Readers see the last progress that a task reported, even if the task ended right after it."""

from __future__ import annotations

from pathlib import Path

from pydantic import SecretStr

from runlane import App, Context, Fail, Settings, Status


async def test_the_end_of_a_run_stores_progress_that_was_held_back(tmp_path: Path) -> None:
    app = App(Settings(database_url=SecretStr(f"sqlite:///{tmp_path}/runlane.db"), worker_health_port=0))

    @app.task("quick")
    async def quick(ctx: Context, fail: bool) -> None:
        for step in range(1, 5):
            await ctx.progress(step / 4, f"step {step}")
        if fail:
            raise Fail("no more")

    async with app:
        worker = await app.worker()
        await worker.start()
        try:
            for fail, status in ((False, Status.COMPLETED), (True, Status.FAILED)):
                accepted = await app.enqueue("quick", {"fail": fail})
                run = await app.wait(accepted.run_id, timeout=60)
                assert (run.status, run.progress, run.progress_note) == (status, 1.0, "step 4")
        finally:
            await worker.stop(grace_seconds=0)
