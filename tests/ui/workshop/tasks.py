"""Tasks of the site that the browser tests look at."""

from __future__ import annotations

import asyncio
from typing import Literal

from runlane import App, Context, Fail

app = App()


@app.task("resize", lane="media")
async def resize(
    ctx: Context, picture: str, width: int = 800, mode: Literal["fit", "fill"] = "fit"
) -> dict[str, object]:
    """Resize a picture."""
    for part in range(1, 5):
        await ctx.log(f"part {part} of {picture}", part=part)
        await ctx.progress(part / 4, f"part {part} of 4")
    return {"picture": picture, "width": width, "mode": mode}


@app.task("slow", lane="media")
async def slow(ctx: Context, seconds: float = 600.0) -> str:
    """Wait, with progress."""
    await ctx.progress(0.4, "waits")
    await asyncio.sleep(seconds)
    return "done"


@app.task("talk")
async def talk(ctx: Context, lines: int, pause_seconds: float = 0.0) -> int:
    """Log lines; a new worker continues after the last one."""
    done = ctx.saved or 0
    for number in range(done + 1, lines + 1):
        await ctx.log(f"line {number}", number=number)
        await ctx.checkpoint(number)
        await asyncio.sleep(pause_seconds)
    return lines


@app.task("charge", lane="billing", max_attempts=1)
def charge(ctx: Context, order: str, amount: float) -> None:
    """Always fails."""
    raise Fail(f"The card of order {order} was declined.")


@app.task("send_mail")
def send_mail(ctx: Context, to: str, subject: str) -> dict[str, str]:
    """Send a mail; a tool of the agent that a person approves."""
    return {"to": to, "subject": subject, "status": "sent"}
