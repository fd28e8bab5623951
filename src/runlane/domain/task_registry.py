"""TaskRegistry: functions as tasks, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from runlane.domain.flow_control import FlowControl
from runlane.domain.lane import DEFAULT_LANE
from runlane.domain.task import Expose, Task, make_task
from runlane.errors import DuplicateTask

F = TypeVar("F", bound=Callable[..., Any])


class TaskRegistry:
    """Tasks by name; a part of App."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}

    @property
    def tasks(self) -> Mapping[str, Task]:
        """Return the registered tasks by name."""
        return self._tasks

    @overload
    def task(self, name: F, /) -> F: ...

    @overload
    def task(
        self,
        name: str | None = None,
        *,
        lane: str = DEFAULT_LANE,
        max_attempts: int = 3,
        max_losses: int | None = None,
        timeout_seconds: float | None = None,
        flow_control: FlowControl | Mapping[str, Any] | None = None,
        expose: Expose | None = None,
    ) -> Callable[[F], F]: ...

    def task(
        self,
        name: str | F | None = None,
        *,
        lane: str = DEFAULT_LANE,
        max_attempts: int = 3,
        max_losses: int | None = None,
        timeout_seconds: float | None = None,
        flow_control: FlowControl | Mapping[str, Any] | None = None,
        expose: Expose | None = None,
    ) -> F | Callable[[F], F]:
        """Register a function as a task, under its own name by default; `@app.task` needs no parentheses.

        An async function runs in the event loop, any other in a thread. `flow_control` bounds when and how often it is
        started, per key. With `expose="mcp"`, clients of the MCP server see it as a tool.
        """

        def register(function: F) -> F:
            self._add(
                make_task(
                    function,
                    name if isinstance(name, str) else None,
                    lane=lane,
                    max_attempts=max_attempts,
                    max_losses=max_losses,
                    timeout_seconds=timeout_seconds,
                    flow_control=flow_control,
                    expose=expose,
                )
            )
            return function

        if name is None or isinstance(name, str):
            return register
        return register(name)

    def include(self, other: TaskRegistry) -> None:
        """Add another app's tasks to this one."""
        for task in other.tasks.values():
            self._add(task)

    def _add(self, task: Task) -> None:
        known = self._tasks.setdefault(task.name, task)
        if known is not task:
            raise DuplicateTask(task.name, known.origin, task.origin)
