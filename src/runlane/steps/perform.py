"""Performing: a todo becomes an outcome, or a wait. The one way in for whoever runs the step machine.

A performer returns the output or raises; every error becomes a failure with a code here. Cancellation passes
through. How long a step may take is the caller's to enforce. Secrets that the run has used are taken out here, so that
it goes on with the same values whether or not its worker dies and they are read back from what was stored.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from runlane.agents.models import ModelFailed
from runlane.agents.tools import ToolFailed
from runlane.errors import LeaseLost, Retry, RunlaneError, TemplateTooLarge, Unavailable
from runlane.interpreter.values import Done, Failed, Outcome, Todo
from runlane.model.step import LoopStep, Step
from runlane.steps import asking, calling, computing, shaping, waiting
from runlane.steps.failure import StepFailed
from runlane.steps.room import NoRoom
from runlane.steps.tools import Earlier, ToolCaller, Tools
from runlane.steps.waiting import Held, MustAsk, Waiting, WaitKind, until_room
from runlane.steps.work import Work

__all__ = ["Earlier", "Held", "ToolCaller", "Tools", "WaitKind", "Waiting", "perform"]

MAX_MESSAGE: Final = 4000


async def perform(todo: Todo, tools: Tools) -> Outcome | Waiting | Held:
    """Perform what is to be done. What an outcome says to have cost is what all tries of the step have."""
    work: Work[Any] = Work(todo, tools)
    outcome = await _performed(work)
    if isinstance(outcome, Failed) and not outcome.passing:
        await tools.journal.close_round()
    return outcome


async def _performed(work: Work[Any]) -> Outcome | Waiting | Held:
    try:
        result = await _performer(work)
        if not isinstance(result, Waiting):
            work.check_output(result.output if isinstance(result, Done) else result)
    except MustAsk as asks:
        return Held(asks.waits)
    except NoRoom as wait:
        return Held((until_room(wait),))
    except LeaseLost:
        raise
    except (StepFailed, ModelFailed, ToolFailed) as error:
        return _failed(work, error.code, error.message, passing=error.passing)
    except TemplateTooLarge as error:
        return _failed(work, error.code, f'Step "{work.step.id}": {error}', passing=False)
    except RunlaneError as error:
        return _failed(work, error.code, str(error), passing=isinstance(error, Retry | Unavailable))
    except Exception as error:  # noqa: BLE001 - whatever it is, it fails this step and not the worker
        return _failed(work, "step_error", f"{type(error).__name__}: {error}".rstrip(": "), passing=False)
    match result:
        case Waiting():
            return result
        case Done():
            return Done(work.tools.redactor.clean_value(result.output), result.route, work.cost_usd, work.tokens)
        case _:
            return Done(work.tools.redactor.clean_value(result), cost_usd=work.cost_usd, tokens=work.tokens)


def _failed(work: Work[Step], code: str, message: str, *, passing: bool) -> Failed:
    message = work.tools.redactor.clean(message)
    text = message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…"
    return Failed(code, text, passing, work.cost_usd, work.tokens)


def _performer(work: Work[Any]) -> Awaitable[Any]:
    step = work.todo.step
    match step.type:
        case "llm":
            return asking.llm(work)
        case "agent":
            return asking.agent(work)
        case "tool":
            return asking.tool(work)
        case "evaluator":
            return asking.evaluator(work)
        case "merge":
            return shaping.merge(work)
        case "extract_json":
            return shaping.extract_json(work)
        case "print":
            return shaping.print_(work)
        case "transform":
            return computing.transform(work)
        case "if_else":
            return computing.if_else(work)
        case "switch":
            return computing.switch(work)
        case "task":
            return calling.task(work)
        case "human":
            return waiting.human(work)
        case "wait":
            return waiting.wait(work)
        case "loop":
            return _loop_part(work)
        case "parallel" | "orchestration" | "end":
            raise StepFailed("step_error", f"A step of type {step.type} is not performed: the step machine moves on.")


def _loop_part(work: Work[LoopStep]) -> Awaitable[Any]:
    match work.todo.part:
        case "condition":
            return computing.loop_condition(work)
        case "items":
            return computing.loop_items(work)
        case "step":
            raise StepFailed("step_error", "A loop is not performed as a whole, only its condition and its items.")
