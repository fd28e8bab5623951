"""The tasks of the first example: small, but each shows one thing that a durable run can do."""

from __future__ import annotations

import asyncio
from collections import Counter
from hashlib import sha256

from runlane import App, Context, Fail

app = App()

PART_SECONDS = 0.25


@app.task("count_words")
def count_words(ctx: Context, text: str, top: int = 3) -> dict[str, int]:
    """A plain function: it runs in a thread, so it may block."""
    words = Counter(word.strip(".,;:").lower() for word in text.split())
    ctx.log(f"counted {words.total()} words")
    return dict(words.most_common(top))


@app.task("deposit", max_attempts=5)
async def deposit(ctx: Context, account: str, cents: int) -> dict[str, str | int]:
    """Enqueued with the account as ordering key, the deposits of one account happen one at a time, in order."""
    if cents <= 0:
        raise Fail(f"{cents} is no deposit.")
    await ctx.log(f"{cents} cents into {account}")
    return {"account": account, "cents": cents}


@app.task("exchange_rate", max_attempts=3)
async def exchange_rate(ctx: Context, currency: str) -> float:
    """Fails the first time, as services do: the run waits a moment and tries again."""
    if ctx.attempt == 1:
        raise ConnectionError(f"the bank does not answer for {currency}")
    return 1.08


@app.task("seal", timeout_seconds=60)
async def seal(ctx: Context, document: str, parts: int) -> str:
    """A long run in small parts. A checkpoint after each lets the next attempt go on there."""
    done, digest = ctx.saved or (0, "")
    if done:
        await ctx.log(f"goes on after part {done} of {parts}")
    for part in range(done + 1, parts + 1):
        await asyncio.sleep(PART_SECONDS)  # stands for work that takes its time
        digest = seal_part(digest, document, part)
        await ctx.progress(part / parts, f"part {part}")
        await ctx.checkpoint((part, digest))
    return digest


def seal_part(digest: str, document: str, part: int) -> str:
    """One link of the chain: a part that was left out or done twice would change everything after it."""
    return sha256(f"{digest}/{document}/{part}".encode()).hexdigest()[:16]
