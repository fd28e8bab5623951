"""Code of conditions and scripts: dots become lookups, lines stay, and the keys that it reads are known."""

from __future__ import annotations

import pytest

from runlane.interpreter.failure import StepFailed
from runlane.sandbox import source
from runlane.sandbox.source import LOOK_UP


def expression_text(code: str) -> str:
    text = source.expression(code).text.replace(LOOK_UP, "at")
    assert text.startswith("(\n")
    assert text.endswith("\n)")
    return text[2:-2]


def script_text(code: str) -> str:
    return source.script(code).text.replace(LOOK_UP, "at")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("state.a", 'at(state, "a")'),
        ("state.a.b.c", 'at(at(at(state, "a"), "b"), "c")'),
        ("state['a'].b[0].c", 'at(at(state[\'a\'], "b")[0], "c")'),
        ("state.name.upper()", 'at(state, "name").upper()'),
        ("state.items()", "state.items()"),
        ("state.items", 'at(state, "items")'),
        ("(state.a or state.b).c", 'at((at(state, "a") or at(state, "b")), "c")'),
        ("[i.x for i in state.rows if i.ok]", '[at(i, "x") for i in at(state, "rows") if at(i, "ok")]'),
        ("f(state.a)(1).b", 'at(f(at(state, "a"))(1), "b")'),
        ("'state.a'", "'state.a'"),
        ("'é' + state.é", "'é' + at(state, \"é\")"),
        ("state . a", 'state at, "a")'.replace("state at", "at(state ")),
        ("1.5 + state.n", '1.5 + at(state, "n")'),
        ("lambda row: row.x", 'lambda row: at(row, "x")'),
        ("state['n'] == 3  # state.n", "state['n'] == 3  # state.n"),
    ],
)
def test_dots_are_lookups_and_methods_stay(code: str, expected: str) -> None:
    assert expression_text(code) == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import math\nresult = math.pi + state.x", 'import math\nresult = math.pi + at(state, "x")'),
        ("import json as j\nresult = j.loads(x).name", 'import json as j\nresult = at(j.loads(x), "name")'),
        ("from datetime import date\nresult = date.min", "from datetime import date\nresult = date.min"),
        ("state.x = 1", 'state["x"] = 1'),
        ("state.a.b += state.c", 'at(state, "a")["b"] += at(state, "c")'),
        ("self.x = 1", "self.x = 1"),
        ("match state.k:\n    case A.b: pass", 'match at(state, "k"):\n    case A.b: pass'),
        ("x = 1\r\ny = state.z\r", 'x = 1\ny = at(state, "z")\n'),
    ],
)
def test_modules_and_targets_stay_what_they_are(code: str, expected: str) -> None:
    assert script_text(code) == expected


@pytest.mark.parametrize(
    "code",
    [
        "a = (state\n  .b\n  .c)\nlast = 1",
        "a = f'''one\n{state.b}\nthree''' + 'x'\nlast = 1",
        "a = ('one'\n  f'{state.b}'\n  'three')\nlast = 1",
        'a = f"{state.b.c[0]!r:>{state.w}} {state["k"]}\\n"\nlast = 1'.replace('"k"', "'k'"),
        "a = f'{state.b}' f'{state.c}'\n\n# a comment\n\nlast = 1",
    ],
)
def test_every_line_stays_where_it_was(code: str) -> None:
    text = source.script(code).text
    assert text.split("\n").index("last = 1") == code.split("\n").index("last = 1")
    assert "state." not in text
    # What comes out is still Python.
    source.script(text)


@pytest.mark.parametrize(
    ("code", "keys"),
    [
        ("state.a.b + state['c'] + state.get('d', 0)", {"a", "c", "d"}),
        ("f'{state.a}'", {"a"}),
        ("1 + 1", set[str]()),
        ("len(state)", None),
        ("'a' in state", None),
        ("state[key]", None),
        ("state.get(key)", None),
        ("state.keys()", None),
        ("state.a + eval('state.b')", None),
        ("[state for _ in state.a]", None),
    ],
)
def test_the_keys_that_are_read_are_known_or_all_are(code: str, keys: set[str] | None) -> None:
    assert source.expression(code).keys == keys


def test_whether_a_script_sets_its_result() -> None:
    assert source.script("for x in state.rows:\n    result = x").sets_result
    assert source.script("result, other = 1, 2").sets_result
    assert not source.script("print(result)").sets_result


@pytest.mark.parametrize("code", ["().__class__", "x.__dict__", "f'{().__class__}'", "state.__init__.y", "a.__b__()"])
def test_names_with_two_underscores_are_refused_before_anything_runs(code: str) -> None:
    with pytest.raises(StepFailed, match=r"^Line 1: __") as failure:
        source.expression(code)
    assert failure.value.code == "sandbox_refused"


@pytest.mark.parametrize(
    ("code", "line"),
    [("1 +", 1), ("state.a ==\n== 1", 2), ("x = 1", 1), ("", 1), ("  # why", 1), ("(1", 1), ("while True: pass", 1)],
)
def test_an_invalid_expression_is_reported_with_its_line(code: str, line: int) -> None:
    with pytest.raises(StepFailed, match=rf"^Line {line}: ") as failure:
        source.expression(code)
    assert failure.value.code == "expression_error"


@pytest.mark.parametrize(
    "code",
    [
        "-" * 99_000 + "1",
        "not " * 20_000 + "1",
        "lambda: " * 10_000 + "1",
        "a" + ".b" * 49_000,
        "1 + " * 24_000 + "1",
        "(" * 50_000,
        "a if b else " * 8_000 + "c",
        "\x00",
        "\ud800",
    ],
)
def test_code_that_no_parser_survives_is_an_error_like_any_other(code: str) -> None:
    with pytest.raises(StepFailed) as failure:
        source.script(code)
    assert failure.value.code == "expression_error"
    assert len(failure.value.message) < 1000


def test_a_wrong_escape_emits_no_warning() -> None:
    assert source.expression(r"'\d' + state.a").keys == {"a"}
