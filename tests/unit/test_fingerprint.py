"""Fingerprints: stable over what differs from run to run, different over what distinguishes failures."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlane.domain.fingerprint import MAX_CHARACTERS, fingerprint, normalized, own_frames

MESSAGES = (
    "Order {} was refused",
    "no row for key '{}' in table orders",
    'The value "{}" does not match the schema.',
    "GET https://shop.example/orders/{}/items failed",
    "Worker {} vanished during the attempt.",
    "deadline {} exceeded",
    "object at {} is gone",
)

numbers = st.one_of(st.integers().map(str), st.floats(allow_nan=False, allow_infinity=False).map(lambda x: f"{x:.3f}"))
ids = st.one_of(
    st.uuids().map(str),
    st.integers(0, 2**128 - 1).map(lambda value: f"run_{value:032x}"),
    st.integers(2**32, 2**64).map(lambda value: f"0x{value:x}"),
    st.integers(0, 2**160 - 1).map(lambda value: f"{value:040x}"),
)
moments = st.datetimes().map(lambda at: at.isoformat() + "Z")
addresses = st.one_of(st.ip_addresses(v=4).map(str), st.ip_addresses(v=4).map(lambda ip: f"{ip}:5432"))


def of(message: str, **error: Any) -> str:
    return fingerprint("job", None, {"type": "ValueError", "message": message, **error})


@pytest.mark.parametrize("kind", [numbers, ids, moments, addresses], ids=["numbers", "ids", "moments", "addresses"])
@given(data=st.data())
def test_data_in_a_message_does_not_matter(kind: st.SearchStrategy[str], data: st.DataObject) -> None:
    message = data.draw(st.sampled_from(MESSAGES))
    one, other = data.draw(kind), data.draw(kind)
    assert of(message.format(one)) == of(message.format(other))


@given(one=st.text(st.characters(exclude_characters="'\"`"), max_size=40), other=st.text(max_size=0))
def test_quoted_strings_do_not_matter(one: str, other: str) -> None:
    assert of(f'The state has no "{one}".') == of(f'The state has no "{other}".')


def test_a_quote_that_was_cut_off_is_a_quote() -> None:
    assert normalized('cannot read "' + "a" * 5000) == normalized('cannot read "' + "b" * 2000)


def test_an_apostrophe_is_not_a_quote() -> None:
    assert normalized("The task's input isn't valid") == "The task's input isn't valid"


@given(
    st.sampled_from(["task_error", "timeout", "ValueError"]),
    st.sampled_from(["rate_limited", "TypeError"]),
    st.text(max_size=50),
)
def test_other_codes_have_other_fingerprints(one: str, other: str, message: str) -> None:
    first, second = ({"type": code, "message": message} for code in (one, other))
    assert fingerprint("job", None, first) != fingerprint("job", None, second)


def test_target_step_and_message_distinguish_failures() -> None:
    error = {"type": "timeout", "message": "too slow"}
    found = {
        fingerprint("job", None, error),
        fingerprint("other", None, error),
        fingerprint("job", "draft", error),
        fingerprint("job", "review", error),
        fingerprint("job", None, {**error, "message": "too large"}),
    }
    assert len(found) == 5


@given(st.text(max_size=3000))
def test_any_message_has_a_bounded_form(message: str) -> None:
    assert len(normalized(message)) <= MAX_CHARACTERS
    assert of(message) == of(message)


def traceback(line: int, function: str = "charge") -> str:
    return (
        "Traceback (most recent call last):\n"
        f'  File "/srv/venv/lib/python3.11/site-packages/httpx/client.py", line {line}, in send\n    x\n'
        "ValueError: inner\n\nThe above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n"
        f'  File "/srv/venv/lib/python3.11/site-packages/runlane/worker/execution.py", line {line}, in run\n    x\n'
        f'  File "/srv/app/shop/orders.py", line {line}, in handle\n    x\n'
        f'  File "/srv/app/shop/pay.py", line {line + 1}, in {function}\n    x\n'
        f'  File "/usr/lib/python3.11/json/decoder.py", line {line}, in decode\n    x\n'
        "ValueError: no\n"
    )


def test_own_frames_count_without_their_lines() -> None:
    assert own_frames(traceback(10)) == ["orders.py:handle", "pay.py:charge"]
    assert of("no", traceback=traceback(10)) == of("no", traceback=traceback(99))
    assert of("no", traceback=traceback(10)) != of("no", traceback=traceback(10, "refund"))
    assert own_frames("") == own_frames("not a traceback") == []


def test_only_the_innermost_frames_count() -> None:
    deep = "Traceback (most recent call last):\n" + "".join(
        f'  File "/srv/app/a.py", line {number}, in f{number}\n' for number in range(9)
    )
    assert own_frames(deep) == ["a.py:f6", "a.py:f7", "a.py:f8"]


def test_the_rule_of_this_version_does_not_change() -> None:
    """Stored fingerprints are compared with new ones: a change of the rule needs a new version."""
    error = {"type": "KeyError", "message": f"no order {uuid.UUID(int=7)} of 'a' at 10:30", "traceback": traceback(3)}
    assert fingerprint("job", "pay", error) == "f07676b42a9f0fc7692d295af403b8c7657c603325c069b3f07aa8168d9568cd"
