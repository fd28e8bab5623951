"""Performing: a todo becomes an outcome, or a wait. The one way in for whoever runs the step machine.

A performer returns the output or raises; every error becomes a failure with a code here. Cancellation passes
through. How long a step may take is the caller's to enforce. Secrets that the run has used are taken out here, so that
it goes on with the same values whether or not its worker dies and they are read back from what was stored.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from runlane.definitions.schema.step import LoopStep, Step
from runlane.errors import LeaseLost, Retry, RunlaneError, TemplateTooLarge, Unavailable
from runlane.interpreter.failure import StepFailed
from runlane.interpreter.values import Done, Failed, Outcome, PendingStep
from runlane.llm.models import ModelFailed
from runlane.steps import code_steps, data_steps, model_steps, task_step, wait_steps
from runlane.steps.context import StepContext
from runlane.steps.memory import MemoryTimeout
from runlane.steps.services import PreviousStep, RunServices, ToolCaller
from runlane.steps.wait_steps import StepWait, Suspend, Suspended, WaitKind, until_room
from runlane.tools.caller import ToolFailed

__all__ = ["PreviousStep", "RunServices", "StepWait", "Suspended", "ToolCaller", "WaitKind", "perform_step"]

MAX_MESSAGE: Final = 4000


async def perform_step(todo: PendingStep, tools: RunServices) -> Outcome | StepWait | Suspended:
    """Perform what is to be done. What an outcome says to have cost is what all tries of the step have."""
    work: StepContext[Any] = StepContext(todo, tools)
    outcome = await _performed(work)
    if isinstance(outcome, Failed) and not outcome.retryable:
        await tools.journal.close_round()
    return outcome


async def _performed(work: StepContext[Any]) -> Outcome | StepWait | Suspended:
    try:
        result = await _performer(work)
        if not isinstance(result, StepWait):
            work.check_output(result.output if isinstance(result, Done) else result)
    except Suspend as asks:
        return Suspended(asks.waits)
    except MemoryTimeout as wait:
        return Suspended((until_room(wait),))
    except LeaseLost:
        raise
    except (StepFailed, ModelFailed, ToolFailed) as error:
        return _failed(work, error.code, error.message, retryable=error.retryable)
    except TemplateTooLarge as error:
        return _failed(work, error.code, f'Step "{work.step.id}": {error}', retryable=False)
    except RunlaneError as error:
        return _failed(work, error.code, str(error), retryable=isinstance(error, Retry | Unavailable))
    except Exception as error:  # noqa: BLE001 - whatever it is, it fails this step and not the worker
        return _failed(work, "step_error", f"{type(error).__name__}: {error}".rstrip(": "), retryable=False)
    match result:
        case StepWait():
            return result
        case Done():
            return Done(work.tools.redactor.clean_value(result.output), result.route, work.cost_usd, work.tokens)
        case _:
            return Done(work.tools.redactor.clean_value(result), cost_usd=work.cost_usd, tokens=work.tokens)


def _failed(work: StepContext[Step], code: str, message: str, *, retryable: bool) -> Failed:
    message = work.tools.redactor.clean(message)
    text = message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…"
    return Failed(code, text, retryable, work.cost_usd, work.tokens)


def _performer(work: StepContext[Any]) -> Awaitable[Any]:
    step = work.todo.step
    match step.type:
        case "llm":
            return model_steps.llm(work)
        case "agent":
            return model_steps.agent(work)
        case "tool":
            return model_steps.tool(work)
        case "evaluator":
            return model_steps.evaluator(work)
        case "merge":
            return data_steps.merge(work)
        case "extract_json":
            return data_steps.extract_json(work)
        case "print":
            return data_steps.print_(work)
        case "transform":
            return code_steps.transform(work)
        case "if_else":
            return code_steps.if_else(work)
        case "switch":
            return code_steps.switch(work)
        case "task":
            return task_step.task(work)
        case "human":
            return wait_steps.human(work)
        case "wait":
            return wait_steps.wait(work)
        case "loop":
            return _loop_part(work)
        case "parallel" | "orchestration" | "end":
            raise StepFailed("step_error", f"A step of type {step.type} is not performed: the step machine moves on.")


def _loop_part(work: StepContext[LoopStep]) -> Awaitable[Any]:
    match work.todo.part:
        case "condition":
            return code_steps.loop_condition(work)
        case "items":
            return code_steps.loop_items(work)
        case "step":
            raise StepFailed("step_error", "A loop is not performed as a whole, only its condition and its items.")
