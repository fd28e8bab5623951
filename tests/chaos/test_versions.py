"""The previous release and this code, side by side under load: upgraded, rolled forward and rolled back.

The previous release is a wheel of the commit that docs/releases.md records. The new one is a wheel of the working tree
with a later version and one more migration, so that every upgrade changes the schema, whether or not the tree has
migrations that the release lacks. Both run on the packages of this environment.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest

from runlane import Client, Event
from runlane.store.sql.migrations import HEAD
from runlane.store.sql.upgrade_plan import declared_compatibility
from runlane.testing import PostgresServer
from tests.chaos.balancer import Balancer
from tests.chaos.cluster import RUNLANE, Cluster, Process, eventually
from tests.deploy.packaging import copy_of_tree, installed_wheel, released, source_of
from tests.integration.test_upgrade import LATER, LATER_REVISION
from tests.scale import scaled

# How many runs both versions complete beside each other in each direction, and for how long at least.
RUNS_BESIDE = scaled(5, 100)
SECONDS_BESIDE = scaled(0, 60)
PRODUCERS = scaled(3, 12)
NEXT_VERSION = "999.0.0"
TASKS = """
import asyncio
from runlane import App, Context

app = App()

@app.task("count", max_losses=1000)
async def count(ctx: Context, lines: int) -> int:
    for number in range(ctx.saved or 0, lines):
        await ctx.log(f"line {number + 1}", number=number + 1)
        await ctx.checkpoint(number + 1)
        await asyncio.sleep(0.1)
    return lines
"""
# It pauses in the middle, so another process continues it, of either version.
RELAY = {
    "id": "relay",
    "entry_step_id": "first",
    "steps": [
        {"id": "first", "type": "print", "print_content": "one", "output_key": "one", "next_step_id": "rest"},
        {"id": "rest", "type": "wait", "seconds": 0.3, "next_step_id": "second"},
        {"id": "second", "type": "transform", "transform_code": "result = state['one'] + ' two'", "output_key": "two",
         "next_step_id": "last"},
        {"id": "last", "type": "print", "print_content": "{state.two} three"},
    ],
}  # fmt: skip


@dataclass
class Release:
    """A version of Runlane, and its processes on the database of a cluster."""

    cluster: Cluster
    site: Path
    process: Process | None = None

    @property
    def _environment(self) -> dict[str, str]:
        return {"PYTHONPATH": f"{self.site}:{self.cluster.folder}"}

    async def run(self, *arguments: str) -> str:
        """Run a command of this version to its end, while the clients continue."""
        variables = self.cluster.environment | self._environment
        done = await asyncio.to_thread(
            subprocess.run, [*RUNLANE, *arguments], cwd=self.cluster.folder, env=variables,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    async def start(self) -> str:
        """Start a server with a worker; return its URL when both are ready."""
        serve = [*RUNLANE, "serve", "versioned_tasks:app", "--worker", "--concurrency", "8", "--port", "0"]
        self.process = self.cluster.start("server", serve, environment=self._environment)
        await self.cluster.online(self.process)
        return await self.cluster.url_of(self.process)

    async def stop(self) -> None:
        """Drain and stop, as a rollout does."""
        assert self.process is not None
        self.process.signal(signal.SIGTERM)
        assert await self.process.ended() == 0, self.process.log_text()[-2000:]

    async def completed(self) -> int:
        """Return how many runs the newest process has completed."""
        assert self.process is not None
        (row,) = await self.cluster.rows(
            "select count(*) as n from run_attempts a join workers w on w.id = a.worker_id "
            f"where w.pid = {self.process.pid} and a.outcome = 'completed'"
        )
        return int(row["n"])


@dataclass
class Load:
    """Clients that start runs and read every event of each, through any server, until they are stopped."""

    url: str
    stopping: bool = False
    results: dict[str, object] = field(default_factory=dict[str, object])
    numbers: dict[str, list[int]] = field(default_factory=dict[str, list[int]])

    async def produce(self) -> None:
        while not self.stopping:
            # A new connection for each run, so that every server gets some.
            async with Client(self.url) as client:
                if len(self.results) % 3:
                    run_id = (await client.enqueue("count", {"lines": 5})).run_id
                else:
                    run_id = (await client.orchestrate("relay", "go")).run_id
                self.results[run_id] = None
                self.numbers[run_id] = [e.seq async for e in client.stream(run_id) if isinstance(e, Event)]
                self.results[run_id] = (await client.get(run_id)).result


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return where the previous release and the next one are installed."""
    folder = tmp_path_factory.mktemp("releases")
    _, commit = released()
    old = installed_wheel(source_of(commit, folder / "old/source"), folder / "old")
    source = copy_of_tree(folder / "new/source")
    project = source / "pyproject.toml"
    first, _, rest = project.read_text().partition('\nversion = "')
    project.write_text(f'{first}\nversion = "{NEXT_VERSION}"{rest.partition(chr(34))[2]}')
    migrations = source / "src/runlane/store/sql/migrations"
    # It adds to the schema of the tree, so the same code runs on it as on that one.
    oldest = declared_compatibility()[HEAD]
    later = LATER_REVISION.replace(f'compatible_from = "{HEAD}"', f'compatible_from = "{oldest}"')
    (migrations / "versions" / f"{LATER}_color.py").write_text(later)
    with (migrations / "__init__.py").open("a") as listed:
        listed.write(f'HEAD = "{LATER}"\nREVISIONS = (*REVISIONS, HEAD)\n')
    return old, installed_wheel(source, folder / "new")


@pytest.fixture
async def releases(
    sites: tuple[Path, Path], chaos_postgres: PostgresServer, tmp_path: Path
) -> AsyncIterator[tuple[Release, Release]]:
    """Yield the previous and the next release on an empty database."""
    (tmp_path / "versioned_tasks.py").write_text(TASKS)
    cluster = Cluster(chaos_postgres.create_database(f"versions_{uuid4().hex}"), tmp_path)
    # A process that was forked from this one would have imported the code of the working tree.
    cluster.popen = subprocess.Popen
    yield Release(cluster, sites[0]), Release(cluster, sites[1])
    await cluster.close()


@asynccontextmanager
async def loaded(url: str) -> AsyncGenerator[Load]:
    """Run clients while the block runs, then let them finish; their errors are raised."""
    load = Load(url)
    async with asyncio.TaskGroup() as clients:
        for _ in range(PRODUCERS):
            clients.create_task(load.produce())
        try:
            yield load
        finally:
            load.stopping = True


async def both_complete_runs(*beside: Release) -> None:
    """Wait until each release has completed runs while the others did, for the time of the test."""
    before = [await release.completed() for release in beside]

    async def enough() -> bool:
        done = [await release.completed() for release in beside]
        return all(now - then >= RUNS_BESIDE for now, then in zip(done, before, strict=True))

    await asyncio.sleep(SECONDS_BESIDE)
    await eventually(enough, f"{RUNS_BESIDE} runs of each version")


async def test_both_versions_run_side_by_side_and_roll_in_both_directions(releases: tuple[Release, Release]) -> None:
    old, new = releases
    await old.run("db", "upgrade")
    url = await old.start()
    async with Client(url) as client:
        await client.sync({"orchestrations": [RELAY]})
    async with Balancer([url]) as balancer, loaded(balancer.url) as load:
        await both_complete_runs(old)
        # Forward: the schema, then the code, with both versions beside each other.
        assert LATER in await new.run("db", "upgrade")
        new_url = await new.start()
        balancer.route_to([url, new_url])
        await both_complete_runs(old, new)
        balancer.route_to([new_url])
        await old.stop()
        await both_complete_runs(new)
        # Back: the previous release starts on the newer schema, which stays.
        url = await old.start()
        balancer.route_to([url, new_url])
        await both_complete_runs(old, new)
        balancer.route_to([url])
        await new.stop()
        await both_complete_runs(old)
    cluster = old.cluster
    await cluster.all_ended()
    await cluster.check_story()
    assert set(load.results.values()) == {5, "one two three"}
    for run_id, numbers in load.numbers.items():
        (row,) = await cluster.rows(f"select last_seq from runs where id = '{run_id}'")
        assert numbers == list(range(1, row["last_seq"] + 1))
    assert await cluster.count("true") == len(load.results)
    assert await cluster.count("status <> 'completed' or failures > 0 or losses > 0") == 0
    versions = {row["version"] for row in await cluster.rows("select version from workers")}
    assert len(versions) == 2
    assert NEXT_VERSION in versions
    assert {row["color"] for row in await cluster.rows("select distinct color from runs")} == {"blue"}
