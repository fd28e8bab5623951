"""The disk-full drill: the disk of the database fills up under load, and space is freed again.

A run that was acknowledged is executed, and a start that could not be stored was refused. The disk is a small tmpfs, so
the test needs root; `make deploy-check` runs it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import asyncpg
import pytest
from tests.chaos.cluster import Cluster, eventually

from runlane.errors import RunlaneError
from runlane.settings import load_settings
from runlane.store.sql.migrate import upgrade
from runlane.testing import PostgresServer

DISK_MEGABYTES = {"postgres": 256, "sqlite": 48}
BATCH = 10
PAYLOAD = "x" * 20_000


@pytest.fixture
def disk(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """Mount a small disk, on which servers of the test have their files.

    The server runs as another user, who must reach them. Every session of pytest closes the folder that is above the
    folders of tests to other users, so the disk is not there.
    """
    # The folder of the test exists before the disk becomes the place of new ones.
    assert tmp_path.exists()
    place = Path(tempfile.mkdtemp(prefix="runlane-disk-"))
    size = f"size={DISK_MEGABYTES[kind]}m,mode=1777"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", place], check=True)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)
    place.rmdir()


@pytest.fixture
def server(disk: Path, kind: str) -> Generator[PostgresServer | None]:
    if kind == "sqlite":
        yield None
        return
    with PostgresServer({"max_wal_size": "64MB", "min_wal_size": "32MB"}) as server:
        yield server
        with suppress(Exception):
            server.kill()


def fill(disk: Path) -> Path:
    """Fill the disk with one file and return that file."""
    filler = disk / "filler"
    with suppress(OSError), filler.open("ab", buffering=0) as file:
        while True:
            file.write(b"0" * 65_536)
    return filler


async def submit(cluster: Cluster, acknowledged: list[str], refused: list[str]) -> None:
    """Start runs, and note which ones were acknowledged and which ones were refused."""
    while True:
        try:
            runs = await cluster.app.enqueue_many([("short", {"milliseconds": 5, "label": PAYLOAD})] * BATCH)
        except (RunlaneError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            refused.append(str(error))
        else:
            acknowledged.extend(run.run_id for run in runs)
        await asyncio.sleep(0.05)


def start_over_http(url: str) -> int:
    """Start a run over HTTP and return the status of the answer."""
    body = json.dumps({"input": {"milliseconds": 5, "label": PAYLOAD}}).encode()
    request = Request(f"{url}/api/v2/tasks/short/run", data=body, headers={"content-type": "application/json"})
    try:
        with urlopen(request, timeout=60) as answer:
            return answer.status
    except HTTPError as error:
        return error.code


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
async def test_nothing_acknowledged_is_lost_when_the_disk_is_full(
    disk: Path, server: PostgresServer | None, tmp_path: Path
) -> None:
    url = f"sqlite:///{disk / 'runs.db'}" if server is None else server.create_database("full")
    await upgrade(load_settings(database_url=url))
    # The files of the test itself are on another disk.
    cluster = Cluster(url, tmp_path)
    acknowledged: list[str] = []
    refused: list[str] = []
    try:
        await cluster.start_workers(1)
        (api,) = await cluster.start_servers(1)
        submitting = asyncio.create_task(submit(cluster, acknowledged, refused))

        async def some() -> bool:
            return len(acknowledged) >= 3 * BATCH

        await eventually(some, "acknowledged runs")
        filler = await asyncio.to_thread(fill, disk)

        async def not_accepted() -> bool:
            # What the database freed meanwhile is filled, too.
            await asyncio.to_thread(fill, disk)
            return bool(refused)

        await eventually(not_accepted, "refused runs", 120)

        async def refused_over_http() -> bool:
            await asyncio.to_thread(fill, disk)
            return await asyncio.to_thread(start_over_http, api) == 503

        await eventually(refused_over_http, "a start that is refused", 120)
        filler.unlink()
        if server is not None:
            # Postgres ends when it cannot write its log; a service manager starts it again. Otherwise it runs.
            await asyncio.to_thread(server.start)
        before = len(acknowledged)

        async def accepted_again() -> bool:
            return len(acknowledged) > before

        await eventually(accepted_again, "acknowledged runs after the space was freed", 120)

        async def accepted_over_http() -> bool:
            return await asyncio.to_thread(start_over_http, api) == 202

        await eventually(accepted_over_http, "a start over HTTP after the space was freed", 120)
        submitting.cancel()
        await asyncio.gather(submitting, return_exceptions=True)
        await cluster.all_ended(120)
        stored = {row["id"]: row["status"] for row in await cluster.rows("select id, status from runs")}
        assert {stored[run_id] for run_id in acknowledged} == {"completed"}
        await cluster.check_story()
    finally:
        await cluster.close()
