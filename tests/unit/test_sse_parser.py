"""The SSE parser follows the standard, whatever the size of the pieces is."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlane.client.sse import SseFrame, SseParser


def parse(*chunks: bytes) -> list[SseFrame]:
    parser = SseParser()
    return [frame for chunk in chunks for frame in parser.feed(chunk)]


def message(data: str, number: str | None = None) -> SseFrame:
    return SseFrame(number, "message", data)


@pytest.mark.parametrize(
    ("wire", "frames"),
    [
        (b"id: 1\ndata: {}\n\n", [message("{}", "1")]),
        (b"id: 1\r\ndata: {}\r\n\r\n", [message("{}", "1")]),
        (b"id: 1\rdata: {}\r\r", [message("{}", "1")]),
        (b"data: a\r\n\rdata: b\n\r", [message("a"), message("b")]),
        (b"data: a\ndata: b\ndata:\ndata\n\n", [message("a\nb\n\n")]),
        (b"data:a\n\ndata:  b\n\n", [message("a"), message(" b")]),
        (b"data: a:b: c\n\n", [message("a:b: c")]),
        (b": keepalive\n\n:\n\ndata: x\n: inside\ndata: y\n\n", [message("x\ny")]),
        (b"event: note\ndata: x\n\ndata: y\n\n", [SseFrame(None, "note", "x"), message("y")]),
        (b"id: 7\n\ndata: x\n\n", [message("x")]),
        (b"id: 1\x00\ndata: x\n\n", [message("x")]),
        (b"id\ndata: x\n\n", [message("x", "")]),
        (b"nonsense: 1\nDATA: 2\ndata: x\n\n", [message("x")]),
        (b"\xef\xbb\xbfdata: x\n\n", [message("x")]),
        (b"data: \xef\xbb\xbfx\n\n", [message("\ufeffx")]),
        (b"data: \xff\n\n", [message("\ufffd")]),
        # These end lines in Python's text, and in no event stream.
        ("data: a\u2028b\x0bc\x1cd\x85e\n\n".encode(), [message("a\u2028b\x0bc\x1cd\x85e")]),
        (b"data: cut", []),
        (b"data: cut\n", []),
        (b"id: 1\ndata: whole\n\nid: 2\ndata: cut\n", [message("whole", "1")]),
        (b"", []),
    ],
)
def test_frames_are_parsed_as_the_standard_requires(wire: bytes, frames: list[SseFrame]) -> None:
    assert parse(wire) == frames
    assert parse(*(bytes([byte]) for byte in wire)) == frames


def test_retry_is_kept_when_it_is_a_number() -> None:
    parser = SseParser()
    parser.feed(b"retry: 250\n\nretry: soon\n\n")
    assert parser.retry_ms == 250


LINES = st.sampled_from(
    [
        b"data: ",
        b"data:",
        b"id: 12",
        b"id: \xc3\xa9",
        b"event: x",
        b": c",
        b"",
        b"\xf0\x9f\x8e\x89",
        b"data: \xe2\x82\xac",
    ]
)
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n", b"\n\n", b"\r\n\r\n", b"\r\r", b"", b"\n\r"])
WIRES = st.one_of(
    st.lists(st.tuples(LINES, ENDS), max_size=30).map(lambda pairs: b"".join(line + end for line, end in pairs)),
    st.binary(max_size=200),
)


@given(wire=WIRES, cuts=st.lists(st.integers(min_value=0, max_value=400), max_size=20))
def test_frames_do_not_depend_on_the_pieces(wire: bytes, cuts: list[int]) -> None:
    at = [0, *sorted(cut for cut in cuts if cut < len(wire)), len(wire)]
    assert parse(*(wire[start:end] for start, end in pairwise(at))) == parse(wire)


TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r\n"), max_size=30)


@given(
    sent=st.lists(st.tuples(st.integers(1, 10**9), st.lists(TEXT, min_size=1, max_size=4))),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_written_frames_are_parsed_back(sent: list[tuple[int, list[str]]], end: str) -> None:
    wire = "".join(
        f"id: {number}{end}" + "".join(f"data: {line}{end}" for line in lines) + end for number, lines in sent
    )
    assert parse(wire.encode()) == [message("\n".join(lines), str(number)) for number, lines in sent]


def test_a_huge_event_in_small_pieces_is_read_in_one_pass() -> None:
    wire = b"data: " + b"x" * 4_000_000 + b"\n\n"
    pieces = [wire[start : start + 1000] for start in range(0, len(wire), 1000)]
    assert [len(frame.data) for frame in parse(*pieces)] == [4_000_000]
