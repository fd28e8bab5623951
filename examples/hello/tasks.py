"""Tasks of the first example. Each shows one feature of durable runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from hashlib import sha256

from runlane import App, Context, Fail

app = App()

PART_SECONDS = 0.25


@app.task("count_words")
def count_words(ctx: Context, text: str, top: int = 3) -> dict[str, int]:
    """Count words in a plain function, which runs in a thread and may block."""
    words = Counter(word.strip(".,;:").lower() for word in text.split())
    ctx.log(f"counted {words.total()} words")
    return dict(words.most_common(top))


@app.task("deposit", max_attempts=5)
async def deposit(ctx: Context, account: str, cents: int) -> dict[str, str | int]:
    """Deposit money. With the account as ordering key, deposits of one account run one at a time, in order."""
    if cents <= 0:
        raise Fail(f"A deposit must be positive, not {cents}.")
    await ctx.log(f"{cents} cents into {account}")
    return {"account": account, "cents": cents}


@app.task("exchange_rate", max_attempts=3)
async def exchange_rate(ctx: Context, currency: str) -> float:
    """Fail in the first attempt; the run is retried after a backoff."""
    if ctx.attempt == 1:
        raise ConnectionError(f"no rate available for {currency}")
    return 1.08


@app.task("seal", timeout_seconds=60)
async def seal(ctx: Context, document: str, parts: int) -> str:
    """Seal a document part by part. A checkpoint after each part lets the next attempt continue there."""
    done, digest = ctx.saved or (0, "")
    if done:
        await ctx.log(f"continues after part {done} of {parts}")
    for part in range(done + 1, parts + 1):
        await asyncio.sleep(PART_SECONDS)  # stands for slow work
        digest = seal_part(digest, document, part)
        await ctx.progress(part / parts, f"part {part}")
        await ctx.checkpoint((part, digest))
    return digest


def seal_part(digest: str, document: str, part: int) -> str:
    """Return the next digest of the chain. A missing or repeated part changes all later ones."""
    return sha256(f"{digest}/{document}/{part}".encode()).hexdigest()[:16]
