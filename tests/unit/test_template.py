"""Templates: what is a placeholder, what fills it, and what is left unchanged."""

from __future__ import annotations

import json
import tracemalloc
from collections import ChainMap
from types import MappingProxyType
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runlane.errors import InvalidRequest
from runlane.templates.template import (
    InvalidPlaceholder,
    RenderBudget,
    TemplateTooLarge,
    UnknownPlaceholder,
    fill,
    placeholders,
    placeholders_in,
    render,
    render_value,
    size_of,
    text_of,
    with_key,
)

STATE: dict[str, Any] = {
    "topic": "queues",
    "count": 3,
    "share": 0.5,
    "done": True,
    "nothing": None,
    "items": ["a", {"title": "b", "tags": ["x", "y"]}],
    "answer": {"decision": "approve", "prénom": "Zoë", "first-name": "Ann", "0": "zero"},
    "empty": "",
    "state": "a key of that name",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("no places", "no places"),
        ("{state.topic}", "queues"),
        ("{{topic}}", "queues"),
        ("{{ topic }}", "queues"),
        ("{ state.topic }", "queues"),
        ("{{state.topic}}", "queues"),
        ("About {state.topic}, {{count}} times.", "About queues, 3 times."),
        ("{state.topic}{state.topic}{{topic}}", "queuesqueuesqueues"),
        ("{{share}} {{done}} [{{nothing}}] [{{empty}}]", "0.5 true [] []"),
        ("{state.items}", '["a",{"title":"b","tags":["x","y"]}]'),
        ("{state.items.0} {state.items.1.title} {{items.1.tags.1}}", "a b y"),
        ("{state.items.-1.title}", "b"),
        ("{state.answer.decision} {{answer.prénom}} {{answer.first-name}} {{answer.0}}", "approve Zoë Ann zero"),
        ("{state.state}", "a key of that name"),
        ("{{state}}", "a key of that name"),
        ("line\n{{\ntopic\n}}\nline", "line\nqueues\nline"),
    ],
)
def test_placeholders_are_filled(text: str, expected: str) -> None:
    assert render(text, STATE) == expected


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}',
        '{"a": {"b": 2}}',
        '{{"a": 1}}',
        "{}",
        "{{}}",
        "{ }",
        "{topic}",
        "{state}",
        "{stateful}",
        "{0} {name!r:>10}",
        "style={{color: 'red'}}",
        "function f() { return {}; }",
        "{{#if x}}{{/if}}",
        "{{ 'quoted' }}",
        "{{1}}",
        "{secret.NAME}",
        "{",
        "}",
        "{{",
        "}}",
        "{{topic",
        "{{topic}",
        "topic}}",
        "\\",
        "\\\\{ not a place }",
        "C:\\dir\\{x}",
    ],
)
def test_other_braces_are_text(text: str) -> None:
    assert render(text, {"topic": "x", "a": "y", "x": "z"}) == text
    assert placeholders(text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": "{state.topic}"}', '{"a": "queues"}'),
        ('{"a": {{count}}}', '{"a": 3}'),
        ('{"a": {"b": {state.count}}}', '{"a": {"b": 3}}'),
        ('{{"a": {{items}}}}', '{{"a": ["a",{"title":"b","tags":["x","y"]}]}}'),
        ("{{{topic}}}", "{queues}"),
        ("{{{{topic}}}}", "{{queues}}"),
        ("{{{state.topic}}}", "{queues}"),
        ("{{topic} {{topic}}", "{{topic} queues"),
        ("{{state.topic} x", "{queues x"),
    ],
)
def test_placeholders_are_found_among_other_braces(text: str, expected: str) -> None:
    assert render(text, STATE) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\{{topic}}", "{{topic}}"),
        (r"\{state.topic}", "{state.topic}"),
        (r"\\{{topic}}", r"\queues"),
        (r"\\\{{topic}}", r"\{{topic}}"),
        (r"\\\\{{topic}}", r"\\queues"),
        (r"a\b {{topic}}", r"a\b queues"),
        (r"\{{topic}} {{topic}}", "{{topic}} queues"),
        (r"{{topic}}\{{topic}}", "queues{{topic}}"),
        (r"\{state.not a place}", "{state.not a place}"),
        (r"\{{unknown}}", "{{unknown}}"),
    ],
)
def test_a_backslash_makes_a_placeholder_text(text: str, expected: str) -> None:
    assert render(text, STATE) == expected
    assert render_value(text, STATE) == expected


@pytest.mark.parametrize(
    "text",
    [
        "{state.}",
        "{state.a b}",
        "{state.items[0]}",
        "{state.a..b}",
        "{state.1}",
        "{state.a|upper}",
        "{state.never closed",
        "{{ topic | upper }}",
        "{{first last}}",
        "{{items[0]}}",
        "{{a..b}}",
        "{{state.}}",
        "{{имя}}",
    ],
)
def test_what_was_meant_as_a_placeholder_is_not_taken_for_text(text: str) -> None:
    for act in (lambda: render(text, STATE), lambda: placeholders(text), lambda: render_value({"a": [text]}, STATE)):
        with pytest.raises(InvalidPlaceholder, match="backslash") as raised:
            act()
        assert raised.value.text == text


@pytest.mark.parametrize(
    ("path", "missing", "expected"),
    [
        ("topik", "topik", 'did you mean "topic"'),
        ("zzz", "zzz", "Known: answer, count"),
        ("answer.decison", "decison", 'did you mean "decision"'),
        ("items.2", "2", "a list of 2"),
        ("items.-3", "-3", "a list of 2"),
        ("items.title", "title", "a list of 2"),
        ("items.1.tags.9", "9", '"items.1.tags", a list of 2'),
        ("topic.sub", "sub", "which is text"),
        ("count.sub", "sub", "which is a number"),
        ("done.sub", "sub", "which is true or false"),
        ("nothing.sub", "sub", "which is empty"),
        ("items.²", "²", "a list of 2"),
        ("items.99999999999", "99999999999", "a list of 2"),
    ],
)
def test_an_unknown_placeholder_names_what_is_missing_and_what_exists(path: str, missing: str, expected: str) -> None:
    for text in (f"{{state.{path}}}", f"{{{{{path}}}}}"):
        for act in (lambda text=text: render(f"x {text}", STATE), lambda text=text: render_value(text, STATE)):
            with pytest.raises(UnknownPlaceholder) as raised:
                act()
            assert (raised.value.path, raised.value.missing) == (path, missing)
            assert expected in str(raised.value)
            assert f"{{state.{path}}}" in str(raised.value)
            assert isinstance(raised.value, InvalidRequest)


def test_a_message_stays_short_however_many_names_there_are() -> None:
    state = {f"{'k' * 500}{number}": number for number in range(100_000)}
    with pytest.raises(UnknownPlaceholder) as raised:
        render("{{topic}}", state)
    assert len(str(raised.value)) < 2000


def test_filled_in_values_are_not_rendered_again() -> None:
    state = {"a": "{state.b} {{b}} \\{{b}}", "b": "secret"}
    assert render("{{a}}", state) == state["a"]
    assert render_value(["{{a}}", "-{{a}}"], state) == [state["a"], f"-{state['a']}"]


def test_a_template_of_one_placeholder_gives_the_value_itself() -> None:
    given_items = STATE["items"]
    assert render_value("{state.items}", STATE) is given_items
    assert render_value("{{count}}", STATE) == 3
    assert render_value("{{nothing}}", STATE) is None
    assert render_value("{{done}}", STATE) is True
    assert render_value(" {{count}}", STATE) == " 3"
    assert render_value("{{count}}{{count}}", STATE) == "33"


def test_values_are_rendered_deeply_and_their_keys_are_not() -> None:
    value = {
        "list": ["{{topic}}", 1, None, True, ["x {{count}}"]],
        "{{topic}}": {"deep": ("{state.answer}", 2.5)},
        "plain": "text",
    }
    assert render_value(value, STATE) == {
        "list": ["queues", 1, None, True, ["x 3"]],
        "{{topic}}": {"deep": [STATE["answer"], 2.5]},
        "plain": "text",
    }
    assert value["plain"] == "text"


def test_states_may_be_any_mapping() -> None:
    layered: ChainMap[str, Any] = ChainMap({"a": MappingProxyType({"b": 1})}, {"c": 2})
    assert render("{{a.b}} {{c}} {{a}}", layered) == '1 2 {"b":1}'


def test_placeholders_are_listed_once_in_order() -> None:
    assert placeholders("{{b.x.0}} {state.a} {{b.x.0}} {{state.a}} \\{{c}}") == ["b.x.0", "a"]
    assert placeholders_in({"{{key}}": ["{{b}}", {"x": "{state.a.c} {{b}}"}, 1, None]}) == ["b", "a.c"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("{{topic}}", "{state.user_input}"),
        (
            "On {state.topic.0}, {{ topic }} and {{topics}}: {topic}",
            "On {state.user_input.0}, {state.user_input} and {{topics}}: {topic}",
        ),
        (r"\{{topic}} \\{{topic}}", r"\{{topic}} \\{state.user_input}"),
    ],
)
def test_placeholders_of_one_key_become_those_of_another(text: str, expected: str) -> None:
    assert with_key(text, "topic", "user_input") == expected


def test_values_as_prose() -> None:
    values: list[Any] = ["x", None, True, False, 7, 1.5, [], {}, {"a": [None]}, (1, 2)]
    assert [text_of(value) for value in values] == [
        "x",
        "",
        "true",
        "false",
        "7",
        "1.5",
        "[]",
        "{}",
        '{"a":[null]}',
        "[1,2]",
    ]


def test_a_rendered_string_has_a_largest_size() -> None:
    state = {"big": "x" * 100}
    assert len(render("{{big}}" * 10, state, RenderBudget(1000))) == 1000
    with pytest.raises(TemplateTooLarge, match=r"1000 bytes \(RUNLANE_MAX_STEP_BYTES\)"):
        render("{{big}}" * 11, state, RenderBudget(1000))
    with pytest.raises(TemplateTooLarge, match=r"1000 bytes \(max_state_bytes\)"):
        render("{{big}}" * 10 + "x", state, RenderBudget(1000, "max_state_bytes"))


def test_bytes_are_counted_and_not_characters() -> None:
    assert render("{{word}}é", {"word": "ß"}, RenderBudget(4)) == "ßé"
    with pytest.raises(TemplateTooLarge):
        render("{{word}}é", {"word": "ß"}, RenderBudget(3))
    assert fill("{{word}}\ud800", {"word": "😀"}).size == 7


@pytest.mark.parametrize("value", ["x" * 1_000_000, {"a": "x" * 1_000_000}])
def test_a_result_that_is_too_large_is_refused_before_it_is_built(value: Any) -> None:
    """A thousand places of one megabyte: the value is there once, and nothing of its size is allocated for each."""
    template = "{{big}}{state.big}" * 1000
    amplified = {"a": ["{{big}}"] * 1000, "b": template}
    tracemalloc.start()
    try:
        for act in (
            lambda: render(template, {"big": value}),
            lambda: fill(template, {"big": value}, RenderBudget(2_000_000)),
            lambda: render_value(amplified, {"big": value}),
        ):
            with pytest.raises(TemplateTooLarge):
                act()
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_the_size_of_a_filled_value_counts_everything_that_is_named() -> None:
    budget = RenderBudget(1000)
    value = render_value({"a": "{{items}}", "b": ["{{items}}", "x{{topic}}"]}, STATE, budget)
    assert value["a"] == value["b"][0] == STATE["items"]
    assert budget.used == 2 * size_of(STATE["items"]) + len("xqueues")
    with pytest.raises(TemplateTooLarge):
        render_value(["{{items}}"] * 40, STATE, RenderBudget(1000))


def test_a_value_has_a_largest_depth() -> None:
    value: Any = "{{topic}}"
    for _ in range(150):
        value = [value]
    assert placeholders_in(value) == ["topic"]
    for _ in range(100):
        value = {"a": value}
    for act in (lambda: render_value(value, STATE), lambda: placeholders_in(value)):
        with pytest.raises(TemplateTooLarge, match="nested"):
            act()


# Each of these is quadratic or worse for a search that tries again from every start or backs up character by character;
# the test's time limit ends such a search, which would take hours.
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece",
    [
        "{",
        "{{",
        "\\",
        "{{ ",
        "{{a",
        "{{a.",
        "{{a.b",
        "{ state",
        "}}",
        "{ ",
        "a.",
        "{{a ",
        "\\{",
        "{{a|",
        "\\\\{{topic}}",
        "-",
        " ",
    ],
)
@pytest.mark.parametrize("head", ["", "{{", "{{a", "{{a.b ", "{ "])
def test_no_text_makes_the_search_slow(head: str, piece: str) -> None:
    text = head + piece * 100_000
    assert isinstance(render(text, {**STATE, "a": {"b": 1}}), str)


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
_keys = st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]{0,12}\Z")
_plain = st.text(st.characters(blacklist_characters="{}\\", blacklist_categories=["Cs"]), max_size=30)


@given(st.lists(st.tuples(_plain, _keys, _values), max_size=6), _plain)
def test_any_text_between_placeholders_is_kept(parts: list[tuple[str, str, Any]], tail: str) -> None:
    state = {key: value for _, key, value in parts}
    for form in ("{{%s}}", "{state.%s}", "{{ state.%s }}"):
        text = "".join(f"{before}{form % key}" for before, key, _ in parts) + tail
        expected = "".join(f"{before}{text_of(state[key])}" for before, key, _ in parts) + tail
        assert render(text, state) == expected
        assert placeholders(text) == list(dict.fromkeys(key for _, key, _ in parts))


@given(_keys, _values)
def test_any_value_comes_through_whole(key: str, value: Any) -> None:
    assert render_value({"a": [f"{{state.{key}}}"]}, {key: value}) == {"a": [value]}


@given(
    st.recursive(
        st.integers() | st.text(max_size=10),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=12,
    )
)
def test_json_is_never_a_placeholder(value: Any) -> None:
    # Strings within the value may hold anything, so only its own braces are looked at.
    bare = json.dumps(_without_braces(value))
    assert render(bare, {}) == bare


@given(st.text(alphabet="{}\\ .a|b0state-[]\n", max_size=60))
@example("{{a}}}")
@example("\\\\\\{{a}}{state.b}")
def test_any_text_is_filled_or_refused(text: str) -> None:
    state = {"a": "1", "b": {"a": [2]}}
    try:
        named = placeholders(text)
        filled = render(text, state)
    except (InvalidPlaceholder, UnknownPlaceholder):
        return
    assert all(path.split(".")[0] in state for path in named)
    if not named and "\\" not in text:
        assert filled == text


def _without_braces(value: Any) -> Any:
    match value:
        case str():
            return value.replace("{", "").replace("}", "").replace("\\", "")
        case list():
            return [_without_braces(item) for item in cast("list[Any]", value)]
        case dict():
            pairs = cast("dict[str, Any]", value).items()
            return {_without_braces(key): _without_braces(item) for key, item in pairs}
        case _:
            return value
