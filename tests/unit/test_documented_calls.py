"""The calls that the reference pages of Python and of the client show have the parameters and defaults of the code."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import runlane
from runlane import App, Client, Context

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
ROOTS: dict[str, type] = {"app": App, "client": Client, "ctx": Context}


def calls_of(page: str) -> Iterator[ast.Call]:
    """Yield the calls in the code spans of a page."""
    text = re.sub(r"^```.*?^```", "", (REFERENCE / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    for span in re.findall(r"`([^`\n]+)`", text):
        source = re.sub(r"^(?:await |async for \w+ in )", "", span).replace(", ...)", ")")
        if not re.match(rf"(?:{'|'.join(ROOTS)})\.[\w.]+\(.*\)$", source):
            continue
        try:
            parsed = ast.parse(source, mode="eval").body
        except SyntaxError:
            pytest.fail(f"{page}: `{span}` is not valid Python.")
        if isinstance(parsed, ast.Call):
            yield parsed


def method_of(call: ast.Call) -> Any:
    """Return the function that a call such as `client.secrets.set(...)` names."""
    root, *path = ast.unparse(call.func).split(".")
    owner: Any = ROOTS[root]
    for name in path:
        found = inspect.getattr_static(owner, name)
        if isinstance(found, property):
            owner = getattr(runlane, str(inspect.signature(found.fget).return_annotation))  # pyright: ignore[reportArgumentType]
        else:
            owner = getattr(owner, name)
    return owner


def problems_of(call: ast.Call) -> Iterator[str]:
    shown = ast.unparse(call)
    parameters = inspect.signature(method_of(call)).parameters
    ordered = [name for name in parameters if name != "self"]
    taken_rest = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for position, argument in enumerate(call.args):
        if isinstance(argument, ast.Name) and ordered[position] != argument.id:
            yield f"{shown}: parameter {position} is {ordered[position]}"
    for keyword in call.keywords:
        parameter = parameters.get(keyword.arg or "")
        if parameter is None:
            if not taken_rest:
                yield f"{shown}: {keyword.arg} is not a parameter"
        elif not (isinstance(keyword.value, ast.Constant) and keyword.value.value is ...):
            default = parameter.default
            if default is parameter.empty or default != ast.literal_eval(keyword.value):
                yield f"{shown}: the default of {keyword.arg} is {default!r}"


@pytest.mark.parametrize(("page", "least"), [("python.md", 40), ("client.md", 60)])
def test_documented_calls_have_the_parameters_and_defaults_of_the_code(page: str, least: int) -> None:
    calls = list(calls_of(page))
    assert len(calls) >= least
    assert [problem for call in calls for problem in problems_of(call)] == []
