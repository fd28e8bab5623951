"""The parts of the state that the code of a condition or script reads, found in its syntax tree without execution.

Only certain reads are returned. No read is certain in code that may add keys, that uses the state as a whole or that
rebinds the name `state`. A read of a key with `.get` or a test with `in` is not certain either.
"""

from __future__ import annotations

import ast
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

_STATE: Final = "state"
# With these functions, code may read and write names in ways that its syntax does not show.
_DYNAMIC: Final = frozenset({"eval", "exec", "locals", "globals", "vars", "dir"})
_READING_METHODS: Final = frozenset({"get", "keys", "items", "values"})
_CHANGING_METHODS: Final = frozenset({"update", "setdefault", "pop", "popitem", "clear"})
# These nodes use a value of the state without passing it to code that may change it.
_READING_NODES: Final = (
    ast.Compare, ast.BoolOp, ast.UnaryOp, ast.If, ast.IfExp, ast.While, ast.Assert, ast.FormattedValue, ast.For,
    ast.comprehension, ast.Expression, ast.Expr,
)  # fmt: skip

Mode = Literal["eval", "exec"]


@dataclass(frozen=True, slots=True)
class StateRead:
    """A key that the code reads, and the field of its value if the code names one. `line` counts from 1."""

    key: str
    field: str | None
    line: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """A field of a value of the state, compared with a constant string. `member` means `"x" in state.key.field`."""

    key: str
    field: str
    value: str
    line: int
    member: bool = False


@dataclass(frozen=True, slots=True)
class CodeReads:
    """The reads of one piece of code. `whole` is the field if an expression consists only of it."""

    reads: tuple[StateRead, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    whole: StateRead | None = None
    sets_result: bool = True


def code_reads(code: str, mode: Mode) -> CodeReads:
    """Return the keys and fields that the code certainly requires; none for code that cannot be parsed."""
    text = code.replace("\r\n", "\n").replace("\r", "\n")
    if mode == "eval":
        # Parentheses allow an expression with several lines, as in its evaluation.
        text = f"(\n{text}\n)"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree: ast.AST = ast.parse(text, mode=mode)
        return _Analysis(tree, lines_before=1 if mode == "eval" else 0).result()
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        return CodeReads()


class _Analysis:
    """The nodes of one syntax tree, each with its parent."""

    def __init__(self, tree: ast.AST, lines_before: int) -> None:
        self._tree = tree
        self._lines_before = lines_before
        self._nodes = list(ast.walk(tree))
        self._parents = {id(child): node for node in self._nodes for child in ast.iter_child_nodes(node)}
        # Keys, and fields by key, that may be missing because the code tests whether they exist, or sets them.
        self._optional: set[str] = set()
        self._optional_fields: defaultdict[str, set[str]] = defaultdict(set)
        # Keys whose values the code may change, so that their fields are unknown.
        self._changed: set[str] = set()

    def result(self) -> CodeReads:
        sets_result = any(
            isinstance(node, ast.Name) and node.id == "result" and isinstance(node.ctx, ast.Store)
            for node in self._nodes
        )
        accesses = None if self._is_dynamic() else self._accesses()
        if accesses is None:
            return CodeReads(sets_result=sets_result)
        for key, access in accesses:
            self._note(key, access)
        tried = {id(part) for node in self._nodes if isinstance(node, ast.Try) for part in _walk_all(node.body)}
        found = [
            (key, access)
            for key, access in accesses
            if key not in self._optional and not (isinstance(access, ast.Subscript) and id(access) in tried)
        ]
        return CodeReads(
            tuple(self._read(key, access) for key, access in found),
            tuple(item for key, access in found for item in self._comparisons(key, access)),
            self._whole(found),
            sets_result,
        )

    def _is_dynamic(self) -> bool:
        """Return whether `state` is rebound, or names may be used in ways that the syntax does not show."""
        for node in self._nodes:
            match node:
                case ast.Name(id=name) if name in _DYNAMIC:
                    return True
                case ast.Name(id="state", ctx=ast.Store() | ast.Del()) | ast.arg(arg="state"):
                    return True
                case ast.alias(name=name, asname=other) if (other or name.partition(".")[0]) == _STATE:
                    return True
                case ast.ExceptHandler(name="state") | ast.MatchAs(name="state") | ast.MatchStar(name="state"):
                    return True
                case _:
                    pass
        return False

    def _accesses(self) -> list[tuple[str, ast.expr]] | None:
        """Return every key that is read or set, with its node; None if the state is used as a whole in another way."""
        found: list[tuple[str, ast.expr]] = []
        for node in self._nodes:
            if not isinstance(node, ast.Name) or node.id != _STATE or self._only_asks(node):
                continue
            access = self._parent(node)
            key = self._part_named(access, node)
            if key is None or not isinstance(access, ast.expr):
                return None
            found.append((key, access))
        return found

    def _only_asks(self, name: ast.Name) -> bool:
        """Return whether this use of the whole state cannot add a key. Keys that it tests become optional."""
        parent = self._parent(name)
        match parent:
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[right]) if right is name:
                self._optional.update(_strings(left))
                return True
            case ast.Call(func=ast.Name(id="len"), args=[ast.Name()]):
                return True
            case ast.Attribute(attr=method) if method in _READING_METHODS:
                call = self._parent(parent)
                if not isinstance(call, ast.Call) or call.func is not parent:
                    return False
                self._optional.update(_strings(call.args[0]) if call.args else ())
                return True
            case _:
                return False

    def _note(self, key: str, access: ast.expr) -> None:
        """Record what this use of a key implies about optional and changed keys."""
        parent = self._parent(access)
        if isinstance(access, ast.Attribute | ast.Subscript) and not isinstance(access.ctx, ast.Load):
            self._optional.add(key)
        match parent:
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[right]) if right is access:
                self._optional_fields[key].update(_strings(left))
            case ast.Attribute(attr=method) if method in _CHANGING_METHODS:
                self._changed.add(key)
            case ast.Attribute(ctx=ast.Load()) | ast.Subscript(ctx=ast.Load()):
                pass
            case _ if not isinstance(parent, _READING_NODES):
                self._changed.add(key)
            case _:
                pass

    def _parent(self, node: ast.AST) -> ast.AST | None:
        return self._parents.get(id(node))

    def _part_named(self, access: ast.AST | None, value: ast.expr) -> str | None:
        """Return the name in `value.name` or `value["name"]`, unless it is a method call."""
        match access:
            case ast.Attribute(value=inner, attr=name) if inner is value and not name.startswith("__"):
                parent = self._parent(access)
                return None if isinstance(parent, ast.Call) and parent.func is access else name
            case ast.Subscript(value=inner, slice=ast.Constant(value=str(name))) if inner is value:
                return name
            case _:
                return None

    def _field(self, key: str, access: ast.expr) -> str | None:
        """Return the field that is read from the value of this key, if the value must have it."""
        field = self._part_named(self._parent(access), access)
        return None if key in self._changed or field in self._optional_fields[key] else field

    def _read(self, key: str, access: ast.expr) -> StateRead:
        return StateRead(key, self._field(key, access), self._line(access))

    def _comparisons(self, key: str, access: ast.expr) -> Iterator[Comparison]:
        field, reading = self._field(key, access), self._parent(access)
        if field is None or reading is None:
            return
        line = self._line(access)
        match self._parent(reading):
            case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[right]):
                for value in (*_strings(left), *_strings(right)):
                    yield Comparison(key, field, value, line)
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[right]) if left is reading:
                items = right.elts if isinstance(right, ast.Tuple | ast.List | ast.Set) else []
                for value in (text for item in items for text in _strings(item)):
                    yield Comparison(key, field, value, line)
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[right]) if right is reading:
                for value in _strings(left):
                    yield Comparison(key, field, value, line, member=True)
            case _:
                pass

    def _whole(self, found: list[tuple[str, ast.expr]]) -> StateRead | None:
        body = self._tree.body if isinstance(self._tree, ast.Expression) else None
        for key, access in found:
            if body is not None and body is self._parent(access):
                read = self._read(key, access)
                return read if read.field is not None else None
        return None

    def _line(self, node: ast.expr) -> int:
        return max(1, node.lineno - self._lines_before)


def _walk_all(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    for node in nodes:
        yield from ast.walk(node)


def _strings(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
