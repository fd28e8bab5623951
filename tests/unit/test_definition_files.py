"""Definitions in files: the layout, the bounds, and JSON that is not quite JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from runlane.definitions import files, problem
from runlane.definitions.loader import LoadedDefinitions, load_directory, parse_bodies
from runlane.errors import InvalidDefinitions


def write(folder: Path, name: str, content: Any) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def errors(loaded: LoadedDefinitions) -> list[str]:
    return [str(problem) for problem in loaded.errors]


def warnings(loaded: LoadedDefinitions) -> list[str]:
    return [str(problem) for problem in loaded.warnings]


def orchestration(name: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "steps": [{"id": "say", "type": "print", "print_content": "hello"}], **fields}


def test_a_file_has_one_definition_or_a_list(tmp_path: Path) -> None:
    write(tmp_path, "orchestrations/one.json", orchestration("one"))
    write(tmp_path, "orchestrations/more.json", [orchestration("two"), orchestration("three")])
    write(tmp_path, "agents/writer.json", {"id": "writer", "$schema": "./agent.schema.json"})
    write(tmp_path, "tools/search.json", {"name": "search", "url": "https://example.com/{query}"})
    write(tmp_path, "mcp_servers/files.json", {"name": "files", "url": "https://example.com/mcp"})
    loaded = load_directory(tmp_path)
    assert list(loaded.problems) == []
    assert [parsed.key for parsed in loaded.definitions] == [
        ("agent", "writer"),
        ("mcp_server", "files"),
        ("orchestration", "two"),
        ("orchestration", "three"),
        ("orchestration", "one"),
        ("tool", "search"),
    ]
    assert [parsed.location.file for parsed in loaded.definitions][2] == "orchestrations/more.json"


def test_files_that_are_not_read_are_reported(tmp_path: Path) -> None:
    write(tmp_path, "orchestration/one.json", orchestration("one"))
    write(tmp_path, "agents/old/writer.json", {"id": "writer"})
    write(tmp_path, "stray.json", {"id": "writer"})
    write(tmp_path, "agents/.hidden.json", "not json")
    write(tmp_path, "agents/notes.txt", "not json")
    write(tmp_path, ".git/config.json", "not json")
    loaded = load_directory(tmp_path)
    assert list(loaded.definitions) == []
    folders = "orchestrations, agents, tools, mcp_servers, schedules, triggers."
    assert warnings(loaded) == [
        "agents/old/: Nested folders are ignored.",
        f'orchestration/: This folder is ignored (did you mean "orchestrations"?). Folders: {folders}',
        f"stray.json: This file is ignored. Move it into one of the folders {folders}",
    ]


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    (message,) = errors(load_directory(tmp_path / "none"))
    assert "The folder does not exist. Name it with --dir or RUNLANE_DEFINITIONS_DIR" in message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "The file is empty"),
        ("  \n", "The file is empty"),
        ('{"id": "a",}', "Line 1, column 11: not valid JSON"),
        ('{\n  "id": "a"\n  "steps": []\n}', "Line 3, column 3: not valid JSON"),
        ('{"id": "a", "id": "b"}', 'An object has the key "id" twice'),
        ('{"id": "a", "steps": [{"x": 1, "y": 2, "x": 3}]}', 'An object has the key "x" twice'),
        ("[1]", "agent: Entry 1 is a number. A definition must be an object."),
        ('[{"id": "a"}, null]', "agent: Entry 2 is null."),
        ('"text"', "agent: Entry 1 is text."),
        ("[" * 5000 + "]" * 5000, "a.json: "),
        ('{"id": "a", "repos": [' + "9" * 30 + "]}", "A number of 100 bits is too large"),
        ('{"id": "a", "repos": [' + "9" * 5000 + "]}", "number is infinity"),
        ('{"id": "a", "name": "x\\u0000y"}', "contains a NUL character"),
        ('{"id": "a", "name": "\\ud800"}', "a.json: "),
        ('{"id": "a", "repos": [NaN]}', "not valid JSON"),
    ],
)
def test_files_that_are_not_definitions_are_refused(tmp_path: Path, content: str, expected: str) -> None:
    write(tmp_path, "agents/a.json", content)
    (message,) = errors(load_directory(tmp_path))
    assert message.startswith("agents/a.json")
    assert expected in message


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "a.json").write_bytes(b'\xef\xbb\xbf{"id": "a"}')
    assert [parsed.definition.id for parsed in load_directory(tmp_path).definitions] == ["a"]


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "a.json").write_bytes(b'{"id": "\xff"}')
    assert "not valid JSON" in errors(load_directory(tmp_path))[0]


def test_depth_is_bounded(tmp_path: Path) -> None:
    deep: Any = "x"
    for _ in range(files.MAX_DEPTH):
        deep = [deep]
    write(tmp_path, "agents/a.json", {"id": "a", "repos": deep})
    assert f"nested more than {files.MAX_DEPTH} levels" in errors(load_directory(tmp_path))[0]


def test_sizes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 1000)
    monkeypatch.setattr(files, "MAX_BYTES", 2500)
    monkeypatch.setattr(files, "MAX_DEFINITIONS", 3)
    write(tmp_path, "agents/a.json", {"id": "a", "description": "x" * 1000})
    assert "The file has more than 1000 bytes" in errors(load_directory(tmp_path))[0]
    write(tmp_path, "agents/a.json", [{"id": f"a{number}"} for number in range(4)])
    assert "There are 4 definitions; at most 3" in errors(load_directory(tmp_path))[0]
    for number in range(5):
        write(tmp_path, f"agents/{number}.json", {"id": f"a{number}", "description": "x" * 900})
    assert "more than 2500 bytes in total" in errors(load_directory(tmp_path))[0]


def test_a_large_definition_is_refused() -> None:
    loaded = parse_bodies({"agents": [{"id": "a", "repos": ["x" * (2 * 1024 * 1024)]}]})
    assert "bytes; at most" in errors(loaded)[0]


def test_links_and_pipes_that_are_not_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "lost.json").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "agents" / "pipe.json")
    message = errors(load_directory(tmp_path))
    assert [line.split(":")[0] for line in message] == ["agents/lost.json", "agents/pipe.json"]
    assert all("This is not a file" in line for line in message)


def test_numbers_that_are_not_finite_are_refused() -> None:
    for value in (float("nan"), float("inf"), float("-inf")):
        assert "not finite" in errors(parse_bodies({"agents": [{"id": "a", "repos": [value]}]}))[0]
    assert "surrogate" in errors(parse_bodies({"agents": [{"id": "a", "repos": [{"\ud800": 1}]}]}))[0]


def test_all_problems_are_reported_at_once_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = parse_bodies({"agents": [{"id": "a", "nam": "x"}, {"id": "b", "tols": []}]})
    with pytest.raises(InvalidDefinitions) as raised:
        loaded.raise_errors()
    assert [place for place, _ in raised.value.problems] == ['agent "a", field nam', 'agent "b", field tols']
    monkeypatch.setattr(problem, "MAX_PROBLEMS", 7)
    loaded = parse_bodies({"agents": [{"id": f"a{number}", "x": 1} for number in range(50)]})
    assert len(loaded.errors) == 7
    with pytest.raises(InvalidDefinitions, match="and 2 more"):
        loaded.raise_errors()


def test_many_warnings_hide_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem, "MAX_PROBLEMS", 5)
    odd = [{"id": f"s{number}", "type": "end", "agent_id": None} for number in range(50)]
    loaded = parse_bodies({"orchestrations": [{"id": "o", "steps": [*odd, {"id": "wrong"}]}]})
    assert len(loaded.warnings) == 5
    assert len(loaded.errors) == 1
