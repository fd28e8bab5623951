"""A record that the database refuses for its content fails its attempt, because a retry would be refused too."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from pydantic import SecretStr

from runlane import App, Context, Run, Settings, Status


async def test_a_refused_entry_ends_its_run_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "runlane.db"
    app = App(Settings(database_url=SecretStr(f"sqlite:///{file}"), worker_health_port=0))

    @app.task("say", max_attempts=1)
    async def say(ctx: Context, text: str) -> str:
        await ctx.log(text)
        return text

    @app.task("give", max_attempts=1)
    async def give(ctx: Context, text: str) -> str:
        return text

    async with app:
        with sqlite3.connect(file) as connection:
            for table, column in (("run_events", "data"), ("run_results", "result")):
                connection.execute(
                    f"create trigger poison_{table} before insert on {table} when new.{column} like '%poison%' "
                    "begin select raise(abort, 'no poison here'); end"
                )
        connection.close()
        worker = await app.worker()
        await worker.start()
        try:
            ended: dict[str, list[Run]] = {}
            for task in ("say", "give"):
                accepted = await app.enqueue_many([(task, {"text": text}) for text in ("a", "poison", "b")])
                ended[task] = [await app.wait(one.run_id, timeout=30) for one in accepted]
        finally:
            await worker.stop(grace_seconds=0)
    expected = [Status.COMPLETED, Status.FAILED, Status.COMPLETED]
    assert [run.status for run in ended["say"]] == expected
    assert [run.status for run in ended["give"]] == expected
    assert ended["give"][1].error is not None
    assert ended["give"][1].error["type"] == "NotStored"
