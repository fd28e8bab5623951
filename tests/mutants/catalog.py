"""The list of planted bugs: one TOML file per package, each entry with the tests that must fail."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any


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
        return source.replace(self.old, self.new)

    def problem(self, root: Path) -> str | None:
        """Return why the entry no longer fits the tree below `root`, if it does not."""
        path = root / self.file
        if not path.is_file():
            return f"{self.name}: {self.file} does not exist. Update the entry."
        count = path.read_text().count(self.old)
        if count != 1:
            return f"{self.name}: the old text occurs {count} times in {self.file}. Update the entry."
        for test in self.tests:
            file, _, function = test.partition("[")[0].partition("::")
            test_path = root / file
            if not test_path.is_file() or (function and f"def {function}(" not in test_path.read_text()):
                return f"{self.name}: {test} does not exist. Update the entry."
        return None


def load_mutants(directory: Path) -> list[Mutant]:
    """Return every entry of the TOML files in this directory."""
    mutants: list[Mutant] = []
    for path in sorted(directory.glob("*.toml")):
        entries: list[dict[str, Any]] = tomllib.loads(path.read_text())["mutant"]
        mutants += [_from_entry(path.stem, entry) for entry in entries]
    names = [mutant.name for mutant in mutants]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"Several entries are named {', '.join(repeated)}. Rename them.")
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
