"""The interpreter is pure: it imports no clock, no randomness and no input or output."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import runlane.interpreter

MODULES = sorted(Path(runlane.interpreter.__file__).parent.glob("*.py"))
STANDARD = {"__future__", "abc", "collections", "dataclasses", "enum", "types", "typing"}
OURS = ("runlane.interpreter.", "runlane.definitions.schema.", "runlane.templates.", "runlane.domain.")


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_it_imports_values_only(module: Path) -> None:
    for node in ast.walk(ast.parse(module.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}"]
        for name in names:
            assert name.split(".")[0] in STANDARD | {"orjson"} or name.startswith(OURS), name


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_every_module_stays_short(module: Path) -> None:
    assert len(module.read_text().splitlines()) < 400
