"""Steps that combine values, without a model and without code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn, cast

import orjson

from runlane.agents.prompt import label, message
from runlane.definitions.schema.definition import Orchestration
from runlane.definitions.schema.step import ExtractJsonStep, MergeStep, ParallelStep, PrintStep
from runlane.domain.events import EventType
from runlane.domain.text import utf8_size
from runlane.event_loop.offload import LARGE_BYTES, offload_if
from runlane.interpreter.failure import StepFailed
from runlane.steps.context import StepContext
from runlane.templates.template import size_of, text_of

_FENCED: Final = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)
# Each opening bracket may be scanned to the end of the text; text that consists of brackets must not take forever.
_MAX_READ: Final = 16 * 1024 * 1024
_SURE_STARTS: Final = 16


async def print_(context: StepContext[PrintStep]) -> str:
    """Return the rendered text."""
    text = await context.render(context.step.print_content)
    await context.emit(EventType.FINAL, response=text)
    return text


async def merge(context: StepContext[MergeStep]) -> Any:
    """Return the values of the input keys, each under the name of the step that produced it."""
    orchestration, state = context.pending.orchestration, context.pending.state
    keys = context.step.input_keys or _keys_that_meet(orchestration, context.step.id)
    makers = {step.output_key: label(step) for step in reversed(orchestration.steps) if step.output_key is not None}
    found = [(makers.get(key, key), state[key]) for key in keys if key in state]
    if not found:
        raise StepFailed(
            "missing_input",
            f"Nothing to merge: none of {', '.join(keys) or 'its inputs'} is in the state. Set input_keys to the "
            "output keys of the steps before it.",
        )
    # An input key may occur many times, so the sizes are counted before the values are combined.
    budget, sizes = context.budget(), dict[int, int]()
    for source, value in found:
        if id(value) not in sizes:
            sizes[id(value)] = size_of(value)
        budget.add(sizes[id(value)] + utf8_size(source))
    await context.memory.take(budget.used)
    match context.step.merge_strategy:
        case "list":
            return [{"source": source, "data": value} for source, value in found]
        case "concat":
            return "\n\n".join(f"[{source}]:\n{text_of(value)}" for source, value in found)
        case "dict":
            return dict(_distinct_names(found))


async def extract_json(context: StepContext[ExtractJsonStep]) -> Any:
    """Return the JSON in the input: all of it, fenced blocks, or balanced braces. Several values become a list."""
    inputs = _inputs(context)
    size = sum(len(value) for value in inputs if isinstance(value, str))
    hits = await offload_if(size > LARGE_BYTES, _hits, inputs)
    budget = context.budget()
    for hit in hits:
        budget.add(size_of(hit))
    await context.memory.take(budget.used)
    if not hits:
        if context.step.required:
            raise StepFailed("no_json", "The input of this step contains no JSON.")
        await context.emit(EventType.STEP_WARNING, message="The input of this step contains no JSON.")
    result = None if not hits else hits[0] if len(hits) == 1 else hits
    await context.emit(EventType.FINAL, response=result)
    return result


def _hits(values: list[Any]) -> list[Any]:
    return [hit for value in values for hit in find_json(value)]


def _keys_that_meet(orchestration: Orchestration, step_id: str) -> list[str]:
    """Return the output keys of the branches that join at a step."""
    steps = {step.id: step for step in orchestration.steps}
    keys: list[str] = []
    for parallel in orchestration.steps:
        if not isinstance(parallel, ParallelStep) or parallel.next_step_id != step_id:
            continue
        for branch in parallel.parallel_branches:
            seen: list[str] = list(branch)
            following = branch[0] if len(branch) == 1 else None
            while following in steps and (following := steps[following].next_step_id) not in (None, step_id, *seen):
                seen.append(following)
            keys += [key for step_id in seen if step_id in steps and (key := steps[step_id].output_key) is not None]
    return list(dict.fromkeys(keys))


def _distinct_names(found: list[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Number repeated names, since one step may have produced several values."""
    taken: set[str] = set()
    counts: dict[str, int] = {}
    for source, value in found:
        name, count = source, counts.get(source, 1)
        while name in taken:
            count += 1
            name = f"{source} {count}"
        taken.add(name)
        counts[source] = count
        yield name, value


def _inputs(context: StepContext[ExtractJsonStep]) -> list[Any]:
    state = context.pending.state
    if context.step.input_keys:
        return [state[key] for key in context.step.input_keys if key in state]
    return [context.history[-1].output if context.history else message(state)]


def find_json(value: Any) -> list[Any]:
    """Return the JSON values in a value: itself unless it is a string; else all of it, fenced blocks, or braces."""
    if not isinstance(value, str):
        return [] if value is None else [value]
    whole = _parsed(value)
    if whole is not _NONE:
        return [whole]
    fenced = [hit for block in _FENCED.findall(value) if (hit := _parsed(block)) is not _NONE]
    return fenced or _balanced(value)


_NONE: Final = object()


def _parsed(text: str) -> Any:
    try:
        return orjson.loads(text)
    except ValueError:
        return _NONE


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _balanced(text: str) -> list[Any]:
    """Return every outermost value in braces; empty ones and references such as [1] only if there are no others."""
    decoder = json.JSONDecoder(parse_constant=_refuse)
    found: list[Any] = []
    spare: list[Any] = []
    read, end = 0, 0
    for number, start in enumerate(re.finditer(r"[{\[]", text)):
        begin = start.start()
        if begin < end:
            continue
        if read > _MAX_READ and number >= _SURE_STARTS:
            break
        try:
            value, end = decoder.raw_decode(text, begin)
        except ValueError:
            # The decoder may have read to the end of the text.
            read += len(text) - begin
            continue
        except RecursionError:
            break
        read += end - begin
        items = cast("dict[str, Any] | list[Any]", value)
        meaningful = items and (isinstance(items, dict) or any(isinstance(item, (dict, list, str)) for item in items))
        (found if meaningful else spare).append(value)
    return found or spare
