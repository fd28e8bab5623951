"""The yardstick for streams: a bare Starlette response that sends given frames one after another, and nothing else."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

_FRAMES = [frame + b"\n\n" for frame in Path(os.environ["BENCH_FRAMES"]).read_bytes().split(b"\n\n") if frame]


async def _stream(request: Request) -> StreamingResponse:
    async def frames() -> AsyncGenerator[bytes]:
        for frame in _FRAMES:
            yield frame

    return StreamingResponse(frames(), media_type="text/event-stream")


app = Starlette(routes=[Route("/stream", _stream)])
