"""Frames of graphs: names and data of stored events, messages from chunks, and where a reader resumes."""

from __future__ import annotations

import json
from typing import Any

import orjson

from runlane.api.agent_server.extraction import extract, parse_paths
from runlane.api.agent_server.frames import GraphEncoding, split_event
from runlane.api.agent_server.message_assembly import MessageAssembly
from runlane.domain.events import EventType, StoredEvent
from runlane.store.sql.json_containment import contains


def _event(seq: int, name: str, data: Any) -> StoredEvent:
    stored = orjson.dumps({"event": name, "data": data}).decode()
    return StoredEvent(seq, EventType.GRAPH_STREAM.value, 1, 0, stored)


def _chunk(content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "AIMessageChunk", "id": "m1", "content": content, "tool_call_chunks": [], **fields}


def _claim(seq: int, tries: int) -> StoredEvent:
    data = json.dumps({"worker_id": "w", "tries": tries})
    return StoredEvent(seq, EventType.PICKED_UP.value, tries, 0, data)


def _frames(text: bytes) -> list[tuple[str, Any, str | None]]:
    found: list[tuple[str, Any, str | None]] = []
    for block in text.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        if fields:
            found.append((fields["event"], json.loads(fields["data"]), fields.get("id")))
    return found


def test_the_data_of_an_event_is_passed_on_as_it_was_stored() -> None:
    assert split_event('{"event":"values|a\\"b","data":{"x":[1,2]}}') == ('values|a"b', '{"x":[1,2]}')
    assert split_event('{"data":{"x":1},"event":"values"}') == ("values", '{"x":1}')


def test_a_reader_gets_its_modes_and_the_numbers_to_resume_after() -> None:
    encoding = GraphEncoding(["updates"])
    assert _frames(encoding.event("run_1", _event(3, "updates|sub", {"a": 1}))) == [("updates|sub", {"a": 1}, "3")]
    assert encoding.event("run_1", _event(4, "values", {})) == b""
    assert encoding.event("run_1", StoredEvent(5, EventType.DONE.value, 1, 0, "{}")) == b""
    assert _frames(encoding.event("run_1", _claim(6, 2))) == [("metadata", {"run_id": "run_1", "attempt": 2}, "6")]
    assert encoding.event("run_1", _event(7, "metadata", {"attempt": 2})) == b"", "an earlier version stored it"


def test_a_message_grows_and_a_resumed_reader_gets_all_of_it() -> None:
    events = [_event(seq, "messages", [_chunk(text), {"node": "n"}]) for seq, text in enumerate(["a", "b", "c"], 1)]
    encoding = GraphEncoding(["messages"])
    frames = [frame for event in events for frame in _frames(encoding.event("run_1", event))]
    assert [name for name, _, _ in frames] == ["messages/metadata", *["messages/partial"] * 3]
    assert [data[0]["content"] for name, data, _ in frames if name == "messages/partial"] == ["a", "ab", "abc"]
    assert [number for _, _, number in frames] == [None, "1", "2", "3"]
    resumed = GraphEncoding(["messages"], after=2)
    assert resumed.reads_after == 0
    rest = [frame for event in events for frame in _frames(resumed.event("run_1", event))]
    assert [(name, data[0]["content"], number) for name, data, number in rest] == [("messages/partial", "abc", "3")]


def test_a_new_attempt_starts_its_messages_again() -> None:
    encoding = GraphEncoding(["messages"])
    encoding.event("run_1", _event(1, "messages", [_chunk("old"), {}]))
    encoding.event("run_1", _claim(2, 2))
    frames = _frames(encoding.event("run_1", _event(3, "messages", [_chunk("new"), {}])))
    assert frames[-1][1][0]["content"] == "new"


def test_tool_calls_are_assembled_from_their_parts() -> None:
    assembly = MessageAssembly()
    first = {"index": 0, "name": "search", "args": '{"q": ', "id": "c1"}
    rest = {"index": 0, "name": None, "args": '"x"}', "id": None}
    (_, _), (_, [partial]) = assembly.add(_chunk("", tool_call_chunks=[first]), {})
    assert partial["tool_calls"] == [{"name": "search", "args": {}, "id": "c1", "type": "tool_call"}]
    ((_, [whole]),) = assembly.add(_chunk("", tool_call_chunks=[rest], usage_metadata={"input_tokens": 2}), {})
    assert whole["tool_calls"][0]["args"] == {"q": "x"}
    assert (whole["type"], whole["usage_metadata"], "tool_call_chunks" in whole) == ("ai", {"input_tokens": 2}, False)
    ((name, [message]),) = assembly.add({"type": "ai", "id": "m1", "content": "done"}, {})
    assert (name, message["content"]) == ("messages/complete", "done")


def test_blocks_of_content_are_merged_by_their_index() -> None:
    assembly = MessageAssembly()
    assembly.add(_chunk([{"type": "text", "text": "Hel", "index": 0}]), {})
    ((_, [message]),) = assembly.add(_chunk([{"type": "text", "text": "lo", "index": 0}]), {})
    assert message["content"] == [{"type": "text", "text": "Hello", "index": 0}]


def test_containment_is_that_of_postgres() -> None:
    whole = {"a": {"b": 1, "c": [1, {"d": 2}]}, "e": None, "t": True}
    found: list[Any] = [{}, {"a": {"b": 1.0}}, {"a": {"c": [{"d": 2}]}}, {"e": None}, {"a": {"c": []}}]
    for part in found:
        assert contains(whole, part), part
    missing: list[Any] = [{"a": 1}, {"a": {"b": 2}}, {"t": 1}, {"x": None}, {"a": {"c": [3]}}, {"e": False}]
    for part in missing:
        assert not contains(whole, part), part


def test_paths_name_parts_of_values() -> None:
    value = {"values": {"messages": [{"content": "a"}, {"content": "b"}]}, "status": "idle"}
    paths = parse_paths({"last": "values.messages[-1].content", "none": "values.x.y", "status": "status"})
    assert {name: extract(value, parts) for name, parts in paths.items()} == {
        "last": "b",
        "none": None,
        "status": "idle",
    }
