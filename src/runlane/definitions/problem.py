"""Problems of definitions: the exact location, the problem, and how to fix it.

Reading, parsing and checking continue after a problem, so that all problems are reported at once.
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
    """An error prevents that definitions are stored; a warning does not."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Location:
    """A file, a definition in the file, a step of the definition, and a field."""

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
        """Return a location within this one."""
        return Location(self.file, self.kind, self.id, self.step if step is None else step, field)


MAX_PROBLEMS: Final = 1000
# The search for the nearest name takes time for each candidate.
_GUESSED_NAMES: Final = 300
# The maximum length of an id.
_SHOWN: Final = 128

KIND_WORDS: Final[dict[Kind, str]] = {
    "orchestration": "orchestration",
    "agent": "agent",
    "tool": "tool",
    "mcp_server": "MCP server",
    "schedule": "schedule",
    "trigger": "trigger",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem.

    A tolerant import accepts a `tolerable` error as a warning, because it can be fixed after the import.
    """

    severity: Severity
    location: Location
    message: str
    tolerable: bool = False

    def __str__(self) -> str:
        return f"{self.location}: {self.message}"

    @property
    def brief(self) -> str:
        """The message with its location inside the definition."""
        inside = Location(step=self.location.step, field=self.location.field)
        return f"{inside}: {self.message}" if inside != Location() else self.message

    def to_dict(self) -> dict[str, Any]:
        """Return the problem as JSON."""
        location = self.location
        return {
            "severity": self.severity.value,
            "file": location.file,
            "kind": location.kind,
            "id": location.id,
            "step": location.step,
            "field": location.field,
            "message": self.message,
        }


class TooManyProblems(Exception):
    """The limit of reported problems is reached."""


@dataclass(slots=True)
class Problems:
    """The problems found so far."""

    found: list[Problem] = field(default_factory=list[Problem])

    def error(self, location: Location, message: str, *, tolerable: bool = False) -> None:
        """Add an error."""
        if len(self.errors) >= MAX_PROBLEMS:
            raise TooManyProblems
        self.found.append(Problem(Severity.ERROR, location, message, tolerable))

    def warn(self, location: Location, message: str) -> None:
        """Add a warning, up to the limit, so that later errors can still be added."""
        if len(self.warnings) < MAX_PROBLEMS:
            self.found.append(Problem(Severity.WARNING, location, message))

    def __iter__(self) -> Iterator[Problem]:
        return iter(self.found)

    @property
    def errors(self) -> list[Problem]:
        """The problems that prevent storing."""
        return [problem for problem in self.found if problem.severity is Severity.ERROR]

    @property
    def warnings(self) -> list[Problem]:
        """The problems that do not prevent storing."""
        return [problem for problem in self.found if problem.severity is Severity.WARNING]

    def raise_errors(self) -> None:
        """Raise InvalidDefinitions if there are errors."""
        refuse(self.errors)


def refuse(errors: Iterable[Problem]) -> None:
    """Raise InvalidDefinitions for these errors, if there are any."""
    found = list(errors)
    if found:
        listed = [(str(problem.location), problem.message) for problem in found]
        raise InvalidDefinitions(listed, [problem.to_dict() for problem in found])


def near(name: object, known: Iterable[str]) -> str:
    """Return ' (did you mean "x"?)' for the nearest known name; an empty string if no name is near."""
    return nearest(name, islice(known, _GUESSED_NAMES)) if isinstance(name, str) else ""


def listing(names: Iterable[str]) -> str:
    """Return the first names, separated by commas."""
    shown = list(islice(names, 11))
    return (", ".join(shown[:10]) or "none") + (", …" if len(shown) > 10 else "")
