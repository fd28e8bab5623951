"""The commands of workflows, which run nowhere but on a runner: their shell, targets of make and variables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

# Variables that every runner sets.
_OF_RUNNERS: Final = frozenset({"GITHUB_OUTPUT", "HOME", "PATH"})
_TARGETS: Final = re.compile(r"\bmake((?: [a-z][a-z-]*)+)")
_VARIABLE: Final = re.compile(r"\$\{?([A-Z][A-Z_]*)")


@dataclass(frozen=True, slots=True)
class Script:
    """The `run` of one step, with the variables that its step, job or workflow sets."""

    place: str
    text: str
    variables: frozenset[str]


def scripts(file: Path) -> Iterator[Script]:
    """Yield the scripts of a workflow."""
    workflow: dict[str, Any] = yaml.safe_load(file.read_text())
    for name, job in workflow["jobs"].items():
        for number, step in enumerate(job["steps"], start=1):
            if "run" in step:
                variables = frozenset[str]().union(*(part.get("env", {}) for part in (workflow, job, step)))
                yield Script(f"{file.name}: {name}, step {number}", step["run"], variables)


def problems(script: Script, makefile: str) -> Iterator[str]:
    """Yield the targets of make that do not exist and the variables that are not set."""
    for targets in _TARGETS.findall(script.text):
        for target in targets.split():
            if re.search(rf"^(?:[a-z -]+ )?{target}(?: [a-z -]+)?:(?!=)", makefile, re.MULTILINE) is None:
                yield f"{script.place}: the Makefile has no target {target}"
    for name in sorted({*_VARIABLE.findall(script.text)} - script.variables - _OF_RUNNERS):
        yield f"{script.place}: {name} is not set"
