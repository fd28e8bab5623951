"""Keep work that content can inflate off the event loop.

Parsing and checking small content on the loop is cheaper than a thread. Past `LARGE_BYTES` it takes milliseconds to
seconds, in which no other run of the process would move, so it is done in a thread. A C call that holds the
interpreter's lock stops the loop even from there: callers bound the size of what they pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LARGE_BYTES: Final = 256 * 1024


async def offload_if(large: bool, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what the function returns: called here, or in a thread if its content is large."""
    if large:
        return await asyncio.to_thread(function, *args, **kwargs)
    return function(*args, **kwargs)
