"""Loading: from a directory or from bodies to parsed and checked definitions, with everything that is wrong."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runlane.definitions.check import check
from runlane.definitions.environment import Environment
from runlane.definitions.parse import Parser
from runlane.definitions.problem import Enough, Problem, Problems, Severity, refuse
from runlane.definitions.read import FOLDERS, Item, read_bodies, read_directory
from runlane.definitions.scope import Parsed, scope_of
from runlane.model.definition import Definition, Kind


@dataclass(frozen=True, slots=True)
class Loaded:
    """Definitions that could be parsed, what is wrong, and the names of those that could not."""

    definitions: Sequence[Parsed]
    problems: Sequence[Problem]
    broken: Collection[tuple[Kind, str]] = ()

    @property
    def errors(self) -> list[Problem]:
        """What keeps them from being stored."""
        return [problem for problem in self.problems if problem.severity is Severity.ERROR]

    @property
    def warnings(self) -> list[Problem]:
        """What does not."""
        return [problem for problem in self.problems if problem.severity is Severity.WARNING]

    def raise_errors(self) -> None:
        """Refuse, if there are errors."""
        refuse(self.errors)


def load_directory(
    directory: Path, *, tasks: Collection[str] | None = None, environment: Environment | None = None
) -> Loaded:
    """The definitions of a directory, checked as the whole that they are."""
    loaded = parse_directory(directory)
    return check_loaded(loaded, (), tasks=tasks, environment=environment)


def parse_directory(directory: Path) -> Loaded:
    """The definitions of a directory, parsed but not checked against each other."""
    problems = Problems()
    items: list[Item] = []
    with suppress(Enough):
        items = read_directory(directory, problems)
    return parse_items(items, problems)


def parse_bodies(bodies: Mapping[str, Iterable[Any]]) -> Loaded:
    """Definitions as they are sent: lists by the names of the folders."""
    problems = Problems()
    items: list[Item] = []
    with suppress(Enough):
        for folder, given in bodies.items():
            items += read_bodies(given, FOLDERS[folder], None, problems)
    return parse_items(items, problems)


def parse_items(items: Iterable[Item], problems: Problems, *, lenient: bool = False) -> Loaded:
    """These definitions, parsed."""
    parser = Parser(problems, lenient=lenient)
    found: list[Parsed] = []
    broken: set[tuple[Kind, str]] = set()
    with suppress(Enough):
        for item in items:
            definition = parser.parse(item)
            if definition is not None:
                found.append(Parsed(definition, item.place))
            elif item.place.id is not None:
                broken.add((item.kind, item.place.id))
    return Loaded(found, problems.found, broken)


def check_loaded(
    loaded: Loaded,
    known: Iterable[Definition],
    *,
    tasks: Collection[str] | None = None,
    environment: Environment | None = None,
) -> Loaded:
    """The same with what is wrong with them as a whole, among other definitions that are known.

    With an environment, what this installation does not have is a warning.
    """
    problems = Problems(list(loaded.problems))
    scope = scope_of(known, tasks)
    for parsed in loaded.definitions:
        scope.add(parsed.definition)
    scope.broken = loaded.broken
    with suppress(Enough):
        check(loaded.definitions, scope, problems, environment=environment)
    return Loaded(loaded.definitions, problems.found, loaded.broken)
