"""Source: the code of conditions and scripts, prepared for the sandbox without executing it.

Users write `state.user.name` for a value that may be missing. The sandbox has no such objects, so attribute access is
rewritten into a look-up that returns None for a missing key. Line numbers are kept, because error messages contain
them. A dot before a call remains a method, and an imported name remains a module. The code is only parsed here.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, cast

from runlane.interpreter.failure import StepFailed

# A name in the sandbox that scripts cannot use.
LOOK_UP: Final = "_runlane_look_up"

# With these functions a script may read the state in ways that static analysis cannot detect.
_HIDDEN_READERS: Final = frozenset({"eval", "exec", "locals", "globals", "vars", "dir"})
_DUNDER: Final = re.compile(r"__\w+__")


@dataclass(frozen=True, slots=True)
class SandboxSource:
    """Code for the sandbox. `keys` are the keys of the state that it reads; None if they cannot be determined."""

    text: str
    keys: frozenset[str] | None
    sets_result: bool


@lru_cache(maxsize=1024)
def expression(code: str) -> SandboxSource:
    """Prepare one expression in parentheses. Its first line is not the user's."""
    text = f"(\n{_unified(code)}\n)"
    tree = _parsed(text, "eval", lines_before=1)
    match tree:
        case ast.Expression(body=ast.Tuple(elts=[], lineno=1)):
            raise StepFailed("expression_error", "Line 1: the expression is empty. Correct the code.")
        case _:
            return _prepared(text, tree, lines_before=1)


@lru_cache(maxsize=1024)
def script(code: str) -> SandboxSource:
    """Prepare statements."""
    text = _unified(code)
    return _prepared(text, _parsed(text, "exec", lines_before=0), lines_before=0)


def _unified(code: str) -> str:
    return code.replace("\r\n", "\n").replace("\r", "\n")


def _parsed(text: str, mode: str, lines_before: int) -> ast.AST:
    try:
        with warnings.catch_warnings():
            # Python's warnings about escapes in user code must not be logged.
            warnings.simplefilter("ignore")
            return cast("ast.AST", ast.parse(text, mode=mode))
    except SyntaxError as error:
        # Python reports an error at the end at the closing parenthesis.
        last = text.count("\n") + 1 - 2 * lines_before
        where = min(max(1, (error.lineno or 1) - lines_before), max(1, last))
        raise StepFailed("expression_error", f"Line {where}: {error.msg.rstrip('.?')}. Correct the code.") from None
    except (RecursionError, MemoryError):
        raise StepFailed(
            "expression_error", "The code is nested too deeply to be read. Split it into several statements."
        ) from None
    except ValueError as error:
        raise StepFailed("expression_error", f"The code cannot be read: {error}.") from None


def _prepared(text: str, tree: ast.AST, lines_before: int) -> SandboxSource:
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Attribute) and _DUNDER.fullmatch(node.attr):
            raise StepFailed(
                "sandbox_refused",
                f"Line {node.lineno - lines_before}: {node.attr} is not allowed in conditions and scripts. They work "
                "on values; do not use names with two underscores.",
            )
    methods = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    keys = _keys_read(nodes, methods)
    sets_result = any(_is_result(node) for node in nodes)
    # This is the last step, because it modifies the tree.
    return SandboxSource(_with_look_ups(text, nodes, methods), keys, sets_result)


def _is_result(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "result" and isinstance(node.ctx, ast.Store)


def _keys_read(nodes: list[ast.AST], methods: set[int]) -> frozenset[str] | None:
    """Return the keys of the state that the code names; None if it uses the state as a whole."""
    keys: set[str] = set()
    named = 0
    for node in nodes:
        key = _key_named(node, methods)
        if key is not None:
            keys.add(key)
            named += 1
    used = 0
    for node in nodes:
        if isinstance(node, ast.Name):
            if node.id in _HIDDEN_READERS:
                return None
            used += node.id == "state"
    return frozenset(keys) if used == named else None


def _key_named(node: ast.AST, methods: set[int]) -> str | None:
    """Return the key in `state.key`, `state["key"]` or `state.get("key")`."""
    match node:
        case ast.Attribute(value=ast.Name(id="state"), attr=key) if id(node) not in methods:
            return key
        case ast.Subscript(value=ast.Name(id="state"), slice=ast.Constant(value=str(key))):
            return key
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="state"), attr="get"), args=[ast.Constant(value=str(key)), *_]
        ):
            return key
        case _:
            return None


def _with_look_ups(text: str, nodes: list[ast.AST], methods: set[int]) -> str:
    imported = set(_imported(nodes))
    in_patterns = {id(part) for node in nodes if isinstance(node, ast.pattern) for part in ast.walk(node)}
    reads: set[int] = set()
    writes: set[int] = set()
    for node in nodes:
        if not isinstance(node, ast.Attribute) or id(node) in methods or id(node) in in_patterns:
            continue
        root = _root(node)
        if isinstance(node.ctx, ast.Load):
            if root not in imported:
                reads.add(id(node))
        elif root == "state":
            writes.add(id(node))
    if not reads and not writes:
        return text
    positions = _Positions(text)
    edits: list[tuple[int, int, bytes]] = []
    in_strings: set[int] = set()
    for node in nodes:
        # The walk is breadth-first, so an f-string precedes its parts.
        if id(node) in in_strings:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = {id(part) for part in ast.walk(node)}
            in_strings |= parts
            if parts & reads:
                edits.append(_string_edit(node, reads, positions))
        elif isinstance(node, ast.Attribute) and (id(node) in reads or id(node) in writes):
            edits += _attribute_edits(node, positions, is_read=id(node) in reads)
    return _edited(text, edits)


def _imported(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0]


def _root(node: ast.expr) -> str | None:
    """Return the name at the beginning of a chain of attributes and indexes."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


class _Positions:
    """The byte positions of nodes. The parser counts bytes within lines."""

    def __init__(self, text: str) -> None:
        self.bytes = text.encode("utf-8", "surrogatepass")
        self._starts = [0]
        for line in self.bytes.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    def start(self, node: ast.expr) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr) -> int:
        line, column = node.end_lineno, node.end_col_offset
        assert line is not None  # noqa: S101 - the parser sets both
        assert column is not None  # noqa: S101
        return self._starts[line - 1] + column


def _attribute_edits(node: ast.Attribute, positions: _Positions, *, is_read: bool) -> list[tuple[int, int, bytes]]:
    end = positions.end(node)
    dot = positions.bytes.rindex(b".", positions.end(node.value), end)
    lines = b"\n" * positions.bytes.count(b"\n", dot, end)
    name = b'"%s"' % node.attr.encode()
    if not is_read:
        return [(dot, end, b"[%s%s]" % (name, lines))]
    start = positions.start(node)
    return [(start, start, LOOK_UP.encode() + b"("), (dot, end, b", %s%s)" % (name, lines))]


def _string_edit(node: ast.JoinedStr, reads: set[int], positions: _Positions) -> tuple[int, int, bytes]:
    """Rewrite an f-string as a whole, because parsers before Python 3.12 do not report the positions of its parts."""
    start, end = positions.start(node), positions.end(node)
    try:
        text = ast.unparse(ast.fix_missing_locations(_LookUps(reads).visit(node)))
    except (ValueError, RecursionError):
        raise StepFailed(
            "expression_error",
            f"Line {node.lineno}: the f-string is too complex. Assign its parts to variables first.",
        ) from None
    lines = "\n" * (positions.bytes.count(b"\n", start, end) - text.count("\n"))
    return start, end, f"({text}{lines})".encode("utf-8", "surrogatepass")


class _LookUps(ast.NodeTransformer):
    def __init__(self, reads: set[int]) -> None:
        self._reads = reads

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        is_read = id(node) in self._reads
        self.generic_visit(node)
        if not is_read:
            return node
        return ast.Call(ast.Name(LOOK_UP, ast.Load()), [node.value, ast.Constant(node.attr)], [])


def _edited(text: str, edits: list[tuple[int, int, bytes]]) -> str:
    data = text.encode("utf-8", "surrogatepass")
    parts: list[bytes] = []
    last = 0
    for start, end, new in sorted(edits, key=lambda edit: edit[:2]):
        parts += (data[last:start], new)
        last = end
    parts.append(data[last:])
    return b"".join(parts).decode("utf-8", "surrogatepass")
