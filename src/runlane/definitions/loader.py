"""Loading: from a directory or from bodies to parsed and checked definitions, with everything that is wrong."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runlane.definitions.checks.environment import Environment
from runlane.definitions.checks.references import check
from runlane.definitions.files import FOLDERS, DefinitionSource, read_bodies, read_directory
from runlane.definitions.parser import DefinitionParser
from runlane.definitions.problem import Problem, Problems, Severity, TooManyProblems, refuse
from runlane.definitions.schema.definition import Definition, Kind
from runlane.definitions.scope import ParsedDefinition, scope_of


@dataclass(frozen=True, slots=True)
class LoadedDefinitions:
    """Definitions that could be parsed, what is wrong, and the names of those that could not."""

    definitions: Sequence[ParsedDefinition]
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
) -> LoadedDefinitions:
    """The definitions of a directory, checked as the whole that they are."""
    loaded = parse_directory(directory)
    return check_loaded(loaded, (), tasks=tasks, environment=environment)


def parse_directory(directory: Path) -> LoadedDefinitions:
    """The definitions of a directory, parsed but not checked against each other."""
    problems = Problems()
    items: list[DefinitionSource] = []
    with suppress(TooManyProblems):
        items = read_directory(directory, problems)
    return parse_items(items, problems)


def parse_bodies(bodies: Mapping[str, Iterable[Any]]) -> LoadedDefinitions:
    """Definitions as they are sent: lists by the names of the folders."""
    problems = Problems()
    items: list[DefinitionSource] = []
    with suppress(TooManyProblems):
        for folder, given in bodies.items():
            items += read_bodies(given, FOLDERS[folder], None, problems)
    return parse_items(items, problems)


def parse_items(items: Iterable[DefinitionSource], problems: Problems, *, lenient: bool = False) -> LoadedDefinitions:
    """These definitions, parsed."""
    parser = DefinitionParser(problems, lenient=lenient)
    found: list[ParsedDefinition] = []
    broken: set[tuple[Kind, str]] = set()
    with suppress(TooManyProblems):
        for item in items:
            definition = parser.parse(item)
            if definition is not None:
                found.append(ParsedDefinition(definition, item.place))
            elif item.place.id is not None:
                broken.add((item.kind, item.place.id))
    return LoadedDefinitions(found, problems.found, broken)


def check_loaded(
    loaded: LoadedDefinitions,
    known: Iterable[Definition],
    *,
    tasks: Collection[str] | None = None,
    environment: Environment | None = None,
) -> LoadedDefinitions:
    """The same with what is wrong with them as a whole, among other definitions that are known.

    With an environment, what this installation does not have is a warning.
    """
    problems = Problems(list(loaded.problems))
    scope = scope_of(known, tasks)
    for parsed in loaded.definitions:
        scope.add(parsed.definition)
    scope.broken = loaded.broken
    with suppress(TooManyProblems):
        check(loaded.definitions, scope, problems, environment=environment)
    return LoadedDefinitions(loaded.definitions, problems.found, loaded.broken)
