"""The error of a lost attempt describes what happened, like every other error."""

from __future__ import annotations

from pathlib import Path

from pydantic import SecretStr

from runlane import App, Context, Settings
from runlane.store.queue.claim import claim
from runlane.store.queue.claim_locks import LaneMemory
from runlane.store.queue.reaping import take_over
from runlane.store.queue.runs import read_attempts
from runlane.store.queue.workers import register


async def test_the_error_of_a_lost_attempt_names_the_worker(tmp_path: Path) -> None:
    app = App(Settings(database_url=SecretStr(f"sqlite:///{tmp_path}/runlane.db")))

    @app.task("nap", max_losses=0)
    async def nap(ctx: Context) -> None: ...

    async with app:
        accepted = await app.enqueue("nap")
        database = await app.database()
        await register(
            database,
            worker_id="wrk_gone",
            host="here",
            pid=1,
            version="0",
            lanes=["*"],
            capacity=1,
            has_lock=False,
            lease_seconds=60,
        )
        await database.transact(lambda session: claim(session, "wrk_gone", ["nap"], 1, LaneMemory()))
        await database.transact(lambda session: take_over(session, ["wrk_gone"]))
        run = await app.get(accepted.run_id)
        attempts = await read_attempts(database, accepted.run_id)
    for error in (run.error, attempts[0]["error"]):
        assert error is not None
        assert error["type"] == "WorkerLost"
        assert error["message"] == "Worker wrk_gone vanished during the attempt."
