"""The script of a fake provider, which gives the same conversation the same answers every time.

An answer with `when` is used for every request whose last message contains that string. The other answers are used in
order, by the number of model answers in the conversation; the last one repeats. So a call that is repeated after a
crash gets the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FakeCall(_Part):
    """A tool call of the model. If the arguments are a string, it is sent unchanged, even if it is not valid."""

    name: str
    arguments: dict[str, Any] | str = Field(default_factory=dict[str, Any])
    id: str | None = None


class FakeFault(_Part):
    """A failure instead of an answer.

    `status`: the call is rejected with this status. `break`: the connection breaks in the middle of the answer. `stop`:
    the answer ends in the middle as if it were complete. `late`: the rejection arrives in the middle of the answer.
    `hang`: no answer is sent. `garbage`: a successful response that cannot be parsed. With `times`, the failure happens
    N times, then the answer succeeds.
    """

    kind: Literal["status", "break", "stop", "late", "hang", "garbage"] = "status"
    status: int = Field(default=500, ge=400, le=599)
    message: str = "The script says so."
    code: str | None = None
    type: str | None = None
    retry_after_seconds: float | None = Field(default=None, ge=0)
    times: int | None = Field(default=None, ge=1)


class FakeAnswer(_Part):
    """One answer: reasoning, text and tool calls, in this order. Tokens are counted if they are not given."""

    text: str = ""
    thinking: str = ""
    calls: list[FakeCall] = Field(default_factory=list[FakeCall])
    when: str | None = Field(default=None, min_length=1)
    finish: Literal["stop", "length", "refusal"] = "stop"
    tokens_in: int | None = Field(default=None, ge=0)
    tokens_out: int | None = Field(default=None, ge=0)
    delay_seconds: float = Field(default=0.0, ge=0, le=3600)
    piece_delay_seconds: float = Field(default=0.0, ge=0, le=60)
    piece_chars: int = Field(default=8, ge=1)
    fault: FakeFault | None = None


class FakeControl(_Part):
    """Changes of a running provider. Omitted fields keep their value.

    `answers` replaces the script. With `max_in_flight` or `max_per_minute`, calls above the limit are rejected with
    status 429. `fault` applies to every call. `reset` sets all counts to zero.
    """

    answers: list[str | FakeAnswer] | None = None
    max_in_flight: int | None = Field(default=None, ge=0)
    max_per_minute: int | None = Field(default=None, ge=0)
    retry_after_seconds: float | None = Field(default=None, ge=0)
    fault: FakeFault | None = None
    reset: bool = False


Answers = Sequence[str | FakeAnswer]
SCRIPT: TypeAdapter[list[str | FakeAnswer]] = TypeAdapter(
    Annotated[list[str | FakeAnswer], Field(min_length=1, max_length=100_000)]
)


class Script:
    """The answers of a provider, and the number of times that each fault has happened."""

    def __init__(self, answers: Answers) -> None:
        entries = SCRIPT.validate_python(list(answers))
        self._answers = [FakeAnswer(text=entry) if isinstance(entry, str) else entry for entry in entries]
        self._happened: dict[int, int] = {}

    def chosen(self, turn: int, last: str) -> FakeAnswer:
        """Return the answer to this last message after `turn` answers. A fault with `times` happens that many times."""
        in_order = [index for index, entry in enumerate(self._answers) if entry.when is None]
        index = next(
            (index for index, entry in enumerate(self._answers) if entry.when is not None and entry.when in last), None
        )
        if index is None:
            if not in_order:
                return FakeAnswer(fault=FakeFault(status=400, message=f"The script has no answer to {last[:200]!r}."))
            index = in_order[min(turn, len(in_order) - 1)]
        entry = self._answers[index]
        if entry.fault is not None and entry.fault.times is not None:
            happened = self._happened.get(index, 0)
            if happened >= entry.fault.times:
                return entry.model_copy(update={"fault": None})
            self._happened[index] = happened + 1
        return entry
