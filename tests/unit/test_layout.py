"""The shape of the source: one meaning per public class name, short files and functions, a map without gaps."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import runlane

ROOT = Path(runlane.__file__).parent
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
FILES = sorted(ROOT.rglob("*.py"))
REPOSITORY = Path(__file__).parents[2]
CONTRIBUTING = REPOSITORY / "docs" / "contributing"


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


def test_the_layout_lists_every_package_and_nothing_else() -> None:
    listing = (CONTRIBUTING / "layout.md").read_text().split("```text\n")[1].split("```")[0]
    # The names are in the first column; what they contain begins at the second one.
    listed = set(re.findall(r"[a-z_]+", " ".join(line[:24] for line in listing.splitlines())))
    modules = {path.stem for path in ROOT.iterdir() if path.suffix == ".py"}
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert listed == {name for name in modules | packages if not name.startswith("__")}


@pytest.mark.parametrize("page", ["layout.md", "adding-a-field.md"])
def test_the_map_names_files_that_exist(page: str) -> None:
    missing: list[str] = []
    for line in (CONTRIBUTING / page).read_text().splitlines():
        paths = re.findall(r"`([\w./-]+(?:\.py|/))`", line)
        # A file without a folder is in a folder that the same line names.
        folders = [ROOT, REPOSITORY, REPOSITORY / "src", *(ROOT / path for path in paths if path.endswith("/"))]
        folders += [(ROOT / path).parent for path in paths if "/" in path]
        missing += [path for path in paths if not any((folder / path).exists() for folder in folders)]
    assert missing == []
