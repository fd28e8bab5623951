"""Arguments are checked when a run is accepted, and the error names those that are not valid."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import pytest
from pydantic import BaseModel

from runlane import App, Context, DuplicateTask, InputTooLarge, InvalidInput
from runlane.domain.task import Task, make_task
from runlane.errors import ConfigurationError

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForTypes

MAX = 1_000_000


class Size(BaseModel):
    width: int
    height: int = 1


@dataclass
class Crop:
    left: int


def thumbnail(ctx: Context, path: str, width: int = 200) -> None: ...


def task_of(function: Any) -> Task:
    return make_task(function, "job")


def check(function: Any, arguments: Any) -> str:
    return task_of(function).check(arguments, MAX)


def test_arguments_that_fit_become_json_text_as_they_were_sent() -> None:
    assert check(thumbnail, {"path": "a.png"}) == '{"path":"a.png"}'


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "path is missing"),
        ({"path": "a", "widht": 3}, 'widht is not an argument (did you mean "width"?)'),
        ({"path": "a", "zzz": 3}, "zzz is not an argument."),
        ({"path": 7}, "path: input should be a valid string, not 7"),
        ({"path": "a", "width": "7"}, "width: input should be a valid integer, not '7'"),
        ({"path": "a", "width": 1.5}, "width: input should be a valid integer"),
        ({"path": "a", "width": True}, "width: input should be a valid integer, not True"),
        ({"path": None}, "path: input should be a valid string, not None"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check(thumbnail, arguments)
    message = str(caught.value)
    assert expected in message
    assert "The input does not match job(path: " in message


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(InvalidInput, match=r"path is missing; width: .*; extra is not an argument"):
        check(thumbnail, {"width": "x", "extra": 1})


def test_a_long_value_is_shortened_in_the_message() -> None:
    with pytest.raises(InvalidInput) as caught:
        check(thumbnail, {"path": "a", "width": "9" * 10_000})
    assert len(str(caught.value)) < 400


def typed(ctx: Context, day: date, size: Size, crop: Crop, mode: Literal["fast", "slow"] = "fast") -> None: ...


def test_dates_models_and_dataclasses_are_read_from_json() -> None:
    task = task_of(typed)
    text = task.check({"day": "2026-01-31", "size": {"width": 3}, "crop": {"left": 1}}, MAX)
    loaded = task.load(text)
    assert loaded == {"day": date(2026, 1, 31), "size": Size(width=3), "crop": Crop(1)}


def test_objects_may_be_passed_directly() -> None:
    text = check(typed, {"day": date(2026, 1, 31), "size": {"width": 3}, "crop": Crop(1)})
    assert text == '{"day":"2026-01-31","size":{"width":3},"crop":{"left":1}}'


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"day": "31.1.2026"}, "day: "),
        ({"size": {"width": "x"}}, "size.width: "),
        ({"crop": {}}, "crop.left is missing"),
        ({"mode": "medium"}, "mode: input should be 'fast' or 'slow', not 'medium'"),
    ],
)
def test_a_problem_inside_a_value_is_named_with_its_location(change: dict[str, Any], expected: str) -> None:
    good: dict[str, Any] = {"day": "2026-01-31", "size": {"width": 3}, "crop": {"left": 1}}
    with pytest.raises(InvalidInput) as caught:
        check(typed, good | change)
    assert expected in str(caught.value)


def test_a_default_stays_the_functions_own() -> None:
    task = task_of(thumbnail)
    assert task.load(task.check({"path": "a"}, MAX)) == {"path": "a"}


def test_a_function_with_open_keywords_takes_any() -> None:
    def job(ctx: Context, a: int, **rest: Any) -> None: ...

    assert check(job, {"a": 1, "b": [2]}) == '{"a":1,"b":[2]}'


def test_a_keyword_only_parameter_is_an_argument() -> None:
    def job(ctx: Context, *, a: int) -> None: ...

    assert check(job, {"a": 1}) == '{"a":1}'
    with pytest.raises(InvalidInput, match="a is missing"):
        check(job, {})


def test_a_parameter_without_a_type_takes_any_value() -> None:
    def job(ctx, a):  # type: ignore[no-untyped-def]
        ...

    assert check(job, {"a": {"deep": [1, None]}}) == '{"a":{"deep":[1,null]}}'


def positional_only(ctx: Context, a: int, /) -> None: ...


def star(ctx: Context, *values: int) -> None: ...


def no_context() -> None: ...


def keyword_context(*, ctx: Context) -> None: ...


def argument_first(day: str = "today") -> None: ...


def list_first(days: list[str], ctx: Context) -> None: ...


def unreadable(ctx: Context, a: OnlyForTypes) -> None: ...


def unreadable_attribute(ctx: Context, a: int) -> None: ...


unreadable_attribute.__annotations__["a"] = "math.no_such_type"


def no_json_type(ctx: Context, a: ModuleLike) -> None: ...


class ModuleLike:
    pass


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (positional_only, "cannot be filled by name. Use ordinary or keyword-only parameters"),
        (star, "cannot be filled by name"),
        (no_context, "must take its Context first"),
        (keyword_context, "must take its Context first"),
        (argument_first, "must take its Context first: def name(ctx: Context, day, ...)"),
        (list_first, "must take its Context first: def name(ctx: Context, days, ...)"),
        (unreadable, "its annotations cannot be resolved"),
        (unreadable_attribute, "its annotations cannot be resolved"),
        (no_json_type, "a parameter's type cannot be read from JSON"),
    ],
)
def test_a_function_that_no_run_could_call_is_refused_when_it_is_registered(function: Any, expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        task_of(function)
    assert expected in str(caught.value)
    assert function.__name__ in str(caught.value)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"name": ""}, "The task name is empty"),
        ({"name": "x" * 201}, "The task name has 201 characters"),
        ({"name": "a\x00"}, "NUL"),
        ({"lane": ""}, "The lane name is empty"),
        ({"lane": "x" * 65}, "The lane name has 65 characters"),
        ({"max_attempts": 0}, "max_attempts=0 must be between 1 and 1000"),
        ({"max_attempts": 1001}, "max_attempts=1001"),
        ({"max_losses": -1}, "max_losses=-1 must be between 0 and 1000"),
        ({"timeout_seconds": 0}, "timeout_seconds=0 must be more than 0"),
        ({"timeout_seconds": math.nan}, "timeout_seconds=nan"),
        ({"timeout_seconds": math.inf}, "timeout_seconds=inf"),
    ],
)
def test_options_out_of_bounds_are_refused_when_the_task_is_registered(options: dict[str, Any], expected: str) -> None:
    fields: dict[str, Any] = {"name": "job"}
    with pytest.raises(ConfigurationError) as caught:
        make_task(thumbnail, **(fields | options))
    assert expected in str(caught.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("wrapped", [False, True])
def test_nan_and_infinity_are_refused(value: float, wrapped: bool) -> None:
    def job(ctx: Context, a: Any) -> None: ...

    with pytest.raises(InvalidInput, match="is not JSON: it contains"):
        check(job, {"a": {"x": [(1, value)]} if wrapped else value})


def test_nan_is_found_in_any_kind_of_mapping_and_in_dataclasses() -> None:
    def job(ctx: Context, a: Any) -> None: ...

    @dataclass
    class Holder:
        value: float

    frozen: Mapping[str, Any] = MappingProxyType({"a": math.nan})
    for arguments in (frozen, {"a": Holder(math.nan)}):
        with pytest.raises(InvalidInput, match="is not JSON: it contains nan"):
            check(job, arguments)


def test_null_is_fine() -> None:
    def job(ctx: Context, a: Any) -> None: ...

    assert check(job, {"a": None}) == '{"a":null}'


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([1], "must be an object with its arguments by name, not [1]"),
        ("text", "must be an object"),
        ({"path": "\ud800"}, "is not JSON"),
        ({"path": object()}, "is not JSON"),
        ({"path": {1, 2}}, "is not JSON"),
        ({1: "a"}, "is not JSON"),
        ({"path": 2**70}, "is not JSON"),
    ],
)
def test_input_that_is_not_json_is_refused_with_the_reason(arguments: Any, expected: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check(thumbnail, arguments)
    assert expected in str(caught.value)
    assert "job" in str(caught.value)


def test_input_nested_too_deeply_is_refused() -> None:
    def job(ctx: Context, a: Any) -> None: ...

    value: list[Any] = []
    for _ in range(230):
        value = [value]
    with pytest.raises(InvalidInput):
        check(job, {"a": value})
    for _ in range(100_000):
        value = [value]
    with pytest.raises(InvalidInput):
        check(job, {"a": value})


def test_a_nul_in_the_input_survives() -> None:
    task = task_of(thumbnail)
    assert task.load(task.check({"path": "a\x00b"}, MAX)) == {"path": "a\x00b"}


def test_input_over_the_limit_is_refused_with_the_sizes_in_bytes() -> None:
    with pytest.raises(
        InputTooLarge, match=r"has 51 bytes .* at most 50 are allowed .*RUNLANE_MAX_INPUT_BYTES"
    ) as caught:
        task_of(thumbnail).check({"path": "ü" * 20}, 50)
    assert caught.value.http_status == 413
    assert task_of(thumbnail).check({"path": "ü" * 20}, 51)


def test_two_functions_cannot_share_a_name() -> None:
    app = App()
    app.task("job")(thumbnail)
    with pytest.raises(DuplicateTask) as caught:
        app.task("job")(typed)
    message = str(caught.value)
    assert "thumbnail" in message
    assert "typed" in message
    assert "another name" in message


def test_apps_are_joined_unless_they_share_a_name() -> None:
    one, two, three = App(), App(), App()
    one.task("a")(thumbnail)
    two.task("b")(thumbnail)
    three.task("a")(typed)
    one.include(two)
    one.include(two)
    assert sorted(one.tasks) == ["a", "b"]
    with pytest.raises(DuplicateTask):
        one.include(three)
    assert one.tasks["a"].function is thumbnail


def test_a_decorated_function_stays_what_it_was() -> None:
    app = App()
    assert app.task("job")(thumbnail) is thumbnail
    assert not app.tasks["job"].is_async
