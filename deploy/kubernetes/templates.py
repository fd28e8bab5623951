"""Render the subset of Helm's template language that the chart uses.

No Helm is needed to read the chart, to generate the plain manifests from it, or to test both. A construct that this
module does not support is an error, so the chart cannot leave the subset: if, else, range, with, define, include,
variables, pipelines and the functions below. `make deploy-check` compares with the real `helm template` where Helm is
installed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import yaml

_ACTION: Final = re.compile(r"\{\{(-?)\s*(.*?)\s*(-?)\}\}", re.DOTALL)
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\(|\)|\||[^\s()|]+')


class TemplateError(Exception):
    """The template uses something outside of the subset, or a value is missing."""


@dataclass(frozen=True)
class _Node:
    """Text, an output, or a block with its body and its alternative."""

    kind: str
    text: str = ""
    body: Sequence[_Node] = ()
    other: Sequence[_Node] = ()


@dataclass
class _Scope:
    """The values that a template can refer to: the dot, the root, and variables."""

    dot: Any
    root: Mapping[str, Any]
    variables: dict[str, Any] = field(default_factory=dict[str, Any])

    def inner(self, dot: Any, **variables: Any) -> _Scope:
        return _Scope(dot, self.root, {**self.variables, **variables})


def _lex(text: str) -> Iterator[tuple[str, str]]:
    position = 0
    trim = False
    for found in _ACTION.finditer(text):
        plain = text[position : found.start()]
        plain = plain.lstrip() if trim else plain
        yield "text", plain.rstrip() if found[1] else plain
        if not found[2].startswith("/*"):
            yield "action", found[2]
        position, trim = found.end(), bool(found[3])
    rest = text[position:]
    yield "text", rest.lstrip() if trim else rest


class Renderer:
    """Renders templates that share their definitions."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files
        self._defined: dict[str, Sequence[_Node]] = {}
        self._functions = FUNCTIONS

    def define(self, text: str) -> None:
        """Read the definitions of a helper file."""
        self._parse(list(_lex(text)))

    def render(self, text: str, root: Mapping[str, Any]) -> str:
        """Return the text of a template with these values."""
        nodes = self._parse(list(_lex(text)))
        return self._run(nodes, _Scope(root, root, {"$": root}))

    def _parse(self, tokens: list[tuple[str, str]]) -> list[_Node]:
        nodes, end = self._block(tokens, 0)
        if end != len(tokens):
            raise TemplateError(f"unexpected {tokens[end][1]!r}")
        return nodes

    def _block(self, tokens: list[tuple[str, str]], at: int) -> tuple[list[_Node], int]:
        nodes: list[_Node] = []
        while at < len(tokens):
            kind, text = tokens[at]
            word = text.split(maxsplit=1)[0] if text.strip() else ""
            if kind == "text":
                nodes.append(_Node("text", text))
                at += 1
            elif word in ("if", "range", "with", "define"):
                body, at = self._block(tokens, at + 1)
                other: list[_Node] = []
                if tokens[at][1] == "else":
                    other, at = self._block(tokens, at + 1)
                if tokens[at][1] != "end":
                    raise TemplateError(f"{text!r} has no end")
                at += 1
                rest = text[len(word) :].strip()
                if word == "define":
                    self._defined[json.loads(rest)] = body
                else:
                    nodes.append(_Node(word, rest, body, other))
            elif word in ("else", "end"):
                return nodes, at
            else:
                nodes.append(_Node("output", text))
                at += 1
        return nodes, at

    def _run(self, nodes: Sequence[_Node], scope: _Scope) -> str:
        return "".join(self._one(node, scope) for node in nodes)

    def _one(self, node: _Node, scope: _Scope) -> str:
        match node.kind:
            case "text":
                return node.text
            case "output":
                return _text(self._evaluate(node.text, scope))
            case "if":
                return self._run(node.body if _true(self._evaluate(node.text, scope)) else node.other, scope)
            case "with":
                value = self._evaluate(node.text, scope)
                return self._run(node.body, scope.inner(value)) if _true(value) else self._run(node.other, scope)
            case _:
                return self._range(node, scope)

    def _range(self, node: _Node, scope: _Scope) -> str:
        names: list[str] = []
        expression = node.text
        if ":=" in expression:
            left, expression = (part.strip() for part in expression.split(":=", 1))
            names = [name.strip() for name in left.split(",")]
        value = self._evaluate(expression, scope)
        # Go ranges over the keys of a map in their order.
        pairs: list[tuple[Any, Any]] = (
            sorted(cast("dict[str, Any]", value).items()) if isinstance(value, dict) else list(enumerate(value or ()))
        )
        if not pairs:
            return self._run(node.other, scope)
        return "".join(
            self._run(
                node.body,
                scope.inner(item, **dict(zip(names, (key, item) if len(names) == 2 else (item,), strict=False))),
            )
            for key, item in pairs
        )

    def _evaluate(self, text: str, scope: _Scope) -> Any:
        tokens: list[str] = _TOKEN.findall(text)
        value, rest = self._pipeline(tokens, scope)
        if rest:
            raise TemplateError(f"cannot parse {text!r}")
        return value

    def _pipeline(self, tokens: list[str], scope: _Scope) -> tuple[Any, list[str]]:
        value, tokens = self._command(tokens, scope, ())
        while tokens and tokens[0] == "|":
            value, tokens = self._command(tokens[1:], scope, (value,))
        return value, tokens

    def _command(self, tokens: list[str], scope: _Scope, piped: tuple[Any, ...]) -> tuple[Any, list[str]]:
        head, tokens = tokens[0], tokens[1:]
        is_function = head in self._functions or head in ("include", ".Files.Get")
        values: list[Any] = []
        if not is_function:
            value, tokens = self._operand(head, tokens, scope)
            if piped or (tokens and tokens[0] not in ("|", ")")):
                raise TemplateError(f"{head!r} is not a function of the subset")
            return value, tokens
        while tokens and tokens[0] not in ("|", ")"):
            value, tokens = self._operand(tokens[0], tokens[1:], scope)
            values.append(value)
        values += piped
        if head == "include":
            name, dot = values
            return self._run(self._defined[name], _Scope(dot, scope.root, {"$": scope.root})), tokens
        if head == ".Files.Get":
            return self._files[values[0]], tokens
        return self._functions[head](*values), tokens

    def _operand(self, token: str, tokens: list[str], scope: _Scope) -> tuple[Any, list[str]]:
        if token == "(":
            value, tokens = self._pipeline(tokens, scope)
            if not tokens or tokens[0] != ")":
                raise TemplateError("a parenthesis is not closed")
            return value, tokens[1:]
        if token.startswith('"'):
            return json.loads(token), tokens
        if re.fullmatch(r"-?\d+", token):
            return int(token), tokens
        if token in ("true", "false"):
            return token == "true", tokens
        return _lookup(token, scope), tokens


def _lookup(path: str, scope: _Scope) -> Any:
    if path == ".":
        return scope.dot
    first, *names = path.split(".")
    value: Any
    if first == "":
        value = scope.dot
    elif first.startswith("$"):
        value = scope.variables[first]
    else:
        raise TemplateError(f"{path!r} is not part of the subset")
    for name in names:
        if not isinstance(value, dict):
            raise TemplateError(f"{path!r}: {name!r} of a value that is not a map")
        value = cast("dict[str, Any]", value).get(name)
    return value


def _true(value: Any) -> bool:
    return bool(value)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _indented(count: int, text: str) -> str:
    return "\n".join(" " * count + line if line else line for line in text.split("\n"))


def _to_yaml(value: Any) -> str:
    text: str = yaml.safe_dump(value, sort_keys=True, width=10_000, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def _quote(value: Any) -> str:
    return json.dumps(_text(value))


def _default(fallback: Any, value: Any) -> Any:
    return value if _true(value) else fallback


def _nindent(count: int, text: str) -> str:
    return "\n" + _indented(count, text)


def _add(*numbers: Any) -> int:
    return sum(int(number) for number in numbers)


def _and(*values: Any) -> Any:
    return next((value for value in values if not _true(value)), values[-1])


def _or(*values: Any) -> Any:
    return next((value for value in values if _true(value)), values[-1])


def _not(value: Any) -> bool:
    return not _true(value)


def _gt(one: int, other: int) -> bool:
    return one > other


def _replace(old: str, new: str, text: str) -> str:
    return text.replace(old, new)


def _join(separator: str, values: Sequence[str]) -> str:
    return separator.join(values)


FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "toYaml": _to_yaml,
    "quote": _quote,
    "default": _default,
    "indent": _indented,
    "nindent": _nindent,
    "add": _add,
    "int": int,
    "gt": _gt,
    "and": _and,
    "or": _or,
    "not": _not,
    "replace": _replace,
    "join": _join,
}
