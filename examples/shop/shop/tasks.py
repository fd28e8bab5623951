"""Tasks of a small shop: thumbnails of its pictures, and a monthly report."""

import asyncio
from pathlib import Path

from runlane import App, Context, Fail, Retry

app = App()


@app.task("thumbnail", lane="media", max_attempts=3, timeout_seconds=60)
async def thumbnail(ctx: Context, path: str, width: int = 200) -> dict[str, str]:
    """Shrink a picture (a binary PPM file) and write it beside the original."""
    target = Path(path).with_suffix(f".{width}.ppm")
    try:
        await asyncio.to_thread(shrink, Path(path), target, width)
    except FileNotFoundError:
        if ctx.attempt == 5:
            raise Fail(f"{path} never arrived.") from None  # ends the run: a retry would not help
        raise Retry(after_seconds=2, reason="the upload is in progress") from None  # does not count as a failure
    await ctx.log("thumbnail written", path=str(target))
    return {"path": str(target)}


@app.task("report")  # a plain function runs in a thread
def report(ctx: Context, month: str) -> dict[str, int]:
    """Add up a month's orders. A checkpoint after each day lets another worker continue after the last one."""
    days: dict[str, int] = ctx.saved or {}
    files = sorted(Path("orders").glob(f"{month}-*.csv"))
    for number, file in enumerate(files, start=1):
        if file.stem not in days:
            days[file.stem] = sum(int(line.split(",")[1]) for line in file.read_text().splitlines())
            ctx.checkpoint(days)
        ctx.progress(number / len(files), file.stem)
    return days


def shrink(source: Path, target: Path, width: int) -> None:
    """Keep every n-th pixel of every n-th row. Repeating it writes the same bytes to the same file."""
    _, columns, rows, _, pixels = source.read_bytes().split(maxsplit=4)
    step = max(1, int(columns) // width)
    kept = [
        pixels[3 * (row * int(columns) + column) :][:3]
        for row in range(0, int(rows), step)
        for column in range(0, int(columns), step)
    ]
    head = b"P6 %d %d 255\n" % (-(-int(columns) // step), -(-int(rows) // step))
    target.write_bytes(head + b"".join(kept))
