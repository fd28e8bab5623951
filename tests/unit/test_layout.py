"""The shape of the source: one meaning per public class name, short files and functions."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import runlane

ROOT = Path(runlane.__file__).parent
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
FILES = sorted(ROOT.rglob("*.py"))


def parsed() -> Iterator[tuple[Path, ast.Module]]:
    for path in FILES:
        if "versions" not in path.parts:
            yield path.relative_to(ROOT), ast.parse(path.read_text())


def test_a_public_class_name_has_one_meaning() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, module in parsed():
        for node in module.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_file_is_too_long() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in FILES}
    assert {path: count for path, count in lines.items() if count > MAX_FILE_LINES} == {}


def test_no_function_is_too_long() -> None:
    found: dict[str, int] = {}
    for path, module in parsed():
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    found[f"{path}:{node.name}"] = lines
    assert found == {}
