"""perform_step: turn a pending step into an outcome or a wait, with the performer of its type.

A performer returns the output or raises. Every error but cancellation becomes a failure with a code here. The caller
enforces the step's timeout. Secrets that the run has used are redacted here, so that the run continues with the same
values from memory as from the store after a takeover.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from runlane.definitions.schema.step import LoopStep, Step
from runlane.errors import LeaseLost, Retry, RunlaneError, TemplateTooLarge, Unavailable
from runlane.interpreter.failure import StepFailed
from runlane.interpreter.values import Done, Failed, Outcome
from runlane.llm.models import ModelFailed
from runlane.observability.genai import step_span
from runlane.observability.tracing import mark_failed
from runlane.steps import code_steps, data_steps, model_steps, task_step, wait_steps
from runlane.steps.context import PreviousStep, StepContext
from runlane.steps.memory_budget import MemoryTimeout
from runlane.steps.run_services import RunServices, ToolCaller
from runlane.steps.wait_steps import StepWait, Suspend, Suspended, WaitKind, until_room
from runlane.tools.caller import ToolFailed

__all__ = [
    "PreviousStep",
    "RunServices",
    "StepContext",
    "StepWait",
    "Suspended",
    "ToolCaller",
    "WaitKind",
    "perform_step",
]

MAX_MESSAGE: Final = 4000


async def perform_step(context: StepContext[Any]) -> Outcome | StepWait | Suspended:
    """Perform a step. The cost of an outcome is the cost of all tries of the step."""
    pending = context.pending
    with step_span(pending.step.id, pending.step.type, pending.path, pending.tries) as span:
        outcome = await _performed(context)
        if isinstance(outcome, Failed):
            mark_failed(span, outcome.code)
    if isinstance(outcome, Failed) and not outcome.retryable:
        await context.journal.close_round()
    return outcome


async def _performed(context: StepContext[Any]) -> Outcome | StepWait | Suspended:
    try:
        result = await _performer(context)
        if not isinstance(result, StepWait):
            context.check_output(result.output if isinstance(result, Done) else result)
    except Suspend as suspend:
        return Suspended(suspend.waits)
    except MemoryTimeout as wait:
        return Suspended((until_room(wait),))
    except LeaseLost:
        raise
    except (StepFailed, ModelFailed, ToolFailed) as error:
        return _failed(context, error.code, error.message, retryable=error.retryable)
    except TemplateTooLarge as error:
        return _failed(context, error.code, f'Step "{context.step.id}": {error}', retryable=False)
    except RunlaneError as error:
        return _failed(context, error.code, str(error), retryable=isinstance(error, Retry | Unavailable))
    except Exception as error:  # noqa: BLE001 - any error fails this step and not the worker
        return _failed(context, "step_error", f"{type(error).__name__}: {error}".rstrip(": "), retryable=False)
    match result:
        case StepWait():
            return result
        case Done():
            return Done(
                context.services.redactor.clean_value(result.output), result.route, context.cost_usd, context.tokens
            )
        case _:
            return Done(context.services.redactor.clean_value(result), cost_usd=context.cost_usd, tokens=context.tokens)


def _failed(context: StepContext[Step], code: str, message: str, *, retryable: bool) -> Failed:
    message = context.services.redactor.clean(message)
    text = message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…"
    return Failed(code, text, retryable, context.cost_usd, context.tokens)


def _performer(context: StepContext[Any]) -> Awaitable[Any]:
    step = context.pending.step
    match step.type:
        case "llm":
            return model_steps.llm(context)
        case "agent":
            return model_steps.agent(context)
        case "tool":
            return model_steps.tool(context)
        case "evaluator":
            return model_steps.evaluator(context)
        case "merge":
            return data_steps.merge(context)
        case "extract_json":
            return data_steps.extract_json(context)
        case "print":
            return data_steps.print_(context)
        case "transform":
            return code_steps.transform(context)
        case "if_else":
            return code_steps.if_else(context)
        case "switch":
            return code_steps.switch(context)
        case "task":
            return task_step.task(context)
        case "human":
            return wait_steps.human(context)
        case "wait":
            return wait_steps.wait(context)
        case "loop":
            return _loop_part(context)
        case "parallel" | "orchestration" | "end":
            raise StepFailed("step_error", f"A step of type {step.type} is not performed; the step machine handles it.")


def _loop_part(context: StepContext[LoopStep]) -> Awaitable[Any]:
    match context.pending.part:
        case "condition":
            return code_steps.loop_condition(context)
        case "items":
            return code_steps.loop_items(context)
        case "step":
            raise StepFailed("step_error", "A loop is not performed as a whole, only its condition and its items.")
