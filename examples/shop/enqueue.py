"""Enqueue runs and wait for their results. A worker may be started before or after."""

import asyncio
from pathlib import Path

from shop.tasks import app


async def main() -> None:
    """Enqueue thumbnails of uploaded pictures and a monthly report."""
    paths = [draw(Path("pictures") / f"{name}.ppm") for name in "abc"]
    async with app:
        first = await app.enqueue(
            "thumbnail", {"path": paths[0]}, priority=10, ordering_key="user:7", idempotency_key="upload-991"
        )
        others = await app.enqueue_many([("thumbnail", {"path": path, "width": 100}) for path in paths])
        month = await app.enqueue("report", {"month": "2026-10"})
        for accepted in (first, *others, month):
            run = await app.wait(accepted.run_id, timeout=60)
            print(run.id, run.target, run.status, run.result)


def draw(path: Path, width: int = 400, height: int = 300) -> str:
    """Write a picture with a colour for every pixel, and return its path."""
    path.parent.mkdir(exist_ok=True)
    pixels = bytes(value for y in range(height) for x in range(width) for value in (x % 256, y % 256, (x ^ y) % 256))
    path.write_bytes(b"P6 %d %d 255\n" % (width, height) + pixels)
    return str(path)


if __name__ == "__main__":
    asyncio.run(main())
