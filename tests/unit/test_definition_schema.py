"""The schemas and pages about definitions match the parser."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, cast

import jsonschema_rs
import pytest

from runlane.definitions.files import FOLDERS
from runlane.definitions.json_schema import schema_of
from runlane.definitions.loader import parse_bodies
from runlane.definitions.schema.definition import KINDS, Kind
from tests.pages.definitions import page
from tests.unit.test_definition_parse import LEAST

FOLDER_OF: dict[Kind, str] = {kind: folder for folder, kind in FOLDERS.items()}


@cache
def validator(kind: Kind) -> Any:
    return cast("Any", jsonschema_rs).validator_for(schema_of(kind))


def fits(kind: Kind, body: Any) -> bool:
    return validator(kind).is_valid(body)


def orchestration(*steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"id": "o", "steps": list(steps), **fields}


def test_the_reference_page_matches_the_classes() -> None:
    path = Path(__file__).parents[2] / "docs" / "reference" / "definitions.md"
    assert path.read_text() == page(), (
        "Write it again: python -m tests.pages.definitions > docs/reference/definitions.md"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_schemas_are_json_schema(kind: Kind) -> None:
    schema = schema_of(kind)
    assert validator(kind)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert json.loads(json.dumps(schema)) == schema


@pytest.mark.parametrize("step_type", LEAST)
def test_every_step_type_fits_its_schema(step_type: str) -> None:
    step = {"id": "s", "type": step_type, **LEAST[step_type]}
    assert fits("orchestration", orchestration(step))
    assert fits("orchestration", [orchestration(step), orchestration(step)])
    assert not fits("orchestration", orchestration({**step, "sparkle": 1}))
    assert not fits("orchestration", orchestration({"id": "s", **LEAST[step_type]}))


@pytest.mark.parametrize(
    ("kind", "body", "good"),
    [
        ("orchestration", orchestration({"id": "s", "type": "end"}, **{"$schema": "./x.json"}), True),
        ("orchestration", orchestration(), False),
        ("orchestration", orchestration({"id": "s", "type": "edn"}), False),
        ("orchestration", orchestration({"id": "a/b", "type": "end"}), False),
        ("orchestration", orchestration({"id": "s", "type": "human", "human_fields": [{"key": "a"}]}), True),
        ("orchestration", orchestration({"id": "s", "type": "human", "human_fields": [{"label": "a"}]}), False),
        (
            "orchestration",
            orchestration(
                {"id": "s", "type": "human", "human_fields": [{"name": "a", "type": "select", "options": "x,y"}]}
            ),
            True,
        ),
        ("tool", {"name": "t", "url": "https://example.com", "generalName": "T", "inputSchema": {}}, True),
        ("tool", {"name": "t", "tool_type": "soap"}, False),
        ("agent", {"id": "a", "tools": ["all"]}, True),
        ("agent", {"name": "a"}, False),
        ("mcp_server", {"name": "m", "url": "https://example.com"}, True),
        ("mcp_server", [], True),
        ("mcp_server", "m", False),
    ],
)
def test_schemas_and_parser_agree(kind: Kind, body: Any, good: bool) -> None:
    assert fits(kind, body) is good
    bodies = cast("list[Any]", body) if isinstance(body, list) else [body]
    assert (parse_bodies({FOLDER_OF[kind]: bodies}).errors == []) is good
