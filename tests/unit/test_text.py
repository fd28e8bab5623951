"""Text that a database would refuse is refused or repaired before it is stored."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from runlane.domain.text import check_text, clean_text, dump_fields, dump_json, load_json
from runlane.errors import InvalidInput

any_text = st.text(st.characters(exclude_categories=()))


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", "is empty"),
        ("x" * 11, "has 11 characters; at most 10"),
        ("a\x00b", "contains a NUL character"),
        ("a\ud800", "contains half of a surrogate pair"),
    ],
)
def test_text_that_cannot_be_stored_is_refused_by_name(value: str, expected: str) -> None:
    with pytest.raises(InvalidInput, match=f"^The key {expected}") as caught:
        check_text(value, "The key", 10)
    assert caught.value.code == "invalid_input"


def test_good_text_is_returned_as_it_is() -> None:
    assert check_text("grün 🙂", "The key", 10) == "grün 🙂"


@given(any_text, st.none() | st.integers(1, 20))
def test_cleaned_text_can_always_be_stored(value: str, limit: int | None) -> None:
    cleaned = clean_text(value, limit)
    cleaned.encode()
    assert "\x00" not in cleaned
    assert limit is None or len(cleaned) <= limit


@given(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00")))
def test_cleaning_leaves_good_text_alone(value: str) -> None:
    assert clean_text(value) == value


def test_a_whole_pair_of_surrogates_becomes_its_character() -> None:
    assert clean_text("\ud83d\ude42") == "🙂"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_whatever_a_task_returns_becomes_json_that_can_be_stored(value: Any) -> None:
    text = dump_json(value)
    text.encode()
    assert "\x00" not in text
    load_json(text)


def test_a_nul_survives_inside_json() -> None:
    assert load_json(dump_json({"a": "x\x00y"})) == {"a": "x\x00y"}


def test_a_lone_surrogate_is_replaced_in_keys_and_values() -> None:
    assert load_json(dump_json({"k\ud800": ["v\udc00"]})) == {"k\ufffd": ["v\ufffd"]}


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**100])
def test_a_number_too_big_for_json_readers_becomes_text(number: int) -> None:
    assert load_json(dump_json({"n": number})) == {"n": str(number)}


@pytest.mark.parametrize("number", [2**64 - 1, -(2**63), 0, True])
def test_numbers_that_fit_stay_numbers(number: int) -> None:
    assert load_json(dump_json([number])) == [number]


def test_nesting_that_readers_would_choke_on_is_refused() -> None:
    with pytest.raises(TypeError, match="nested more than 200 levels"):
        dump_json(nested(5_000))


def test_a_value_that_contains_itself_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(TypeError):
        dump_json(circle)


def test_huge_text_is_carried() -> None:
    assert len(load_json(dump_json("x" * 5_000_000))) == 5_000_000


class Colour(BaseModel):
    name: str


@dataclass
class Point:
    x: int


def test_values_of_everyday_types_become_json() -> None:
    value = {
        "model": Colour(name="red"),
        "point": Point(3),
        "at": datetime(2026, 1, 31, tzinfo=UTC),
        "set": {"b", "a"},
        "bytes": b"ok\xff",
        7: "number as a key",
        "pair": (1, 2),
    }
    assert json.loads(dump_json(value)) == {
        "model": {"name": "red"},
        "point": {"x": 3},
        "at": "2026-01-31T00:00:00+00:00",
        "set": ["a", "b"],
        "bytes": "ok\ufffd",
        "7": "number as a key",
        "pair": [1, 2],
    }


def test_an_object_without_a_json_form_is_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        dump_json({"o": object()})


values = st.recursive(
    st.none() | st.booleans() | st.integers() | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(any_text, values, max_size=30), st.integers(min_value=60, max_value=400))
def test_named_values_are_cut_to_any_length(fields: dict[str, Any], limit: int) -> None:
    text = dump_fields(fields, limit)
    assert len(text) <= limit
    loaded = load_json(text)
    whole = dump_json(fields)
    if len(whole) <= limit:
        assert text == whole
    else:
        assert loaded != load_json(whole)


def test_a_cut_string_is_marked() -> None:
    fields = {"small": 1, "large": ["x" * 30] * 30, "late": "y" * 1000, "later": 2}
    loaded = load_json(dump_fields(fields, 300))
    assert loaded["small"] == 1
    assert loaded["large"].startswith('["xxx')
    assert loaded["large"].endswith("…")
    assert loaded["…"] == "2 more"
