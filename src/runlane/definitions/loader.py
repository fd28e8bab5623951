"""Load definitions from a directory or from a request body: parse and check them, and collect all problems."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from runlane.definitions.checks.environment import Environment
from runlane.definitions.checks.references import check
from runlane.definitions.files import FOLDERS, DefinitionSource, read_bodies, read_directory
from runlane.definitions.parser import DefinitionParser
from runlane.definitions.problem import Problem, Problems, Severity, TooManyProblems, refuse
from runlane.definitions.schema.definition import Definition, Kind
from runlane.definitions.scope import ParsedDefinition, scope_of
from runlane.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class LoadedDefinitions:
    """Parsed definitions, all problems, and the names of definitions that could not be parsed."""

    definitions: Sequence[ParsedDefinition]
    problems: Sequence[Problem]
    broken: Collection[tuple[Kind, str]] = ()

    @property
    def errors(self) -> list[Problem]:
        """Problems that prevent storing."""
        return [problem for problem in self.problems if problem.severity is Severity.ERROR]

    @property
    def warnings(self) -> list[Problem]:
        """Problems that do not prevent storing."""
        return [problem for problem in self.problems if problem.severity is Severity.WARNING]

    def raise_errors(self) -> None:
        """Raise InvalidDefinitions if there are errors."""
        refuse(self.errors)


def load_directory(
    directory: Path, *, tasks: Collection[str] | None = None, environment: Environment | None = None
) -> LoadedDefinitions:
    """Load the definitions of a directory and check them together."""
    loaded = parse_directory(directory)
    return check_loaded(loaded, (), tasks=tasks, environment=environment)


def parse_directory(directory: Path) -> LoadedDefinitions:
    """Parse the definitions of a directory, without the checks across definitions."""
    problems = Problems()
    items: list[DefinitionSource] = []
    with suppress(TooManyProblems):
        items = read_directory(directory, problems)
    return parse_items(items, problems)


def parse_bodies(bodies: Mapping[str, Iterable[Any]]) -> LoadedDefinitions:
    """Parse the definitions of a request, which are lists by folder name."""
    problems = Problems()
    items: list[DefinitionSource] = []
    with suppress(TooManyProblems):
        for folder, given in bodies.items():
            items += read_bodies(given, FOLDERS[folder], None, problems)
    return parse_items(items, problems)


def parse_given(definitions: str | Path | Mapping[str, Iterable[Any]]) -> LoadedDefinitions:
    """Parse the definitions of a directory, or lists of definitions by folder name."""
    if isinstance(definitions, str | Path):
        return parse_directory(Path(definitions))
    if not isinstance(cast("object", definitions), Mapping):
        raise InvalidRequest('Definitions must be a folder, or lists by kind: {"agents": [...], "tools": [...]}.')
    for folder, given in definitions.items():
        if folder not in FOLDERS:
            raise InvalidRequest(f'"{folder}" is not a kind of definitions. Use {", ".join(FOLDERS)}.')
        if isinstance(given, str | Mapping):
            raise InvalidRequest(f'"{folder}" must be a list of definitions.')
    return parse_bodies(definitions)


def parse_items(items: Iterable[DefinitionSource], problems: Problems, *, lenient: bool = False) -> LoadedDefinitions:
    """Parse definitions, and return them with all problems."""
    parser = DefinitionParser(problems, lenient=lenient)
    found: list[ParsedDefinition] = []
    broken: set[tuple[Kind, str]] = set()
    with suppress(TooManyProblems):
        for item in items:
            definition = parser.parse(item)
            if definition is not None:
                found.append(ParsedDefinition(definition, item.location))
            elif item.location.id is not None:
                broken.add((item.kind, item.location.id))
    return LoadedDefinitions(found, problems.found, broken)


def check_loaded(
    loaded: LoadedDefinitions,
    known: Iterable[Definition],
    *,
    tasks: Collection[str] | None = None,
    environment: Environment | None = None,
) -> LoadedDefinitions:
    """Check definitions together with other known definitions, and return them with all problems.

    With an environment, it is a warning if this installation lacks something that a definition needs.
    """
    problems = Problems(list(loaded.problems))
    scope = scope_of(known, tasks)
    for parsed in loaded.definitions:
        scope.add(parsed.definition)
    scope.broken = loaded.broken
    with suppress(TooManyProblems):
        check(loaded.definitions, scope, problems, environment=environment)
    return LoadedDefinitions(loaded.definitions, problems.found, loaded.broken)
