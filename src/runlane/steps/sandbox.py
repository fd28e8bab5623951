"""The sandbox: conditions, expressions and scripts run in processes that have nothing.

A small pool of interpreter processes is started when it is first needed and shared by all runs of this process. Each
evaluation has a session of its own: no file, no network, no environment, nothing left by the one before. Values go in
and come out as JSON text, so that only JSON can. Time and memory are limited; a process that dies takes its
evaluation with it and is replaced.

The pool is driven from threads: its own event loop support aborts the interpreter now and then when that exits.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from runlane.model.text import dump_json
from runlane.offload import LARGE_BYTES, offload_if
from runlane.settings import Settings
from runlane.steps import source
from runlane.steps.failure import StepFailed

if TYPE_CHECKING:
    from pydantic_monty import Monty, MontyError

MAX_PRINTED: Final = 64 * 1024
MAX_TOOL_SECONDS: Final = 300.0
# The interpreter looks at its clock between instructions; one that takes longer than this is killed.
_GRACE_SECONDS: Final = 0.5
_MAX_MESSAGE: Final = 2000
# Preparing source takes about ten microseconds per character; a script may have 100,000 of them.
_LONG_SOURCE: Final = 2000

_JSON: Final = "_runlane_json"
_STATE: Final = "_runlane_state"
_ARGUMENTS: Final = "_runlane_arguments"
# One line, so that the person's first line is the second one.
_BEFORE: Final = (
    f"import json as {_JSON}; state = {_JSON}.loads({_STATE}); args = {_JSON}.loads({_ARGUMENTS}); _args = args; "
    f"{source.LOOK_UP} = lambda o, k: None if o is None else (o.get(k) if isinstance(o, dict) else getattr(o, k))"
)
_REFUSALS: Final = frozenset({"PermissionError", "ModuleNotFoundError", "ImportError"})
_REFUSED_TEXT: Final = re.compile(r"not supported in this environment|has no attribute '__|name '__|^module '")
_NOT_THERE: Final = (
    "The sandbox has values only: no files, network, environment, processes or other packages. "
    "Use a tool or a task step for that."
)
_LONG_NUMBER: Final = re.compile(r"[0-9]{19}")
_CURES: Final = {
    "NameError": "The run's values are in `state`, as in state.key.",
    "KeyError": "state.key gives None for a missing key where state['key'] fails.",
    "AttributeError": "A missing key is None: check it before its parts are used.",
    "TypeError": "A missing key is None: check it before it is compared or computed with.",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What one evaluation may use, and how many may run at once."""

    condition_seconds: float = 2.0
    script_seconds: float = 10.0
    memory_bytes: int = 128 * 1024 * 1024
    output_bytes: int = 4 * 1024 * 1024
    processes: int = 2

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """Those of this process."""
        return cls(
            condition_seconds=settings.sandbox_condition_seconds,
            script_seconds=settings.sandbox_script_seconds,
            memory_bytes=settings.sandbox_memory_bytes,
            output_bytes=settings.sandbox_output_bytes,
            processes=settings.sandbox_processes,
        )


class Sandbox:
    """Evaluates code of people. Every method raises StepFailed when there is no value."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._pool: Monty | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._starting = threading.Lock()
        self._jobs: set[_Job] = set()

    async def condition(self, code: str, state: Mapping[str, Any]) -> bool:
        """Whether the expression holds."""
        found = await _expression(code)
        text = f"{_BEFORE}; {_JSON}.dumps(bool({found.text}))"
        return bool(await self._value(self._short_job(text, state, found.keys)))

    async def expression(self, code: str, state: Mapping[str, Any]) -> Any:
        """The value of the expression."""
        found = await _expression(code)
        text = f"{_BEFORE}; {_JSON}.dumps({found.text}, ensure_ascii=False)"
        return await self._value(self._short_job(text, state, found.keys))

    async def script(self, code: str, state: Mapping[str, Any]) -> Any:
        """What the script leaves in `result`."""
        found = await _script(code)
        if not found.sets_result:
            raise StepFailed("expression_error", "The script never sets result. End it with: result = ...")
        seconds, setting = self.limits.script_seconds, "RUNLANE_SANDBOX_SCRIPT_SECONDS"
        return await self._value(_Job(_with_result(found.text), _read(state, found.keys), seconds, setting))

    async def tool(self, code: str, arguments: Mapping[str, Any], seconds: float) -> Any:
        """What the script of a tool leaves in `result`, or else prints, as JSON if it is JSON."""
        found = await _script(code)
        text = _with_result(found.text) if found.sets_result else f"{_BEFORE}\n{found.text}\nNone"
        job = _Job(text, "{}", min(seconds, MAX_TOOL_SECONDS), "the tool's timeout_seconds", dump_json(dict(arguments)))
        if found.sets_result:
            return await self._value(job)
        await self._evaluate(job)
        printed = "".join(job.printed).strip()
        try:
            return orjson.loads(printed)
        except ValueError:
            return printed

    async def close(self) -> None:
        """End the processes; what is being evaluated fails."""
        threads, self._threads = self._threads, None
        for job in tuple(self._jobs):
            job.kill()
        if threads is not None:
            await asyncio.to_thread(self._stop, threads)

    def _stop(self, threads: ThreadPoolExecutor) -> None:
        threads.shutdown(wait=True, cancel_futures=True)
        with self._starting:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.__exit__(None, None, None)

    def _short_job(self, text: str, state: Mapping[str, Any], keys: frozenset[str] | None) -> _Job:
        setting = "RUNLANE_SANDBOX_CONDITION_SECONDS"
        return _Job(text, _read(state, keys), self.limits.condition_seconds, setting)

    async def _value(self, job: _Job) -> Any:
        answer = await self._evaluate(job)
        if not isinstance(answer, str):
            raise StepFailed("expression_error", "The code left something that is not JSON.")
        return await offload_if(len(answer) > LARGE_BYTES, self._parsed, answer)

    def _parsed(self, answer: str) -> Any:
        size = len(answer.encode())
        if size > self.limits.output_bytes:
            raise StepFailed(
                "sandbox_limit",
                f"The value has {size} bytes as JSON; at most {self.limits.output_bytes} are allowed "
                "(RUNLANE_SANDBOX_OUTPUT_BYTES). Keep what the next steps need.",
            )
        try:
            # orjson would round integers of more than 64 bits.
            return json.loads(answer) if _LONG_NUMBER.search(answer) else orjson.loads(answer)
        except (ValueError, RecursionError):
            raise StepFailed(
                "expression_error",
                "The value is not JSON: it has a number that is infinite or none, or is nested too deeply. "
                "Give texts, numbers, lists, dicts, true, false or None.",
            ) from None

    async def _evaluate(self, job: _Job) -> Any:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.limits.processes, thread_name_prefix="runlane-sandbox")
        self._jobs.add(job)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, job)
        except asyncio.CancelledError:
            job.kill()
            raise
        finally:
            self._jobs.discard(job)

    def _run(self, job: _Job) -> Any:
        """In a thread."""
        from pydantic_monty import MontyError

        pool = self._started()
        try:
            with pool.checkout(
                limits={"max_feed_duration_secs": job.seconds, "max_memory": self.limits.memory_bytes},
                # The clock does not run while the code sleeps, so it must not.
                os_policy={"sleep": "call_host"},
            ) as session:
                job.begin(session.worker_pid)
                try:
                    return session.feed_run(
                        job.text, inputs={_STATE: job.state, _ARGUMENTS: job.arguments}, print_callback=job.take_print
                    )
                finally:
                    job.end()
        except MontyError as error:
            raise self._explained(error, job) from None

    def _started(self) -> Monty:
        from pydantic_monty import Monty

        with self._starting:
            if self._pool is None:
                longest = max(self.limits.condition_seconds, self.limits.script_seconds, MAX_TOOL_SECONDS)
                pool = Monty(
                    max_processes=self.limits.processes,
                    request_timeout=longest + 10,
                    feed_duration_limit_grace=_GRACE_SECONDS,
                )
                try:
                    pool.__enter__()
                except OSError as error:
                    raise StepFailed(
                        "sandbox_unavailable",
                        f"The sandbox cannot be started: {error}. Install pydantic-monty with its runtime.",
                        passing=True,
                    ) from None
                self._pool = pool
            return self._pool

    def _explained(self, error: MontyError, job: _Job) -> StepFailed:
        from pydantic_monty import MontyCrashedError, MontyRuntimeError, MontySyntaxError

        if isinstance(error, MontyCrashedError):
            if error.timed_out:
                return _too_long(job)
            return StepFailed(
                "sandbox_limit",
                f"The sandbox process died while it evaluated this ({error}). It is replaced; if another try dies "
                "too, make the code do less.",
                passing=True,
            )
        if not isinstance(error, MontyRuntimeError | MontySyntaxError):
            return StepFailed("expression_error", f"The code cannot be evaluated: {error}"[:_MAX_MESSAGE])
        kind, _, said = error.display("type-msg").partition(": ")
        if kind == "TimeoutError" and "time limit exceeded" in said:
            return _too_long(job)
        # Code in an eval has lines of its own, and the first line is ours; who called them is the person's.
        lines = [frame.line - 1 for frame in error.traceback() if frame.filename != "<string>"]
        theirs = [line for line in lines if 0 < line <= job.lines]
        where = f"Line {theirs[-1]}: " if theirs else ""
        return self._classified(kind, said[:_MAX_MESSAGE], where, is_ours=bool(lines) and not theirs)

    def _classified(self, kind: str, said: str, where: str, *, is_ours: bool) -> StepFailed:
        """`is_ours`: one of the lines around the person's failed, so the value could not be handed over."""
        told = f"{kind}: {said}" if said else kind
        if kind == "MemoryError" or (kind == "RuntimeError" and "suspension limit" in said):
            return StepFailed(
                "sandbox_limit",
                f"{where}The code needs more than {self.limits.memory_bytes} bytes of memory "
                f"(RUNLANE_SANDBOX_MEMORY_BYTES): {told}. Work on less at a time.",
            )
        if kind == "RecursionError":
            return StepFailed("sandbox_limit", f"{where}{told}. Use a loop, or flatter values.")
        if kind in _REFUSALS or _REFUSED_TEXT.search(said):
            return StepFailed("sandbox_refused", f"{where}{told}. {_NOT_THERE}")
        if kind == "NotImplementedError":
            return StepFailed("sandbox_refused", f"{where}{told}. Write it in a simpler way, or use a task step.")
        if is_ours and kind == "NameError":
            return StepFailed("expression_error", "The script ended without setting result. Set it on every way.")
        if is_ours:
            return StepFailed(
                "expression_error",
                f"The value is not JSON: {said}. Give texts, numbers, lists, dicts, true, false or None; "
                "list(...) and str(...) make them.",
            )
        cure = _CURES.get(kind, "Correct the code.")
        return StepFailed("expression_error", f"{where}{told}. {cure}")


class _Job:
    """One evaluation. Its process may be ended from outside as long as it belongs to this job and to no other."""

    def __init__(self, text: str, state: str, seconds: float, bound_by: str, arguments: str = "{}") -> None:
        self.text = text
        self.state = state
        self.seconds = seconds
        self.bound_by = bound_by
        self.arguments = arguments
        self.lines = text.count("\n") - 1
        self.printed: list[str] = []
        self._printed_size = 0
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._killed = False

    def begin(self, pid: int | None) -> None:
        with self._lock:
            if self._killed:
                raise StepFailed("sandbox_limit", "The evaluation was stopped.", passing=True)
            self._pid = pid

    def end(self) -> None:
        with self._lock:
            self._pid = None

    def kill(self) -> None:
        with self._lock:
            self._killed = True
            if self._pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(self._pid, signal.SIGKILL)

    def take_print(self, stream: str, text: str) -> None:
        """Keep what is printed, up to a bound; the rest is nobody's."""
        if stream == "stdout" and self._printed_size < MAX_PRINTED:
            self.printed.append(text[: MAX_PRINTED - self._printed_size])
            self._printed_size += len(text)


async def _expression(code: str) -> source.Source:
    return await offload_if(len(code) > _LONG_SOURCE, source.expression, code)


async def _script(code: str) -> source.Source:
    return await offload_if(len(code) > _LONG_SOURCE, source.script, code)


def _too_long(job: _Job) -> StepFailed:
    return StepFailed(
        "sandbox_limit",
        f"The code ran longer than {job.seconds:g} s ({job.bound_by}). Make it do less, or use a task step.",
    )


def _read(state: Mapping[str, Any], keys: frozenset[str] | None) -> str:
    """The part of the state that the code reads, as JSON."""
    return dump_json(dict(state) if keys is None else {key: state[key] for key in sorted(keys) if key in state})


def _with_result(text: str) -> str:
    return f"{_BEFORE}\n{text}\n{_JSON}.dumps(result, ensure_ascii=False)"
