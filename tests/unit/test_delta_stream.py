"""Pieces of an answer for readers: joined, in order, with their offsets, and without secrets."""

from __future__ import annotations

import asyncio

import pytest

from runlane.agents import delta_stream
from runlane.agents.delta_stream import DeltaStream
from runlane.llm.models import ModelDelta
from runlane.redaction import REDACTED, Redactor
from tests.harness import eventually

SECRET = "sk-canary-0123456789"


def places(published: list[ModelDelta]) -> list[tuple[str, str | None, int, str]]:
    return [(piece.kind, piece.call_id, piece.offset, piece.text) for piece in published]


async def test_the_first_piece_is_published_at_once_and_the_next_ones_together() -> None:
    published: list[ModelDelta] = []
    with DeltaStream(published.append, "0/model/0", Redactor()) as shown:
        shown(ModelDelta("text", "a"))
        assert places(published) == [("text", None, 0, "a")]
        for letter in "bcd":
            shown(ModelDelta("text", letter))
        assert len(published) == 1
    assert places(published) == [("text", None, 0, "a"), ("text", None, 1, "bcd")]
    assert {piece.answer for piece in published} == {"0/model/0"}


async def test_waiting_pieces_are_published_soon_though_nothing_more_comes() -> None:
    published: list[ModelDelta] = []
    with DeltaStream(published.append, "a", Redactor()) as shown:
        shown(ModelDelta("text", "a"))
        shown(ModelDelta("text", "b"))
        await eventually(lambda: len(published) == 2, "the second piece")
        assert places(published)[1] == ("text", None, 1, "b")
        # After a while without anything the next one goes at once again.
        await eventually(lambda: shown._timer is None, "the end of the wait")
        shown(ModelDelta("text", "c"))
        assert places(published)[2] == ("text", None, 2, "c")


async def test_other_kinds_and_calls_are_not_joined_and_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_stream, "TOGETHER_SECONDS", 3600.0)
    published: list[ModelDelta] = []
    with DeltaStream(published.append, "a", Redactor()) as shown:
        shown(ModelDelta("thinking", "h"))
        shown(ModelDelta("thinking", "m"))
        shown(ModelDelta("text", "It "))
        shown(ModelDelta("text", "is"))
        shown(ModelDelta("arguments", '{"a"', "one", "add"))
        shown(ModelDelta("arguments", '{"b"', "two", "add"))
        shown(ModelDelta("arguments", ":1}", "one", "add"))
        shown(ModelDelta("text", "."))
    assert places(published) == [
        ("thinking", None, 0, "h"),
        ("thinking", None, 1, "m"),
        ("text", None, 0, "It is"),
        ("arguments", "one", 0, '{"a"'),
        ("arguments", "two", 0, '{"b"'),
        ("arguments", "one", 4, ":1}"),
        ("text", None, 5, "."),
    ]


async def test_the_end_of_a_thought_that_might_become_a_secret_does_not_come_after_the_answer() -> None:
    published: list[ModelDelta] = []
    with DeltaStream(published.append, "a", Redactor([SECRET])) as shown:
        shown(ModelDelta("thinking", "ask"))
        shown(ModelDelta("text", "done."))
        # The thought continues and was a secret: the rest of it is not shown.
        shown(ModelDelta("thinking", SECRET[2:]))
    assert places(published) == [
        ("thinking", None, 0, "a"),
        ("thinking", None, 1, "sk"),
        ("text", None, 0, "done."),
        ("thinking", None, 3, REDACTED),
    ]


@pytest.mark.parametrize("size", [1, 3, 7, 50])
async def test_a_secret_that_comes_in_pieces_is_not_shown(size: int) -> None:
    text = f"The key is {SECRET}, and {SECRET[:9]} is none. sk-"
    published: list[ModelDelta] = []
    with DeltaStream(published.append, "a", Redactor([SECRET])) as shown:
        for start in range(0, len(text), size):
            shown(ModelDelta("text", text[start : start + size]))
            await asyncio.sleep(0)
    folded = ""
    for piece in published:
        assert piece.offset == len(folded)
        folded += piece.text
    assert folded == text.replace(SECRET, REDACTED)


async def test_an_answer_that_fails_publishes_what_was_clear_and_nothing_later() -> None:
    published: list[ModelDelta] = []

    def fails() -> None:
        with DeltaStream(published.append, "a", Redactor([SECRET])) as shown:
            shown(ModelDelta("text", "a"))
            shown(ModelDelta("text", f"b{SECRET[:5]}"))
            raise ValueError("cut")

    with pytest.raises(ValueError, match="cut"):
        fails()
    assert places(published) == [("text", None, 0, "a"), ("text", None, 1, "b")]
    await asyncio.sleep(2 * delta_stream.TOGETHER_SECONDS)
    assert len(published) == 2
