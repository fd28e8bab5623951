"""What is printed of an answer: each character once, whatever pieces came, were missing or came twice."""

from __future__ import annotations

import io
from typing import Any

from runlane import Event, LiveEvent
from runlane.cli.answer_printer import AnswerPrinter


def new_printer(*, live: bool = True, colours: bool = False) -> tuple[AnswerPrinter, io.StringIO]:
    out = io.StringIO()
    return AnswerPrinter(out, colours=colours, live=live), out


def piece(text: str, offset: int, kind: str = "text", answer: str = "0/model/0") -> LiveEvent:
    return LiveEvent("run_1", kind, 1, {"answer": answer, "offset": offset, "text": text})


def stored(kind: str, attempt: int = 1, **data: Any) -> Event:
    return Event("run_1", 1, kind, attempt, 0, data)


def whole(text: str, answer: str = "0/model/0") -> Event:
    return stored("model_response", answer=answer, text=text)


def test_pieces_make_the_answer_and_it_is_not_printed_again() -> None:
    printer, out = new_printer()
    for event in (piece("Let me ", 0, "thinking"), piece("see", 7, "thinking"), piece("one ", 0), piece("two", 4)):
        printer.show(event)
    printer.show(whole("one two"))
    printer.end("one two")
    assert out.getvalue() == "Let me see\none two\n"


def test_missed_pieces_come_with_the_whole_answer() -> None:
    printer, out = new_printer()
    printer.show(piece("one ", 0))
    printer.show(piece("three", 8))
    printer.show(piece("one ", 0))
    printer.show(whole("one two three"))
    printer.end("one two three")
    assert out.getvalue() == "one two three\n"


def test_an_answer_that_differs_from_its_pieces_is_printed_whole() -> None:
    printer, out = new_printer()
    printer.show(piece("on", 0))
    printer.show(stored("worker_picked_up"))
    printer.show(stored("worker_picked_up", attempt=2))
    printer.show(piece("two", 0))
    printer.show(whole("two"))
    printer.end("two")
    assert out.getvalue() == "on\n[the worker was lost; the answer begins again]\ntwo\n"
    printer, out = new_printer()
    printer.show(piece("on", 0))
    printer.show(whole("two"))
    assert out.getvalue() == "on\ntwo\n"


def test_tools_are_a_line_each_and_thoughts_are_dim() -> None:
    printer, out = new_printer(colours=True)
    printer.show(piece("hm", 0, "thinking"))
    printer.show(whole(""))
    printer.show(stored("tool_execution", tool_name="add", args={"a": 1}))
    printer.show(stored("tool_result", tool_name="add", preview="no", failed=True))
    printer.show(whole("done", "0/model/1"))
    printer.end({"sum": 3})
    assert out.getvalue() == (
        '\x1b[2mhm\x1b[0m\n\x1b[2m[add {"a":1}]\x1b[0m\n\x1b[2m[add failed: no]\x1b[0m\ndone\n{"sum":3}\n'
    )


def test_a_pipe_gets_the_answer_alone() -> None:
    printer, out = new_printer(live=False)
    printer.show(piece("one", 0))
    printer.show(stored("tool_execution", tool_name="add", args={}))
    printer.show(whole("one two"))
    printer.end("one two")
    assert out.getvalue() == "one two\n"
    printer, out = new_printer(live=False)
    printer.end(None)
    assert out.getvalue() == ""


def test_a_reader_that_joins_late_prints_from_the_beginning() -> None:
    printer, out = new_printer()
    printer.show(piece("ht", 4, "thinking"))
    printer.show(piece("thought", 0, "thinking"))
    printer.show(piece("three", 8))
    assert out.getvalue() == "thought"
    printer.show(piece("one two three", 0))
    printer.show(piece(" four", 13))
    printer.show(piece("one two three", 0))
    assert out.getvalue() == "thought\none two three four"
    printer.show(whole("one two three four"))
    # Meant for an even later reader, and overtaken by the stored answer.
    printer.show(piece("one two", 0))
    printer.end("one two three four")
    assert out.getvalue() == "thought\none two three four\n"


def test_a_gap_that_stays_open_does_not_hold_the_rest_back() -> None:
    now = [0.0]
    out = io.StringIO()
    printer = AnswerPrinter(out, colours=False, live=True, clock=lambda: now[0])
    printer.show(piece("two ", 4))
    assert out.getvalue() == ""
    now[0] = 2.0
    printer.show(piece("three ", 8))
    printer.show(piece("four", 14))
    assert out.getvalue() == "... two three four"
    printer.show(whole("one two three four"))
    printer.end("one two three four")
    assert out.getvalue() == "... two three four\none two three four\n"


def test_a_repeated_model_call_begins_on_a_new_line() -> None:
    printer, out = new_printer()
    printer.show(piece("on", 0))
    printer.show(piece("tw", 0))
    printer.show(piece("o", 2))
    printer.show(whole("two"))
    assert out.getvalue() == "on\ntwo\n"
