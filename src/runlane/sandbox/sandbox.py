"""The sandbox: run conditions, expressions and scripts in processes without access to files, network or environment.

Each evaluation has its own session, without files, network, environment or state of earlier evaluations. Values are
passed in and out as JSON. Time and memory are limited. If a process dies, its evaluation fails and it is replaced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson

from runlane.domain.tenant import DEFAULT_TENANT
from runlane.event_loop.offload import LARGE_BYTES, offload_if
from runlane.interpreter.failure import StepFailed
from runlane.sandbox import source
from runlane.sandbox.pool import ARGUMENTS, MAX_TOOL_SECONDS, STATE, SandboxJob, SandboxLimits, SandboxPool

__all__ = ["Sandbox", "SandboxLimits"]

if TYPE_CHECKING:
    from pydantic_monty import MontyError

_MAX_MESSAGE: Final = 2000
# Preparing source takes about ten microseconds per character, and a script may have 100,000 characters.
_LONG_SOURCE: Final = 2000

_JSON: Final = "_runlane_json"
# This is one line, so the first line of the user's code is line 2.
_BEFORE: Final = (
    f"import json as {_JSON}; state = {_JSON}.loads({STATE}); args = {_JSON}.loads({ARGUMENTS}); _args = args; "
    f"{source.LOOK_UP} = lambda o, k: None if o is None else (o.get(k) if isinstance(o, dict) else getattr(o, k))"
)
_REFUSALS: Final = frozenset({"PermissionError", "ModuleNotFoundError", "ImportError"})
_REFUSED_MESSAGE: Final = re.compile(r"not supported in this environment|has no attribute '__|name '__|^module '")
_NOT_AVAILABLE: Final = (
    "The sandbox has no access to files, network, environment, processes or other packages. "
    "Use a tool or a task step for that."
)
_LONG_NUMBER: Final = re.compile(r"[0-9]{19}")
_CURES: Final = {
    "NameError": "The run's values are in `state`, as in state.key.",
    "KeyError": "state.key is None for a missing key, where state['key'] fails.",
    "AttributeError": "A missing key is None: check it before using its attributes.",
    "TypeError": "A missing key is None: check it before comparing or computing with it.",
}


class Sandbox:
    """Evaluates code of users. Every method raises StepFailed if the code has no valid value."""

    def __init__(
        self, limits: SandboxLimits | None = None, tenant: str = DEFAULT_TENANT, processes: SandboxPool | None = None
    ) -> None:
        self.limits = limits or SandboxLimits()
        self._tenant = tenant
        self._processes = processes or SandboxPool(self.limits)

    def for_tenant(self, tenant: str) -> Sandbox:
        """Return this sandbox for the code of a tenant, which gets a share of the processes."""
        return Sandbox(self.limits, tenant, self._processes)

    async def condition(self, code: str, state: Mapping[str, Any]) -> bool:
        """Return whether the expression is true."""
        found = await _expression(code)
        text = f"{_BEFORE}; {_JSON}.dumps(bool({found.text}))"
        return bool(await self._value(self._short_job(text, state, found.keys)))

    async def event_condition(self, code: str, event: Mapping[str, Any]) -> bool:
        """Return whether the expression over `event` is true."""
        found = await _expression(code)
        text = f"{_BEFORE}; event = state['event']; {_JSON}.dumps(bool({found.text}))"
        return bool(await self._value(self._short_job(text, {"event": dict(event)}, None)))

    async def expression(self, code: str, state: Mapping[str, Any]) -> Any:
        """Return the value of the expression."""
        found = await _expression(code)
        text = f"{_BEFORE}; {_JSON}.dumps({found.text}, ensure_ascii=False)"
        return await self._value(self._short_job(text, state, found.keys))

    async def script(self, code: str, state: Mapping[str, Any]) -> Any:
        """Return the value that the script assigns to `result`."""
        found = await _script(code)
        if not found.sets_result:
            raise StepFailed("expression_error", "The script never sets result. End it with: result = ...")
        seconds, setting = self.limits.script_seconds, "RUNLANE_SANDBOX_SCRIPT_SECONDS"
        return await self._value(SandboxJob(_with_result(found.text), seconds, setting, state=_read(state, found.keys)))

    async def tool(self, code: str, arguments: Mapping[str, Any], seconds: float) -> Any:
        """Return the value that a tool's script assigns to `result`, or else its printed text, parsed if it is JSON."""
        found = await _script(code)
        text = _with_result(found.text) if found.sets_result else f"{_BEFORE}\n{found.text}\nNone"
        job = SandboxJob(text, min(seconds, MAX_TOOL_SECONDS), "the tool's timeout_seconds", arguments=dict(arguments))
        if found.sets_result:
            return await self._value(job)
        await self._evaluate(job)
        printed = "".join(job.printed).strip()
        try:
            return orjson.loads(printed)
        except ValueError:
            return printed

    async def close(self) -> None:
        """Stop the processes, which all tenants share. Evaluations in progress fail."""
        await self._processes.close()

    def _short_job(self, text: str, state: Mapping[str, Any], keys: frozenset[str] | None) -> SandboxJob:
        setting = "RUNLANE_SANDBOX_CONDITION_SECONDS"
        return SandboxJob(text, self.limits.condition_seconds, setting, state=_read(state, keys), short=True)

    async def _value(self, job: SandboxJob) -> Any:
        answer = await self._evaluate(job)
        if not isinstance(answer, str):
            raise StepFailed("expression_error", "The value of the code is not JSON.")
        return await offload_if(len(answer) > LARGE_BYTES, self._parsed, answer)

    def _parsed(self, answer: str) -> Any:
        size = len(answer.encode())
        if size > self.limits.output_bytes:
            raise StepFailed(
                "sandbox_limit",
                f"The value has {size} bytes as JSON; at most {self.limits.output_bytes} are allowed "
                "(RUNLANE_SANDBOX_OUTPUT_BYTES). Return only what the next steps need.",
            )
        try:
            # orjson would round integers with more than 64 bits.
            return json.loads(answer) if _LONG_NUMBER.search(answer) else orjson.loads(answer)
        except (ValueError, RecursionError):
            raise StepFailed(
                "expression_error",
                "The value is not JSON: it has a number that is infinite or NaN, or is nested too deeply. "
                "Use strings, numbers, lists, dicts, True, False or None.",
            ) from None

    async def _evaluate(self, job: SandboxJob) -> Any:
        from pydantic_monty import MontyError

        try:
            return await self._processes.evaluate(self._tenant, job)
        except MontyError as error:
            raise self._explained(error, job) from None

    def _explained(self, error: MontyError, job: SandboxJob) -> StepFailed:
        from pydantic_monty import MontyCrashedError, MontyRuntimeError, MontySyntaxError

        if isinstance(error, MontyCrashedError):
            if error.timed_out:
                return _too_long(job)
            return StepFailed(
                "sandbox_limit",
                f"The sandbox process died while it evaluated this ({error}). It is replaced; if a retry dies "
                "too, make the code do less.",
                retryable=True,
            )
        if not isinstance(error, MontyRuntimeError | MontySyntaxError):
            return StepFailed("expression_error", f"The code cannot be evaluated: {error}"[:_MAX_MESSAGE])
        kind, _, message = error.display("type-msg").partition(": ")
        if kind == "TimeoutError" and "time limit exceeded" in message:
            return _too_long(job)
        # Code in an eval has its own line numbers, and the first line is ours. The line that called eval is the user's.
        lines = [frame.line - 1 for frame in error.traceback() if frame.filename != "<string>"]
        theirs = [line for line in lines if 0 < line <= job.lines]
        where = f"Line {theirs[-1]}: " if theirs else ""
        return self._classified(kind, message[:_MAX_MESSAGE], where, is_ours=bool(lines) and not theirs)

    def _classified(self, kind: str, message: str, where: str, *, is_ours: bool) -> StepFailed:
        """Return the failure for an error.

        `is_ours` means that a line around the user's code failed, so its value is not valid.
        """
        shown = f"{kind}: {message}" if message else kind
        if kind == "MemoryError" or (kind == "RuntimeError" and "suspension limit" in message):
            return StepFailed(
                "sandbox_limit",
                f"{where}The code needs more than {self.limits.memory_bytes} bytes of memory "
                f"(RUNLANE_SANDBOX_MEMORY_BYTES): {shown}. Process less at a time.",
            )
        if kind == "RecursionError":
            return StepFailed("sandbox_limit", f"{where}{shown}. Use a loop, or flatter values.")
        if kind in _REFUSALS or _REFUSED_MESSAGE.search(message):
            return StepFailed("sandbox_refused", f"{where}{shown}. {_NOT_AVAILABLE}")
        if kind == "NotImplementedError":
            return StepFailed("sandbox_refused", f"{where}{shown}. Write it in a simpler way, or use a task step.")
        if is_ours and kind == "NameError":
            return StepFailed("expression_error", "The script ended without setting result. Set it in every branch.")
        if is_ours:
            return StepFailed(
                "expression_error",
                f"The value is not JSON: {message}. Use strings, numbers, lists, dicts, True, False or None; "
                "list(...) and str(...) create them.",
            )
        fix = _CURES.get(kind, "Correct the code.")
        return StepFailed("expression_error", f"{where}{shown}. {fix}")


async def _expression(code: str) -> source.SandboxSource:
    return await offload_if(len(code) > _LONG_SOURCE, source.expression, code)


async def _script(code: str) -> source.SandboxSource:
    return await offload_if(len(code) > _LONG_SOURCE, source.script, code)


def _too_long(job: SandboxJob) -> StepFailed:
    return StepFailed(
        "sandbox_limit",
        f"The code ran longer than {job.seconds:g} s ({job.bound_by}). Make it do less, or use a task step.",
    )


def _read(state: Mapping[str, Any], keys: frozenset[str] | None) -> dict[str, Any]:
    """Return the part of the state that the code reads."""
    return dict(state) if keys is None else {key: state[key] for key in sorted(keys) if key in state}


def _with_result(text: str) -> str:
    return f"{_BEFORE}\n{text}\n{_JSON}.dumps(result, ensure_ascii=False)"
