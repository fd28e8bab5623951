"""The app that the API's tests serve, in this process and in others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import structlog

from runlane import App, Context, Fail

app = App()
log = structlog.get_logger("shop")


@app.task("greet")
async def greet(ctx: Context, text: str = "hello", lines: int = 3) -> dict[str, Any]:
    """Write some lines and return the text."""
    for number in range(lines):
        await ctx.log(f"line {number + 1}")
    return {"said": text}


@app.task("fail", max_attempts=1)
async def fail(ctx: Context) -> None:
    raise Fail("it always does")


@app.task("wait", lane="slow")
async def wait(ctx: Context, seconds: float = 60.0) -> str:
    await ctx.progress(0.5, "half of it")
    await asyncio.sleep(seconds)
    return "waited"


@app.task("steady", max_attempts=5)
async def steady(ctx: Context, lines: int = 30, pause: float = 0.02) -> int:
    """Log lines at a pace from the last checkpoint on, so that a new worker continues."""
    begun: int = ctx.saved or 0
    for number in range(begun, lines):
        await ctx.log(f"line {number + 1}")
        await ctx.checkpoint(number + 1)
        await asyncio.sleep(pause)
    return lines


@app.task("guard")
async def guard(ctx: Context, until: str) -> str:
    """Log lines at a pace until a file exists."""
    number = 0
    while not await asyncio.to_thread(Path(until).exists):
        number += 1
        await ctx.log(f"line {number}")
        await asyncio.sleep(0.02)  # its pace
    return "relieved"


@app.task("save")
async def save(ctx: Context, value: int = 1) -> int:
    await ctx.checkpoint({"value": value})
    log.info("saved", value=value)
    return value
