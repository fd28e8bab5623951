"""A cluster of real processes over one database: started, killed, frozen and stopped one by one, by pid.

The test process enqueues and checks; workers and enqueuers are processes of their own. `Cluster.close` ends every
process that a test leaves running and prints the logs, which pytest shows when the test failed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import asyncpg
from pydantic import SecretStr

from runlane import App
from runlane.settings import Settings
from runlane.testing.crash_points import VARIABLE, CrashPoint
from tests import forking
from tests.chaos import chaos_tasks
from tests.chaos.sink import Sink

ROOT = Path(__file__).parents[2]
TASKS = "tests.chaos.chaos_tasks"
RUNLANE = (sys.executable, "-m", "runlane")
PATIENCE_SECONDS = 180.0
LOG_LINES = 60
# A dead worker is noticed sooner than with the shipped defaults, which a few tests use on purpose. Neither makes a
# worker that lives lose its runs: before silence counts, its liveness lock must be free.
QUICK_DETECTION = {"silence_seconds": 0.2, "reaper_seconds": 0.1}
Row = dict[str, Any]


async def eventually(
    check: Callable[[], Awaitable[Any]], what: str, timeout_seconds: float = PATIENCE_SECONDS, every: float = 0.05
) -> Any:
    """Return the first true answer of `check`; raise an error that names `what` after the timeout."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        answer = await check()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(
                f"{what} did not come true within {timeout_seconds:g} s; the last answer was {answer!r}"
            )
        await asyncio.sleep(every)


class Process:
    """One process of the cluster."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: dict[str, str],
        log: Path,
        popen: type[subprocess.Popen[Any]] = forking.Popen,
    ) -> None:
        self.name = name
        self.log = log
        self.ended_ns: int | None = None
        with log.open("wb") as out:
            self._process = popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def resident_mb(self) -> float:
        """Return its memory, 0 once it has died."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        _, found, resident = status.partition("VmRSS:")
        return int(resident.split()[0]) / 1024 if found else 0.0

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL and wait for the end.

        `ended_ns` is the earliest possible time of the end. The kernel releases the liveness lock before this process
        learns of the end, so another worker may rightly take a run over in between.
        """
        self.ended_ns = time.monotonic_ns()
        self._process.kill()
        self._process.wait(30)

    def freeze(self) -> None:
        """Send SIGSTOP and wait until every thread is stopped."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    @property
    def frozen(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    async def ended(self, timeout_seconds: float = PATIENCE_SECONDS) -> int:
        """Wait for the end and return the exit code."""

        async def gone() -> bool:
            return not self.alive

        await eventually(gone, f"the end of {self.name}", timeout_seconds)
        self.ended_ns = self.ended_ns or time.monotonic_ns()
        assert self._process.returncode is not None
        return self._process.returncode

    def log_text(self) -> str:
        """Return the log so far."""
        return self.log.read_text(errors="replace")


class Cluster:
    """The processes over one database, and queries about them."""

    def __init__(self, url: str, folder: Path, *, shipped_defaults: bool = False, **environment: str) -> None:
        self.url = url
        self.folder = folder
        detection: dict[str, Any] = {} if shipped_defaults else QUICK_DETECTION
        self.environment = {
            **os.environ,
            **{f"RUNLANE_{name.upper()}": str(value) for name, value in detection.items()},
            "RUNLANE_DATABASE_URL": url,
            "RUNLANE_WORKER_HEALTH_PORT": "0",
            "RUNLANE_MAX_LOSSES": "1000",
            "CHAOS_FOLDER": str(folder),
            "PYTHONUNBUFFERED": "1",
            **environment,
        }
        self.sink = Sink(folder / "sink.db")
        self.app = App(Settings(database_url=SecretStr(url), worker_health_port=0, max_losses=1000, **detection))
        self.app.include(chaos_tasks.app)
        self.processes: list[Process] = []
        self._link: Any = None
        self._link_lock = asyncio.Lock()
        # A test of what a process imports, or of its memory, sets subprocess.Popen.
        self.popen: type[subprocess.Popen[Any]] = forking.Popen
        self.tasks = TASKS

    async def close(self) -> None:
        for process in self.processes:
            if process.alive:
                process.thaw()
                process.kill()
        if self._link is not None:
            self._link.terminate()
        await self.app.close()
        self.sink.close()
        for process in self.processes:
            lines = process.log_text().splitlines()
            print(f"--- {process.name}, pid {process.pid}, {len(lines)} lines, the last:")
            print("\n".join(lines[-LOG_LINES:]))

    # --- processes

    def start(
        self,
        name: str,
        command: Sequence[str],
        crash: CrashPoint | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        number = len(self.processes) + 1
        full = {**self.environment, **(environment or {})}
        if crash is not None:
            full[VARIABLE] = str(crash)
        process = Process(name, command, full, self.folder / f"process-{number:02}.log", self.popen)
        self.processes.append(process)
        return process

    def start_worker(
        self,
        *,
        concurrency: int = 10,
        lanes: str | None = None,
        crash: CrashPoint | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        """Start `runlane worker`; it may not be online yet when this returns."""
        command = [*RUNLANE, "worker", f"{self.tasks}:app", "--concurrency", str(concurrency)]
        if lanes is not None:
            command += ["--lanes", lanes]
        return self.start("worker", command, crash, environment)

    async def start_workers(self, count: int, **options: Any) -> list[Process]:
        """Start `count` workers and wait until they are online."""
        workers = [self.start_worker(**options) for _ in range(count)]
        for worker in workers:
            await self.online(worker)
        return workers

    async def online(self, worker: Process) -> str:
        """Wait until a worker is online and return the id of its registration."""

        async def registered() -> str | None:
            assert worker.alive, f"the worker ended:\n{worker.log_text()}"
            rows = await self.rows(
                f"select id from workers where pid = {worker.pid} and status = 'online' order by id desc limit 1"
            )
            return rows[0]["id"] if rows else None

        return cast("str", await eventually(registered, "a worker online"))

    def start_server(self, *, crash: CrashPoint | None = None, environment: Mapping[str, str] | None = None) -> Process:
        """Start `runlane serve` on a free port; it may not listen yet when this returns."""
        return self.start("server", [*RUNLANE, "serve", f"{TASKS}:app", "--port", "0"], crash, environment)

    async def start_servers(self, count: int) -> list[str]:
        """Start `count` API replicas and return their URLs."""
        return [await self.url_of(server) for server in [self.start_server() for _ in range(count)]]

    async def url_of(self, server: Process) -> str:
        """Wait until a server listens and return its URL."""
        return str((await self.logged(server, "serving"))["url"])

    async def logged(self, process: Process, event: str, times: int = 1) -> Row:
        """Wait until a process has logged an event `times` times; return that log line."""

        async def find() -> Row | None:
            assert process.alive, f"the {process.name} ended:\n{process.log_text()}"
            lines = [line for line in process.log_text().splitlines() if f'"event": "{event}"' in line]
            return json.loads(lines[times - 1]) if len(lines) >= times else None

        return cast("Row", await eventually(find, f"{event} of the {process.name}"))

    def open_gate(self, name: str) -> None:
        """Let the tasks that wait for this gate continue."""
        (self.folder / name).touch()

    # --- queries

    async def rows(self, query: str) -> list[Row]:
        """Return the rows of a query over a connection that no other part of the test uses."""
        if self.url.startswith("sqlite"):
            return await asyncio.to_thread(self._sqlite_rows, query)
        async with self._link_lock:
            try:
                return await self._postgres_rows(query)
            except asyncpg.InternalClientError:
                # The crash of the server interrupted the query, and the driver cannot use the connection any more.
                if self._link is not None:
                    self._link.terminate()
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                if self._link is not None and not self._link.is_closed():
                    raise
            # The test has crashed the server or ended the connection; the server may be back.
            self._link = None
            return await self._postgres_rows(query)

    async def _postgres_rows(self, query: str) -> list[Row]:
        if self._link is None:
            # Without cached statements: some tests change the tables meanwhile.
            self._link = await cast("Any", asyncpg).connect(self.url, statement_cache_size=0)
        return [dict(row) for row in await self._link.fetch(query)]

    def _sqlite_rows(self, query: str) -> list[Row]:
        link = sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=60, isolation_level=None)
        try:
            link.row_factory = sqlite3.Row
            return [dict(row) for row in link.execute(query).fetchall()]
        finally:
            link.close()

    async def count(self, condition: str) -> int:
        """Return the number of runs that match."""
        return int((await self.rows(f"select count(*) as n from runs where {condition}"))[0]["n"])

    async def skip_waits(self) -> None:
        """Make every scheduled run due: runs that lost several workers wait between losses."""
        await self.rows("update runs set due_at = 1 where status = 'scheduled' and due_at > 1 returning id")

    async def all_ended(self, timeout_seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until every run has ended."""

        async def none_left() -> bool:
            return await self.count("ended_at is null") == 0

        try:
            await eventually(none_left, "the end of every run", timeout_seconds, every=0.2)
        except AssertionError:
            left = await self.rows("select * from runs where ended_at is null order by id limit 5")
            workers = await self.rows("select * from workers order by id")
            raise AssertionError(
                f"runs did not end: {left}; workers: {workers}; sessions: {await self._sessions()}"
            ) from None

    async def _sessions(self) -> list[Row]:
        """Return what the sessions of the server do and which locks they hold or wait for, for an error message."""
        if self.url.startswith("sqlite"):
            return []
        return await self.rows(
            "select a.pid, a.state, a.wait_event, left(a.query, 80) as query, now() - a.xact_start as age, "
            "array_agg(l.mode || l.granted::text) as locks from pg_stat_activity a left join pg_locks l using (pid) "
            "where a.datname = current_database() and a.xact_start is not null and a.pid <> pg_backend_pid() "
            "group by 1, 2, 3, 4, 5"
        )

    async def running(self, count: int = 1) -> list[Row]:
        """Wait until `count` runs are running and their tasks have begun; return them."""

        async def begun() -> list[Row] | None:
            rows = await self.rows("select * from runs where status = 'running' order by id")
            seen = {(span.run_id, span.attempt) for span in self.sink.spans()}
            begun = [row for row in rows if (row["id"], row["attempt"]) in seen]
            return begun if len(begun) >= count else None

        return cast("list[Row]", await eventually(begun, f"{count} running"))

    async def events(self, kind: str | None = None) -> list[Row]:
        """Return all events, or those of a type, in the order of each run."""
        where = "" if kind is None else f" where type = '{kind}'"
        return await self.rows(f"select * from run_events{where} order by run_id, seq")

    async def workers(self) -> dict[str, str]:
        """Return every worker's status by id."""
        return {row["id"]: row["status"] for row in await self.rows("select id, status from workers")}

    # --- checks

    async def check_story(self) -> None:
        """Check that every ended run has one end, every stream is whole and no attempt is recorded twice."""
        runs = {row["id"]: row for row in await self.rows("select * from runs")}
        events: dict[str, list[Row]] = defaultdict(list)
        for event in await self.events():
            events[event["run_id"]].append(event)
        attempts: dict[str, list[Row]] = defaultdict(list)
        for row in await self.rows("select * from run_attempts order by run_id, attempt"):
            attempts[row["run_id"]].append(row)
        results = {row["run_id"] for row in await self.rows("select run_id from run_results")}
        for run_id, run in runs.items():
            self._check_run(run, events[run_id], attempts[run_id], run_id in results)
        assert results <= set(runs)

    def _check_run(self, run: Row, events: list[Row], attempts: list[Row], has_result: bool) -> None:
        story = [(event["seq"], event["type"], event["attempt"]) for event in events]
        details = f"run {run}\nevents {story}\nattempts {attempts}"
        assert [event["seq"] for event in events] == list(range(1, run["last_seq"] + 1)), details
        assert all(first["attempt"] <= second["attempt"] for first, second in pairwise(events)), details
        begun = [event["attempt"] for event in events if event["type"] == "worker_picked_up"]
        assert begun == list(range(1, run["attempt"] + 1)), details
        ended = run["ended_at"] is not None
        assert has_result == ended, details
        if not ended:
            return
        assert [event["type"] for event in events].count("done") >= 1, details
        assert events[-1]["type"] == "done", details
        assert [row["attempt"] for row in attempts] == begun, details
        completed = [row for row in attempts if row["outcome"] == "completed"]
        assert len(completed) == (1 if run["status"] == "completed" else 0), details
        if run["status"] == "failed":
            assert (
                run["failures"] >= run["max_attempts"]
                or run["losses"] > run["max_losses"]
                or any(event["type"] == "attempt_failed" for event in events)
            ), details
        else:
            assert not run["holds_key"], details

    def check_effects(self, run_ids: Sequence[str]) -> None:
        """Check that each run's effect happened once and no attempt passed the fence after a newer one."""
        effects = self.sink.effects()
        assert sorted(effects) == sorted(run_ids)
        newest: dict[str, int] = defaultdict(int)
        new: dict[str, int] = defaultdict(int)
        for call in self.sink.calls():
            if call.verdict == "stale":
                continue
            assert call.attempt >= newest[call.run_id], call
            newest[call.run_id] = call.attempt
            new[call.run_id] += call.verdict == "new"
        assert set(new.values()) <= {1}


MakeCluster = Callable[..., Awaitable[Cluster]]
