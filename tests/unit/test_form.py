"""A person's answer becomes clean values, or is refused with the field named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from runlane.definitions.forms import MAX_TEXT, MAX_TEXTAREA, validate
from runlane.definitions.schema.step import HumanField
from runlane.errors import InvalidInput


def field(type_: str = "text", **more: Any) -> HumanField:
    if type_ in ("select", "multiselect"):
        more.setdefault("options", ["red", "green", "a, b"])
    return HumanField.model_validate({"name": "it", "type": type_, **more})


@pytest.mark.parametrize(
    ("type_", "given", "clean"),
    [
        ("text", "hello ", "hello "),
        ("textarea", "a\nb", "a\nb"),
        ("number", 7, 7),
        ("number", 7.5, 7.5),
        ("number", " -12 ", -12),
        ("number", "1.5e3", 1500.0),
        ("boolean", True, True),
        ("boolean", False, False),
        ("boolean", "Yes", True),
        ("boolean", "off", False),
        ("date", "2024-02-29", "2024-02-29"),
        ("email", " ann.o'neil+x@mail.example.org ", "ann.o'neil+x@mail.example.org"),
        ("select", "red", "red"),
        ("select", " green ", "green"),
        ("multiselect", ["green", "red"], ["green", "red"]),
        ("multiselect", [], []),
        ("multiselect", "red, green", ["red", "green"]),
        ("multiselect", "a, b", ["a, b"]),
    ],
)
def test_values_that_fit(type_: str, given: Any, clean: Any) -> None:
    value = validate([field(type_)], {"it": given})["it"]
    assert value == clean
    assert type(value) is type(clean)


@pytest.mark.parametrize(
    ("type_", "given"),
    [
        ("text", 7),
        ("text", ["a"]),
        ("text", {"a": 1}),
        ("text", "x" * (MAX_TEXT + 1)),
        ("textarea", "x" * (MAX_TEXTAREA + 1)),
        ("text", "a\x00b"),
        ("textarea", "a\ud800"),
        ("number", "seven"),
        ("number", True),
        ("number", "0x10"),
        ("number", "1_000"),
        ("number", "١٢"),
        ("number", "nan"),
        ("number", float("inf")),
        ("number", float("nan")),
        ("number", 10**30),
        ("number", "9" * 31),
        ("boolean", 1),
        ("boolean", "maybe"),
        ("boolean", []),
        ("date", "2023-02-29"),
        ("date", "31.01.2026"),
        ("date", "20260131"),
        ("date", "2026-W05-6"),
        ("date", "2026-01-31T10:00"),
        ("date", 20260131),
        ("email", "ann"),
        ("email", "ann@mail"),
        ("email", "ann..b@mail.org"),
        ("email", ".ann@mail.org"),
        ("email", "ann@-mail.org"),
        ("email", "ann@mail.org, bob@mail.org"),
        ("email", "ann@mail.org\nbcc: x@y.org"),
        ("email", "a" * 250 + "@mail.org"),
        ("email", 5),
        ("select", "blue"),
        ("select", "Red"),
        ("select", ["red"]),
        ("select", 1),
        ("multiselect", ["red", "blue"]),
        ("multiselect", ["red", "red"]),
        ("multiselect", [["red"]]),
        ("multiselect", {"red": True}),
        ("multiselect", 5),
        ("multiselect", ["red"] * 1000),
    ],
)
def test_values_that_do_not_fit_are_refused_by_field(type_: str, given: Any) -> None:
    with pytest.raises(InvalidInput, match=r'^"it" ') as refusal:
        validate([field(type_)], {"it": given})
    assert len(str(refusal.value)) < 500
    str(refusal.value).encode()


@pytest.mark.parametrize("type_", ["text", "textarea", "number", "boolean", "date", "email", "select", "multiselect"])
def test_required_fields_must_be_given_and_others_may_be_left_out(type_: str) -> None:
    empty: list[Mapping[str, Any]] = [{}, {"it": None}, {"it": "  "}]
    if type_ == "multiselect":
        empty.append({"it": []})
    for answer in empty:
        with pytest.raises(InvalidInput, match=r'^"it" is required'):
            validate([field(type_, required=True)], answer)
    assert validate([field(type_)], {}) == {"it": None}
    assert validate([field(type_)], {"it": None}) == {"it": None}


def test_an_empty_text_stays_one_and_an_empty_number_is_none() -> None:
    assert validate([field("text")], {"it": ""}) == {"it": ""}
    assert validate([field("number")], {"it": ""}) == {"it": None}
    assert validate([field("select")], {"it": ""}) == {"it": None}


def test_defaults_fill_in_and_are_made_clean_too() -> None:
    assert validate([field("number", default="5", required=True)], {}) == {"it": 5}
    assert validate([field("boolean", default=False)], {}) == {"it": False}
    assert validate([field("multiselect", default="red")], {"it": None}) == {"it": ["red"]}
    assert validate([field("text", default="x")], {"it": "y"}) == {"it": "y"}
    with pytest.raises(InvalidInput, match=r'^"it" must be a number'):
        validate([field("number", default="many")], {})


def test_several_fields_are_accepted_and_unknown_ones_refused() -> None:
    fields = [field("text", name="name", required=True), field("number", name="age"), field("boolean", name="ok")]
    assert validate(fields, {"ok": "yes", "name": "Ann"}) == {"name": "Ann", "age": None, "ok": True}
    with pytest.raises(InvalidInput, match=r'^"nmae" is not a field of this form \(did you mean "name"\?\)'):
        validate(fields, {"nmae": "Ann"})
    with pytest.raises(InvalidInput, match=r"^A string does not name"):
        validate(fields, "Ann")


def test_a_bare_text_answers_one_field_or_none() -> None:
    assert validate([field("number")], "12") == {"it": 12}
    assert validate([], "fine") == {"response": "fine"}
    assert validate([], {"response": "fine"}) == {"response": "fine"}
    assert validate([], "") == {"response": ""}
    assert validate([], {}) == {}


@pytest.mark.parametrize(
    "answer", [{"other": "x"}, {"response": 5}, {"response": "x" * (MAX_TEXTAREA + 1)}, {"response": "\x00"}]
)
def test_a_question_without_fields_takes_one_string(answer: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        validate([], answer)
