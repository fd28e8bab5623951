"""The tasks that the chaos tests execute, and the app that their worker processes are started with.

A worker finds the sink and the gates in the folder named by CHAOS_FOLDER. A gate is a file: tasks wait for it, so a
test decides when they may continue.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from runlane import App, Context, Fail, Retry
from runlane.errors import LeaseLost, RunCancelled
from runlane.testing import crash_points
from tests.chaos.sink import Sink

crash_points.install_from_environment()

app = App()
# Streams must carry every plane of Unicode, what JSON escapes, and what ends a line in SSE.
ODD_TEXT = 'Zürich 東京 🎉 \u2028 \u0085 "quoted" back\\slash\r\nnew line\ttab data: id: 7'
_sinks: dict[Path, Sink] = {}


def folder() -> Path:
    """Return the folder that this process shares with the test."""
    return Path(os.environ["CHAOS_FOLDER"])


def sink() -> Sink:
    """Return the sink of the test that started this process."""
    path = folder() / "sink.db"
    if path not in _sinks:
        _sinks[path] = Sink(path)
    return _sinks[path]


def _open(gate: str) -> bool:
    return (folder() / gate).exists()


@app.task("short", max_losses=1000)
async def short(ctx: Context, milliseconds: float, label: str = "") -> dict[str, Any]:
    """Work for a moment, with one effect."""
    sink().begin(ctx.run_id, ctx.attempt, label)
    await asyncio.sleep(milliseconds / 1000)
    return {"verdict": sink().complete(ctx.run_id, ctx.attempt, label)}


@app.task(
    "gather", max_losses=1000, flow_control={"batch": {"key": "{{site}}", "max_size": 5, "max_wait_seconds": 0.3}}
)
async def gather(ctx: Context, items: list[dict[str, Any]]) -> int:
    """Take the inputs of several starts."""
    await asyncio.sleep(0.02)
    return len(items)


@app.task(
    "edit",
    max_losses=1000,
    flow_control={"debounce": {"key": "{{doc}}", "delay_seconds": 0.1, "max_delay_seconds": 0.5}},
)
async def edit(ctx: Context, doc: str, n: int) -> int:
    """Take the last of several inputs."""
    await asyncio.sleep(0.02)
    return n


@app.task("single", max_losses=1000, flow_control={"unique": {"key": "{{customer}}"}})
async def single(ctx: Context, customer: str) -> None:
    """Run alone for its customer."""
    await asyncio.sleep(0.05)


@app.task("pay")
async def pay(ctx: Context, order: str) -> dict[str, Any]:
    """An effect that must not happen twice; each is a line in a file."""
    with (folder() / "paid").open("a") as file:
        file.write(f"{order} {ctx.idempotency_key}\n")
    return {"paid": order}


@app.task("capped", lane="capped", max_losses=1000)
async def capped(ctx: Context, milliseconds: float) -> dict[str, Any]:
    """Do the same in a lane that tests put a cap on."""
    return await short(ctx, milliseconds)


@app.task("gated", max_losses=1000)
async def gated(ctx: Context, gate: str, note: bool = False) -> dict[str, Any]:
    """Wait for a gate; with `note`, write a line into the run's stream before the effect."""
    sink().begin(ctx.run_id, ctx.attempt, gate)
    while not _open(gate):  # noqa: ASYNC110 - a file of another process, so there is no event to wait for
        await asyncio.sleep(0.02)
    if note:
        await ctx.log("through the gate")
    return {"verdict": sink().complete(ctx.run_id, ctx.attempt, gate)}


@app.task("lines", max_losses=1000)
async def lines_at_a_pace(ctx: Context, lines: int, pause_seconds: float = 0.0) -> int:
    """Write lines at a pace; a new attempt continues after the last checkpoint, one of which follows every ten."""
    for number in range(ctx.saved or 0, lines):
        await ctx.log(f"line {number + 1} {ODD_TEXT}", number=number + 1, odd=ODD_TEXT)
        if (number + 1) % 10 == 0:
            await ctx.checkpoint(number + 1)
        await asyncio.sleep(pause_seconds)
    return lines


@app.task("pour", max_losses=1000)
async def pour(ctx: Context, lines: int, at_once: int = 250) -> int:
    """Write very many lines as fast as they go."""
    for first in range(0, lines, at_once):
        last = min(lines, first + at_once)
        await asyncio.gather(*(ctx.log(f"line {number + 1}") for number in range(first, last)))
    return lines


@app.task("endless", max_losses=1000)
async def endless(ctx: Context) -> None:
    """Run until it is interrupted, and record when that was."""
    sink().begin(ctx.run_id, ctx.attempt)
    try:
        await asyncio.Event().wait()
    finally:
        sink().end(ctx.run_id, ctx.attempt)


@app.task("saving", max_losses=1000)
async def saving(ctx: Context) -> dict[str, Any]:
    """Two parts with a checkpoint between them; the first is not repeated once the checkpoint is stored."""
    sink().begin(ctx.run_id, ctx.attempt)
    if ctx.saved is None:
        await ctx.checkpoint({"part": 1, "attempt": ctx.attempt})
    return {"verdict": sink().complete(ctx.run_id, ctx.attempt), "saved": ctx.saved}


@app.task("later", max_losses=1000)
async def later(ctx: Context) -> dict[str, Any]:
    """Request one retry in a moment."""
    sink().begin(ctx.run_id, ctx.attempt)
    if ctx.saved is None:
        await ctx.checkpoint(True)
        raise Retry(after_seconds=0.2)
    return {"verdict": sink().complete(ctx.run_id, ctx.attempt)}


@app.task("hopeless")
async def hopeless(ctx: Context, label: str = "") -> None:
    """Fail for good."""
    sink().begin(ctx.run_id, ctx.attempt, label)
    sink().complete(ctx.run_id, ctx.attempt, label)
    raise Fail("It was never going to work.")


@app.task("segfault", max_losses=2)
async def segfault(ctx: Context) -> None:
    """Crash the interpreter of the worker."""
    sink().begin(ctx.run_id, ctx.attempt)
    await asyncio.sleep(0.3)
    ctypes.string_at(0)


@app.task("hoard", max_losses=2)
async def hoard(ctx: Context) -> None:
    """Take memory until the process is killed for it."""
    sink().begin(ctx.run_id, ctx.attempt)
    kept: list[bytearray] = []
    while True:
        kept.append(bytearray(8 * 1024 * 1024))
        await asyncio.sleep(0.01)


@app.task("busy")
async def busy(ctx: Context, seconds: float) -> dict[str, Any]:
    """Keep the event loop busy in pure Python."""
    sink().begin(ctx.run_id, ctx.attempt)
    end = time.monotonic() + seconds
    turns = 0
    while time.monotonic() < end:
        turns += 1
    return {"turns": turns, "verdict": sink().complete(ctx.run_id, ctx.attempt)}


@app.task("freeze", max_losses=1000)
async def freeze(ctx: Context, gate: str) -> dict[str, Any]:
    """Block the event loop in the first attempt until the gate opens; later attempts complete."""
    sink().begin(ctx.run_id, ctx.attempt, gate)
    while ctx.attempt == 1 and not _open(gate):
        time.sleep(0.02)  # noqa: ASYNC251 - the point of this task
    return {"verdict": sink().complete(ctx.run_id, ctx.attempt, gate)}


@app.task("hold_gil")
async def hold_gil(ctx: Context, seconds: int) -> dict[str, Any]:
    """Hold the interpreter's lock inside one C call, and report the longest time another thread had to wait."""
    sink().begin(ctx.run_id, ctx.attempt)
    longest = 0.0
    stop = threading.Event()
    started = threading.Event()

    def tick() -> None:
        nonlocal longest
        last = time.monotonic()
        while not stop.is_set():
            time.sleep(0.001)
            now = time.monotonic()
            longest = max(longest, now - last)
            last = now
            started.set()

    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    started.wait()
    # A PyDLL calls C without releasing the interpreter's lock, as a badly written extension does.
    left = seconds
    libc = ctypes.PyDLL(None)
    while left > 0:
        left = libc.sleep(left)
    await asyncio.sleep(0.05)
    stop.set()
    ticker.join()
    return {"longest": longest, "verdict": sink().complete(ctx.run_id, ctx.attempt)}


@app.task("stubborn", max_losses=1000)
def stubborn(ctx: Context, gate: str) -> dict[str, Any]:
    """A plain function that notices no cancel until its gate opens."""
    sink().begin(ctx.run_id, ctx.attempt, gate)
    while not _open(gate):
        time.sleep(0.02)
    return {"verdict": sink().complete(ctx.run_id, ctx.attempt, gate)}


def _leave(how: str) -> None:
    match how:
        case "exit":
            sys.exit("as a command line tool inside a library does")
        case "cancelled":
            raise RunCancelled("raised by the task itself")
        case _:
            raise LeaseLost("raised by the task itself")


@app.task("leaves", max_attempts=1)
async def leaves(ctx: Context, how: str) -> None:
    """End in a way that would end a whole process, or that the worker itself uses."""
    _leave(how)


@app.task("leaves_thread", max_attempts=1)
def leaves_thread(ctx: Context, how: str) -> None:
    """Do the same in a thread."""
    _leave(how)


def _hold_gil_in_a_heartbeat(seconds: int) -> None:
    """Block every thread of this process in the middle of the transaction of one heartbeat."""
    from runlane.store.sql.postgres_session import PostgresSession

    fetch = PostgresSession.fetch
    held = False

    async def fetch_and_hold(self: PostgresSession, statement: Any, *arguments: Any, **params: Any) -> Any:
        nonlocal held
        rows = await fetch(self, statement, *arguments, **params)
        if statement.name == "heartbeat" and not held and _open("hold"):
            held = True
            (folder() / "held").touch()
            ctypes.PyDLL(None).sleep(seconds)
        return rows

    PostgresSession.fetch = fetch_and_hold


if "CHAOS_HOLD_IN_HEARTBEAT" in os.environ:
    _hold_gil_in_a_heartbeat(int(os.environ["CHAOS_HOLD_IN_HEARTBEAT"]))
