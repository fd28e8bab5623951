"""The scripted model: fixed answers for examples and tests without a provider.

`scripted` uses the answers of the agent, or the answers of the orchestration under the step's id. `scripted:NAME` uses
the answers of the orchestration under that name, `scripted:FILE.json` the answers of a file in an allowed directory. An
answer with `when` is used for every prompt that contains that string. The other answers are used in order, by the
number of the call; the last one repeats. The number of a call is the same after a crash, so the call gets the same
answer. The delays of an answer are limited, because a worker keeps its slot while pieces are written.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from runlane.errors import nearest
from runlane.llm.models import (
    Delta,
    ModelContext,
    ModelDelta,
    ModelFactory,
    ModelFailed,
    ModelReply,
    ModelRequest,
    ToolCall,
)

MAX_FILE_BYTES: Final = 10 * 1024 * 1024
_MAX_ENTRIES: Final = 100_000
_SHOWN: Final = 200
_LOGGED: Final = 2000
_PIECES: Final = 50
# The maximum sum of all delays of one answer.
MAX_DELAY_SECONDS: Final = 3600.0


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class ScriptedFailure(_Part):
    """The failure of a scripted answer."""

    code: str = Field(default="model_error", min_length=1, max_length=100)
    message: str = Field(default="The script says that the model fails.", max_length=2000)
    retryable: bool = True


class ScriptedCall(_Part):
    """A tool call of a scripted answer."""

    tool: str = Field(min_length=1, max_length=200)
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])


class ScriptedAnswer(_Part):
    """One answer of a script: text, tool calls, or a failure."""

    say: str = ""
    thinking: str = ""
    when: str | None = Field(default=None, min_length=1)
    delay_seconds: float = Field(default=0.0, ge=0, le=MAX_DELAY_SECONDS)
    piece_delay_seconds: float = Field(default=0.0, ge=0, le=60)
    fail: ScriptedFailure | None = None
    tokens: int = Field(default=0, ge=0)
    cost_usd: float | None = Field(default=None, ge=0)
    tool: str | None = None
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])
    calls: list[ScriptedCall] = Field(default_factory=list[ScriptedCall], max_length=100)

    @model_validator(mode="after")
    def _has_content(self) -> ScriptedAnswer:
        if not self.model_fields_set & {"say", "fail", "tool", "calls"}:
            raise ValueError("set one of say, tool, calls and fail")
        return self

    @model_validator(mode="after")
    def _has_bounded_delays(self) -> ScriptedAnswer:
        pieces = len(_pieces(self.thinking)) + len(_pieces(self.say)) if self.piece_delay_seconds else 0
        total = self.delay_seconds + pieces * self.piece_delay_seconds
        if total > MAX_DELAY_SECONDS:
            raise ValueError(
                f"delay_seconds and {pieces} times piece_delay_seconds are {total:g} s; at most "
                f"{MAX_DELAY_SECONDS:g} s are allowed for one answer"
            )
        return self


class _File(_Part):
    answers: list[Any]
    calls: str | None = None


_ENTRIES: Final[TypeAdapter[list[str | ScriptedAnswer]]] = TypeAdapter(
    Annotated[list[str | ScriptedAnswer], Field(min_length=1, max_length=_MAX_ENTRIES)],
    config=ConfigDict(defer_build=True),
)


@dataclass(frozen=True, slots=True)
class ScriptedModel:
    """A model that follows a script. With `calls`, each call is appended to that file as one line."""

    name: str
    answers: tuple[ScriptedAnswer, ...]
    calls: Path | None = None

    async def credential(self) -> str:
        """Return the empty credential, which has no limits."""
        return ""

    def delay_before_answer(self, request: ModelRequest, /) -> float:
        """Return the delay of the script's answer to this call."""
        return self._chosen(request).delay_seconds

    async def answer(self, request: ModelRequest, delta: Delta | None = None) -> ModelReply:
        """Return the script's answer to this call."""
        if self.calls is not None:
            self._log(self.calls, request)
        chosen = self._chosen(request)
        if chosen.delay_seconds > request.waited_seconds:
            await asyncio.sleep(chosen.delay_seconds - request.waited_seconds)
        if chosen.fail is not None:
            raise ModelFailed(chosen.fail.code, chosen.fail.message, retryable=chosen.fail.retryable)
        if delta is not None:
            await self._write(chosen, delta)
        wanted = chosen.calls if chosen.tool is None else [ScriptedCall(tool=chosen.tool, arguments=chosen.arguments)]
        calls = tuple(
            ToolCall(call.tool, call.arguments, f"call_{request.number}{f'_{position}' if position else ''}")
            for position, call in enumerate(wanted)
        )
        return ModelReply(
            chosen.say,
            calls,
            chosen.thinking,
            tokens_out=chosen.tokens,
            cost_usd=chosen.cost_usd,
            model=self.name,
        )

    async def _write(self, chosen: ScriptedAnswer, delta: Delta) -> None:
        pieces = [
            *(ModelDelta("thinking", piece) for piece in _pieces(chosen.thinking)),
            *(ModelDelta("text", piece) for piece in _pieces(chosen.say)),
        ]
        for piece in pieces:
            delta(piece)
            if chosen.piece_delay_seconds:
                await asyncio.sleep(chosen.piece_delay_seconds)

    def _chosen(self, request: ModelRequest) -> ScriptedAnswer:
        in_order: list[ScriptedAnswer] = []
        for entry in self.answers:
            if entry.when is None:
                in_order.append(entry)
            elif entry.when in request.prompt:
                return entry
        if not in_order:
            raise ModelFailed(
                "no_answer",
                f'The script of "{self.name}" has no answer for this prompt, and none without `when`: '
                f"{request.prompt[:_SHOWN]!r}",
            )
        return in_order[min(request.number, len(in_order) - 1)]

    def _log(self, path: Path, request: ModelRequest) -> None:
        call = {
            "model": self.name,
            "key": request.key,
            "number": request.number,
            "prompt": request.prompt[:_LOGGED],
            "messages": len(request.messages),
            "pid": os.getpid(),
        }
        line = orjson.dumps(call, option=orjson.OPT_APPEND_NEWLINE)
        try:
            # Each line is one append, so that lines of several processes do not mix.
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(file, line)
            finally:
                os.close(file)
        except OSError as error:
            raise ModelFailed("bad_script", f"The calls of {self.name} cannot be written: {error}.") from None


def scripted(directories: Sequence[Path] = ()) -> ModelFactory:
    """Return the factory for `scripted`. Files are read and calls are written only within these directories."""
    allowed = tuple(directory.resolve() for directory in directories)

    def make(name: str, context: ModelContext) -> ScriptedModel:
        script = name.partition(":")[2]
        if script.endswith(".json"):
            return _from_file(name, script, allowed)
        return ScriptedModel(name, _entries(_from_definitions(name, script, context), name))

    return make


def _from_definitions(name: str, script: str, context: ModelContext) -> list[Any]:
    of_orchestration = context.orchestration.answers if context.orchestration is not None else {}
    of_agent = context.agent.answers if context.agent is not None else []
    if not script:
        if of_agent:
            return of_agent
        if context.step_id in of_orchestration:
            return of_orchestration[context.step_id]
        raise ModelFailed(
            "unknown_model",
            f'The model "scripted" has no answers for step "{context.step_id}". Put them in `answers` of its agent, or '
            f'in the orchestration as answers: {{"{context.step_id}": [...]}}.',
        )
    if script in of_orchestration:
        return of_orchestration[script]
    known = ", ".join(f"scripted:{key}" for key in sorted(of_orchestration)) or "none"
    raise ModelFailed(
        "unknown_model",
        f'No script "{script}" exists for the model "{name}"{nearest(script, of_orchestration)}. Scripts of this '
        f"orchestration: {known}. A file is named as scripted:FILE.json.",
    )


def _from_file(name: str, script: str, allowed: tuple[Path, ...]) -> ScriptedModel:
    if not allowed:
        raise ModelFailed(
            "unknown_model",
            f'The model "{name}" needs a file, and no directory for scripts is allowed here. Put the answers into the '
            "orchestration.",
        )
    path = _within(script, allowed, allowed)
    if path is None:
        places = ", ".join(str(directory) for directory in allowed)
        raise ModelFailed("unknown_model", f'The model "{name}" has no file {script} in {places}.')
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ModelFailed("bad_script", f"{script} is larger than {MAX_FILE_BYTES} bytes.")
        found: Any = orjson.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelFailed("bad_script", f"{script} cannot be read as JSON: {error}.") from None
    if isinstance(found, list):
        return ScriptedModel(name, _entries(found, name))
    try:
        file = _File.model_validate(found)
    except ValidationError as error:
        raise ModelFailed("bad_script", f'The script of "{name}" is invalid: {_problem(error)}.') from None
    calls = None
    if file.calls is not None:
        calls = _within(file.calls, (path.parent,), allowed, must_exist=False)
        if calls is None:
            raise ModelFailed("bad_script", f"{script}: calls may only be written within the directory of scripts.")
    return ScriptedModel(name, _entries(file.answers, name), calls)


def _within(name: str, starts: tuple[Path, ...], allowed: tuple[Path, ...], *, must_exist: bool = True) -> Path | None:
    """Return the file of this name; None if a link or dots lead out of the allowed directories."""
    for start in starts:
        try:
            path = (start / name).resolve()
        except (OSError, ValueError):
            continue
        inside = any(path.is_relative_to(directory) for directory in allowed)
        if inside and (path.is_file() or not must_exist):
            return path
    return None


def _entries(found: Any, name: str) -> tuple[ScriptedAnswer, ...]:
    try:
        entries = _ENTRIES.validate_python(found)
    except ValidationError as error:
        raise ModelFailed("bad_script", f'The script of "{name}" is invalid: {_problem(error)}.') from None
    return tuple(ScriptedAnswer(say=entry) if isinstance(entry, str) else entry for entry in entries)


def _problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[-1]
    where = ".".join(str(part) for part in first["loc"] if part not in ("str", "ScriptedAnswer"))
    return f"{where or 'the script'}: {first['msg'].removeprefix('Value error, ')}"


def _pieces(text: str) -> list[str]:
    """Split a string into pieces of about the same size, as a provider would send them."""
    size = max(8, -(-len(text) // _PIECES))
    return [text[start : start + size] for start in range(0, len(text), size)]
