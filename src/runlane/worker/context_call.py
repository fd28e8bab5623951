"""ContextCall: a call of a task's context that must be awaited; it reports a missing await.

Python only warns about a coroutine that is never awaited, and its checkpoint is lost. The call reports this when it is
dropped: a call that a task still holds, or has passed to asyncio.gather, is not an error yet.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import CodeType, TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class ContextCall(Coroutine[Any, Any, T]):
    """Begins when it is awaited. `dropped` is called with the location of a call that was never awaited."""

    # A full coroutine, since asyncio.create_task() accepts nothing less.
    __slots__ = ("_begun", "_code", "_dropped", "_line", "_make", "_name")

    def __init__(
        self,
        make: Callable[[], Coroutine[Any, Any, T]],
        name: str,
        caller: tuple[CodeType, int] | None,
        dropped: Callable[[str], None],
    ) -> None:
        self._make = make
        self._name = name
        self._code, self._line = caller or (None, 0)
        self._dropped = dropped
        self._begun: Coroutine[Any, Any, T] | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        return self._begin().__await__()

    def send(self, value: Any, /) -> Any:
        """Continue, as every coroutine does."""
        return self._begin().send(value)

    def throw(self, typ: Any, val: Any = None, tb: TracebackType | None = None, /) -> Any:
        """Raise inside, as every coroutine does."""
        return self._begin().throw(typ if val is None else val)

    def close(self) -> None:
        """End it, as every coroutine does. A call that is closed on purpose does not count as dropped."""
        self._begin().close()

    def __del__(self) -> None:
        if self._begun is None:
            location = "" if self._code is None else f" at {self._code.co_filename}:{self._line}"
            self._dropped(f"{self._name}{location}")

    def _begin(self) -> Coroutine[Any, Any, T]:
        if self._begun is None:
            self._begun = self._make()
        return self._begun
