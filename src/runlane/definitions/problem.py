"""Problems of definitions: what is wrong, where exactly, and what to do.

Reading, parsing and checking go on after a problem, so that a person learns of all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any, Final

from runlane.definitions.schema.definition import Kind
from runlane.errors import InvalidDefinitions, nearest


class Severity(StrEnum):
    """An error keeps definitions from being stored, a warning does not."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Location:
    """Where something is: the file, the definition in it, the step in that, and the field."""

    file: str | None = None
    kind: Kind | None = None
    id: str | None = None
    step: str | None = None
    field: str | None = None

    def __str__(self) -> str:
        parts: list[str] = []
        if self.kind is not None:
            what = KIND_WORDS[self.kind]
            parts.append(f'{what} "{self.id[:_SHOWN]}"' if self.id else what)
        if self.step is not None:
            parts.append(f'step "{self.step[:_SHOWN]}"')
        if self.field is not None:
            parts.append(f"field {self.field[:_SHOWN]}")
        inside = ", ".join(parts)
        return f"{self.file}: {inside}" if self.file and inside else self.file or inside or "definitions"

    def at(self, *, step: str | None = None, field: str | None = None) -> Location:
        """A place within this one."""
        return Location(self.file, self.kind, self.id, self.step if step is None else step, field)


MAX_PROBLEMS: Final = 1000
# Guessing what was meant takes time for each name that it might be.
_GUESSED_NAMES: Final = 2000
# As long as an id may be.
_SHOWN: Final = 128

KIND_WORDS: Final[dict[Kind, str]] = {
    "orchestration": "orchestration",
    "agent": "agent",
    "tool": "tool",
    "mcp_server": "MCP server",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, or odd. A loose end leads to something that is not there, but may come."""

    severity: Severity
    place: Location
    message: str
    loose: bool = False

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"

    @property
    def brief(self) -> str:
        """What is wrong within its definition, for one who knows which that is."""
        inside = Location(step=self.place.step, field=self.place.field)
        return f"{inside}: {self.message}" if inside != Location() else self.message

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        place = self.place
        return {
            "severity": self.severity.value,
            "file": place.file,
            "kind": place.kind,
            "id": place.id,
            "step": place.step,
            "field": place.field,
            "message": self.message,
        }


class TooManyProblems(Exception):
    """So much is wrong that more of it helps nobody."""


@dataclass(slots=True)
class Problems:
    """What was found so far."""

    found: list[Problem] = field(default_factory=list[Problem])

    def error(self, place: Location, message: str, *, loose: bool = False) -> None:
        """Note an error."""
        if len(self.errors) >= MAX_PROBLEMS:
            raise TooManyProblems
        self.found.append(Problem(Severity.ERROR, place, message, loose))

    def warn(self, place: Location, message: str) -> None:
        """Note something odd, unless there is much of it already; what follows may be an error."""
        if len(self.warnings) < MAX_PROBLEMS:
            self.found.append(Problem(Severity.WARNING, place, message))

    def __iter__(self) -> Iterator[Problem]:
        return iter(self.found)

    @property
    def errors(self) -> list[Problem]:
        """Those that keep definitions from being stored."""
        return [problem for problem in self.found if problem.severity is Severity.ERROR]

    @property
    def warnings(self) -> list[Problem]:
        """The others."""
        return [problem for problem in self.found if problem.severity is Severity.WARNING]

    def raise_errors(self) -> None:
        """Refuse, if there are errors."""
        refuse(self.errors)


def refuse(errors: Iterable[Problem]) -> None:
    """Raise InvalidDefinitions for these, if there are any."""
    told = [(str(problem.place), problem.message) for problem in errors]
    if told:
        raise InvalidDefinitions(told)


def near(name: object, known: Iterable[str]) -> str:
    """' (did you mean "x"?)' or nothing."""
    return nearest(name, islice(known, _GUESSED_NAMES)) if isinstance(name, str) else ""


def listing(names: Iterable[str]) -> str:
    """The first few names."""
    shown = list(islice(names, 11))
    return (", ".join(shown[:10]) or "none") + (", …" if len(shown) > 10 else "")
