"""An orchestration as a step of another one: a scope of its own, whose response is the step's output.

An agent that is an orchestration is executed in the same way; its task is the message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from runlane.definitions.schema.step import AgentStep, OrchestrationStep
from runlane.domain.events import EventType
from runlane.interpreter.fiber import Fiber
from runlane.interpreter.frame import Frame
from runlane.interpreter.scope import Scope
from runlane.interpreter.state import STATE_TOO_LARGE, StateRejected, initial_state
from runlane.templates.template import (
    InvalidPlaceholder,
    RenderBudget,
    TemplateTooLarge,
    UnknownPlaceholder,
    render,
    render_value,
    text_of,
)

if TYPE_CHECKING:
    from runlane.interpreter.engine import Engine

NESTING_LIMIT: Final = "nesting_limit"
UNKNOWN_ORCHESTRATION: Final = "unknown_orchestration"

# The maximum nesting of orchestrations below that of the run.
MAX_NESTED: Final = 8


class NestedFrame(Frame[OrchestrationStep | AgentStep]):
    """The nested orchestration of one execution."""

    __slots__ = ("scope",)

    def __init__(self, fiber: Fiber, step: OrchestrationStep | AgentStep, path: str) -> None:
        super().__init__(fiber, step, path)
        self.scope: Scope | None = None

    def begin(self, engine: Engine) -> None:
        """Fill the inner state and go to the first inner step."""
        # No worker performs this step, so the machine emits its event.
        engine.emit(self, EventType.STEP_START, step_name=self.step.title, step_type=self.step.type)
        scope = self._open(engine)
        if scope.depth > MAX_NESTED:
            raise StateRejected(
                NESTING_LIMIT,
                f"Orchestrations are nested more than {MAX_NESTED} levels deep. Check for one that runs itself.",
            )
        scope.layer.fill(initial_state(scope.orchestration, self._message(), self._given()))
        scope.fiber.delay = self.delay
        engine.go(scope.fiber, scope.orchestration.entry)

    def ended(self, engine: Engine, fiber: Fiber, leaving: str | None) -> None:
        """Complete the nested orchestration, at an `end` step or after its last step."""
        if self.shelf is not None:
            self.shelf.discard()
        engine.store(self, fiber.output)
        engine.emit_complete(self, fiber.output)
        engine.leave(self, fiber.output)

    def fibers(self) -> Iterable[Fiber]:
        """Return the inner main fiber."""
        return () if self.scope is None else (self.scope.fiber,)

    def _open(self, engine: Engine) -> Scope:
        nested_id = engine.library.nested_in(self.step) or ""
        orchestration = engine.library.orchestrations.get(nested_id)
        if orchestration is None:
            raise StateRejected(
                UNKNOWN_ORCHESTRATION, f'The orchestration "{nested_id}" is not among the definitions of this run.'
            )
        scope = self.scope = Scope(engine.library, orchestration, self, f"{self.path}/>")
        self.shelf = scope.layer
        return scope

    def _message(self) -> str:
        state = self.fiber.layer.view
        step = self.step
        template = step.message if isinstance(step, OrchestrationStep) else step.prompt_template
        return self._filled(render, template) if template else text_of(state.get("user_input", ""))

    def _given(self) -> dict[str, Any]:
        state = self.fiber.layer.view
        given = {key: state[key] for key in self.step.input_keys if key in state}
        if isinstance(self.step, OrchestrationStep):
            given |= self._filled(render_value, self.step.input)
        return given

    def _filled(self, fill: Callable[[Any, Mapping[str, Any], RenderBudget], Any], template: Any) -> Any:
        """Fill a template. A result that is too large for the state is rejected once measured, before it is built."""
        room = (self.shelf or self.fiber.layer).room
        budget = RenderBudget() if room is None else RenderBudget(room, "max_state_bytes")
        try:
            return fill(template, self.fiber.layer.view, budget)
        except (UnknownPlaceholder, InvalidPlaceholder, TemplateTooLarge) as error:
            too_large = room is not None and budget.used > room
            raise StateRejected(STATE_TOO_LARGE if too_large else error.code, str(error)) from error

    def details(self) -> dict[str, Any]:
        """Return the inner scope."""
        return {"scope": None if self.scope is None else self.scope.dump()}

    def load(self, engine: Engine, data: dict[str, Any]) -> None:
        """Restore a dump."""
        super().load(engine, data)
        engine.load_scope(self._open(engine), data["scope"])
