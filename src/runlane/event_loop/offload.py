"""Keep work whose duration depends on its content off the event loop.

Parsing and checking small content on the loop is cheaper than a thread. Above `LARGE_BYTES` it takes milliseconds to
seconds, during which every other run of the process would wait, so it is done in a thread. A C call that holds the
interpreter lock blocks the loop even from a thread: callers bound the size of what they pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LARGE_BYTES: Final = 256 * 1024


async def offload_if(large: bool, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the function, in a thread if its content is large, and return its result."""
    if large:
        return await asyncio.to_thread(function, *args, **kwargs)
    return function(*args, **kwargs)
