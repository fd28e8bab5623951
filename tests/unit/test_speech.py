"""What is printed of an answer: each character once, whatever pieces came, were missing or came twice."""

from __future__ import annotations

import io
from typing import Any

from runlane import Event, LiveEvent
from runlane.cli.speech import Speech


def speech(*, live: bool = True, colours: bool = False) -> tuple[Speech, io.StringIO]:
    out = io.StringIO()
    return Speech(out, colours=colours, live=live), out


def piece(text: str, offset: int, kind: str = "text", answer: str = "0/model/0") -> LiveEvent:
    return LiveEvent("run_1", kind, 1, {"answer": answer, "offset": offset, "text": text})


def stored(kind: str, attempt: int = 1, **data: Any) -> Event:
    return Event("run_1", 1, kind, attempt, 0, data)


def whole(text: str, answer: str = "0/model/0") -> Event:
    return stored("model_response", answer=answer, text=text)


def test_pieces_make_the_answer_and_it_is_not_printed_again() -> None:
    said, out = speech()
    for event in (piece("Let me ", 0, "thinking"), piece("see", 7, "thinking"), piece("one ", 0), piece("two", 4)):
        said.show(event)
    said.show(whole("one two"))
    said.end("one two")
    assert out.getvalue() == "Let me see\none two\n"


def test_what_was_missed_comes_with_the_whole_answer() -> None:
    said, out = speech()
    said.show(piece("one ", 0))
    said.show(piece("three", 8))
    said.show(piece("one ", 0))
    said.show(whole("one two three"))
    said.end("one two three")
    assert out.getvalue() == "one two three\n"


def test_another_answer_than_the_pieces_told_is_printed_whole() -> None:
    said, out = speech()
    said.show(piece("on", 0))
    said.show(stored("worker_picked_up"))
    said.show(stored("worker_picked_up", attempt=2))
    said.show(piece("two", 0))
    said.show(whole("two"))
    said.end("two")
    assert out.getvalue() == "on\n[the worker was lost; the answer begins again]\ntwo\n"
    said, out = speech()
    said.show(piece("on", 0))
    said.show(whole("two"))
    assert out.getvalue() == "on\ntwo\n"


def test_tools_are_a_line_each_and_thoughts_are_dim() -> None:
    said, out = speech(colours=True)
    said.show(piece("hm", 0, "thinking"))
    said.show(whole(""))
    said.show(stored("tool_execution", tool_name="add", args={"a": 1}))
    said.show(stored("tool_result", tool_name="add", preview="no", failed=True))
    said.show(whole("done", "0/model/1"))
    said.end({"sum": 3})
    assert out.getvalue() == (
        '\x1b[2mhm\x1b[0m\n\x1b[2m[add {"a":1}]\x1b[0m\n\x1b[2m[add failed: no]\x1b[0m\ndone\n{"sum":3}\n'
    )


def test_a_pipe_gets_the_answer_alone() -> None:
    said, out = speech(live=False)
    said.show(piece("one", 0))
    said.show(stored("tool_execution", tool_name="add", args={}))
    said.show(whole("one two"))
    said.end("one two")
    assert out.getvalue() == "one two\n"
    said, out = speech(live=False)
    said.end(None)
    assert out.getvalue() == ""


def test_a_reader_that_joins_late_prints_from_the_beginning() -> None:
    said, out = speech()
    said.show(piece("ht", 4, "thinking"))
    said.show(piece("thought", 0, "thinking"))
    said.show(piece("three", 8))
    assert out.getvalue() == "thought"
    said.show(piece("one two three", 0))
    said.show(piece(" four", 13))
    said.show(piece("one two three", 0))
    assert out.getvalue() == "thought\none two three four"
    said.show(whole("one two three four"))
    # Meant for somebody who came later still, and overtaken by the stored answer.
    said.show(piece("one two", 0))
    said.end("one two three four")
    assert out.getvalue() == "thought\none two three four\n"


def test_a_gap_that_nobody_fills_does_not_hold_the_rest_back() -> None:
    now = [0.0]
    out = io.StringIO()
    said = Speech(out, colours=False, live=True, clock=lambda: now[0])
    said.show(piece("two ", 4))
    assert out.getvalue() == ""
    now[0] = 2.0
    said.show(piece("three ", 8))
    said.show(piece("four", 14))
    assert out.getvalue() == "... two three four"
    said.show(whole("one two three four"))
    said.end("one two three four")
    assert out.getvalue() == "... two three four\none two three four\n"


def test_a_model_that_is_asked_again_begins_on_a_new_line() -> None:
    said, out = speech()
    said.show(piece("on", 0))
    said.show(piece("tw", 0))
    said.show(piece("o", 2))
    said.show(whole("two"))
    assert out.getvalue() == "on\ntwo\n"
