"""The baseline for streams: Starlette's StreamingResponse, which sends the frames of a file one by one.

It reads, encodes and waits for nothing, so its cost is the minimum of an event stream in this framework that yields
events one by one. It is served like Runlane: uvicorn, httptools, uvloop.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route


def make_app(frames: list[bytes]) -> Starlette:
    """GET /stream waits for POST /go, then sends every frame."""
    go = asyncio.Event()

    async def generate() -> AsyncGenerator[bytes]:
        yield b": waiting\n\n"
        await go.wait()
        for frame in frames:
            yield frame

    async def stream(request: Request) -> Response:
        return StreamingResponse(generate(), media_type="text/event-stream", headers={"cache-control": "no-cache"})

    async def start(request: Request) -> Response:
        go.set()
        return PlainTextResponse("started", 202)

    return Starlette(routes=[Route("/stream", stream), Route("/go", start, methods=["POST"])])


def main() -> None:
    port, path = int(sys.argv[1]), Path(sys.argv[2])
    frames = [frame + b"\n\n" for frame in path.read_bytes().split(b"\n\n") if frame]
    uvicorn.run(
        make_app(frames), host="127.0.0.1", port=port, http="httptools", loop="uvloop", ws="none", lifespan="off",
        log_level="warning", access_log=False,
    )  # fmt: skip


if __name__ == "__main__":
    main()
