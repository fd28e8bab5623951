"""What a fake provider answers: written down, so that the same conversation has the same answers every time.

An answer with `when` is used for every request whose last message contains it. The others are used in order, by how
often the model has spoken in the conversation, and the last one repeats: a call that is made again after a crash gets
what it would have got the first time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FakeCall(_Part):
    """A tool that the model asks for. A text as arguments is sent as it is, valid or not."""

    name: str
    arguments: dict[str, Any] | str = Field(default_factory=dict[str, Any])
    id: str | None = None


class FakeFault(_Part):
    """What goes wrong instead of an answer.

    `status`: refused with this status. `break`: the connection is cut in the middle of the answer. `stop`: the answer
    ends in the middle as if that were all. `late`: the refusal comes in the middle of the answer. `hang`: nothing
    comes. `garbage`: a success that cannot be read. With `times` it goes wrong so often, then right.
    """

    kind: Literal["status", "break", "stop", "late", "hang", "garbage"] = "status"
    status: int = Field(default=500, ge=400, le=599)
    message: str = "The script says so."
    code: str | None = None
    type: str | None = None
    retry_after_seconds: float | None = Field(default=None, ge=0)
    times: int | None = Field(default=None, ge=1)


class FakeAnswer(_Part):
    """One answer: thoughts, text and tools to call, in this order. Tokens are counted if they are not given."""

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
    """What can be changed while the provider runs; what is not given stays.

    `answers` replaces the script. With `max_in_flight` or `max_per_minute`, calls above it are refused with status 429.
    `fault` befalls every call. `reset` begins all counts anew.
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
    """The answers of a provider, and how often each fault has happened."""

    def __init__(self, answers: Answers) -> None:
        entries = SCRIPT.validate_python(list(answers))
        self._answers = [FakeAnswer(text=entry) if isinstance(entry, str) else entry for entry in entries]
        self._happened: dict[int, int] = {}

    def chosen(self, turn: int, last: str) -> FakeAnswer:
        """The answer after `turn` answers, when this was said last. A fault that is over is not in it."""
        in_order = [place for place, entry in enumerate(self._answers) if entry.when is None]
        place = next(
            (place for place, entry in enumerate(self._answers) if entry.when is not None and entry.when in last), None
        )
        if place is None:
            if not in_order:
                return FakeAnswer(fault=FakeFault(status=400, message=f"The script has no answer to {last[:200]!r}."))
            place = in_order[min(turn, len(in_order) - 1)]
        entry = self._answers[place]
        if entry.fault is not None and entry.fault.times is not None:
            happened = self._happened.get(place, 0)
            if happened >= entry.fault.times:
                return entry.model_copy(update={"fault": None})
            self._happened[place] = happened + 1
        return entry
