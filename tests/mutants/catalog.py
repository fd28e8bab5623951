"""The list of planted bugs: one TOML file per package, each entry with the tests that must fail."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any


class StaleMutant(Exception):
    """The code or the tests that an entry names have changed, so that it cannot be planted."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug that replaces `old`, which occurs exactly once in `file`, by `new`. One of `tests` must fail with it."""

    name: str
    file: str
    bug: str
    old: str
    new: str
    tests: tuple[str, ...]

    def plant(self, source: str) -> str:
        """Return the source with the bug."""
        count = source.count(self.old)
        if count != 1:
            raise StaleMutant(f"{self.name}: the old text occurs {count} times in {self.file}. Update the entry.")
        return source.replace(self.old, self.new)

    def check(self, root: Path) -> None:
        """Raise StaleMutant unless the bug can be planted below `root` and the files of its tests exist."""
        path = root / self.file
        if not path.is_file():
            raise StaleMutant(f"{self.name}: {self.file} does not exist. Update the entry.")
        self.plant(path.read_text())
        for test in self.tests:
            file, *names = test.split("::")
            test_path = root / file
            if not test_path.is_file():
                raise StaleMutant(f"{self.name}: {file} does not exist. Update the entry.")
            function = names[-1].split("[")[0] if names else ""
            if function and f"def {function}(" not in test_path.read_text():
                raise StaleMutant(f"{self.name}: {file} has no test {function}. Update the entry.")


def load_mutants(directory: Path) -> list[Mutant]:
    """Return every entry of the TOML files in this directory."""
    mutants: list[Mutant] = []
    for path in sorted(directory.glob("*.toml")):
        entries: list[dict[str, Any]] = tomllib.loads(path.read_text())["mutant"]
        mutants += [_from_entry(path.stem, entry) for entry in entries]
    names = [mutant.name for mutant in mutants]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise StaleMutant(f"Several entries are named {', '.join(repeated)}. Rename them.")
    return mutants


def select(mutants: list[Mutant], patterns: list[str]) -> list[Mutant]:
    """Return the entries whose name matches one of these shell patterns; all of them without a pattern."""
    if not patterns:
        return mutants
    return [mutant for mutant in mutants if any(fnmatch(mutant.name, pattern) for pattern in patterns)]


def _from_entry(package: str, entry: dict[str, Any]) -> Mutant:
    return Mutant(
        name=f"{package}/{entry['name']}",
        file=entry["file"],
        bug=entry["bug"],
        old=entry["old"],
        new=entry["new"],
        tests=tuple(entry["tests"]),
    )
