"""Pictures of orchestrations: what is drawn is what a run does, and nothing in a definition breaks the picture."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runlane.definitions.loader import parse_bodies
from runlane.definitions.mermaid import END, EdgeStyle, mermaid, picture_of
from runlane.definitions.schema.definition import Orchestration
from runlane.definitions.svg import svg

SVG = "{http://www.w3.org/2000/svg}"


def orchestration(*steps: dict[str, Any], **fields: Any) -> Orchestration:
    loaded = parse_bodies({"orchestrations": [{"id": "o", "steps": list(steps), **fields}]})
    assert loaded.errors == [], [str(problem) for problem in loaded.errors]
    found = loaded.definitions[0].definition
    assert isinstance(found, Orchestration)
    return found


def step(name: str, kind: str = "print", /, **fields: Any) -> dict[str, Any]:
    least: dict[str, Any] = {"print_content": "x"} if kind == "print" else {}
    return {"id": name, "type": kind, **least, **fields}


def ways(*steps: dict[str, Any], **fields: Any) -> set[tuple[str, str, str]]:
    return {(way.source, way.target, way.label) for way in picture_of(orchestration(*steps, **fields)).edges}


def test_routes_errors_and_limits() -> None:
    picture = picture_of(
        orchestration(
            step("a", "evaluator", route_map={"good": "b", "stop": None}, next_step_id="b", on_error="c"),
            step("b", "if_else", if_condition="1", if_true_step_id="c"),
            step("c", "human", on_expiry="d", next_step_id="d"),
            step("d", "switch", switch_expression="1", switch_cases={"1": "a"}, switch_default_step_id="b"),
        )
    )
    assert {(way.source, way.target, way.label, way.style) for way in picture.edges} == {
        ("a", "b", "good", EdgeStyle.PLAIN),
        ("a", END, "stop", EdgeStyle.PLAIN),
        ("a", "b", "limit", EdgeStyle.RARE),
        ("a", "c", "error", EdgeStyle.RARE),
        ("b", "c", "true", EdgeStyle.PLAIN),
        ("b", END, "false", EdgeStyle.PLAIN),
        ("c", "d", "", EdgeStyle.PLAIN),
        ("c", "d", "expired", EdgeStyle.RARE),
        ("d", "a", "1", EdgeStyle.PLAIN),
        ("d", "b", "else", EdgeStyle.PLAIN),
    }


def test_branches_meet_at_the_join() -> None:
    found = ways(
        step("fan", "parallel", parallel_branches=[["a"], ["c", "d"], ["e"]], next_step_id="join"),
        step("a", next_step_id="b"), step("b"), step("c", next_step_id="b"), step("d"),
        step("e", "if_else", if_condition="1", if_true_step_id="join"),
        step("join", next_step_id="end"), step("end", "end"),
    )  # fmt: skip
    assert found == {
        ("fan", "a", "branch 1"), ("a", "b", ""), ("b", "join", ""),
        ("fan", "c", "branch 2"), ("c", "d", ""), ("d", "join", ""),
        ("fan", "e", "branch 3"), ("e", "join", "true"), ("e", "join", "false"),
        ("join", "end", ""),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "label"),
    [({"loop_count": 4}, "4 times"), ({"for_each": "[1]"}, "each"), ({"while_condition": "1"}, "while")],
)
def test_a_loop_is_drawn_as_a_cycle(fields: dict[str, Any], label: str) -> None:
    found = ways(
        step("l", "loop", loop_step_ids=["a", "b"], next_step_id="c", **fields),
        step("a", next_step_id="c"), step("b"), step("c"),
    )  # fmt: skip
    assert found == {("l", "a", label), ("a", "b", ""), ("b", "l", ""), ("l", "c", "")}


def test_links_to_nothing_are_left_out() -> None:
    assert ways(step("a", next_step_id="nowhere", on_error="b"), step("b")) == {("a", "b", "error")}
    assert list(picture_of(orchestration(step("a"), step("b"), entry_step_id="b")).steps) == ["b", "a"]
    assert list(picture_of(orchestration(step("a"), entry_step_id="x")).steps) == ["a"]


def test_mermaid_text() -> None:
    text = mermaid(
        orchestration(
            step("ask", "human", name='Ask "them" & <wait>', next_step_id="judge"),
            step("judge", "evaluator", route_map={"no|pe": "ask", "yes": None}),
        )
    )
    assert text == (
        "flowchart TD\n"
        '    s0[/"Ask #34;them#34; #38; #60;wait#62;<br/><small>human</small>"/]\n'
        '    s1{"judge<br/><small>evaluator</small>"}\n'
        '    done(["end"])\n'
        "    s0 --> s1\n"
        '    s1 -->|"no#124;pe"| s0\n'
        '    s1 -->|"yes"| done\n'
    )


def boxes(document: str) -> list[tuple[float, float, float, float]]:
    root = ElementTree.fromstring(document)
    found: list[tuple[float, float, float, float]] = []
    for group in root.iter(f"{SVG}g"):
        rect = group.find(f"{SVG}rect")
        assert rect is not None
        x, y, width, height = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        found.append((x, y, x + width, y + height))
    return found


def check(document: str) -> None:
    root = ElementTree.fromstring(document)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    found = boxes(document)
    for left, top, right, bottom in found:
        assert left >= 0
        assert top >= 0
        assert right <= width
        assert bottom <= height
    for number, one in enumerate(found):
        for other in found[number + 1 :]:
            assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


def test_svg_has_every_step_once_and_none_on_top_of_another() -> None:
    document = svg(
        orchestration(
            step("fan", "parallel", parallel_branches=[["a"], ["b"], ["c", "d"]], next_step_id="join",
                 name="<Fan> & co"),
            step("a", next_step_id="join"), step("b", on_error="sorry"), step("c"), step("d"),
            step("join", "merge", next_step_id="judge"),
            step("judge", "evaluator", route_map={"again": "fan", "self": "judge", "done": None}),
            step("sorry", name="x" * 200), step("lost"),
        )
    )  # fmt: skip
    check(document)
    assert len(boxes(document)) == 10
    texts = [element.text for element in ElementTree.fromstring(document).iter(f"{SVG}text")]
    assert {"<Fan> & co", "join", "again", "branch 3", "error"} <= set(texts)
    assert len(re.findall("marker-end", document)) == 13


def test_the_largest_orchestration_can_be_drawn() -> None:
    steps = [step(f"s{number}", next_step_id=f"s{number + 1}", on_error="s499") for number in range(499)]
    document = svg(orchestration(*steps, step("s499")))
    assert len(boxes(document)) == 500


_ids = st.sampled_from([f"s{number}" for number in range(8)])
_maybe = st.none() | _ids


@st.composite
def _steps(draw: st.DrawFn) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 8))):
        name = f"s{number}"
        kind = draw(st.sampled_from(["print", "if_else", "parallel", "loop", "evaluator", "end"]))
        fields: dict[str, Any] = {"next_step_id": draw(_maybe), "on_error": draw(_maybe)}
        match kind:
            case "if_else":
                fields |= {"if_condition": "1", "if_true_step_id": draw(_maybe), "if_false_step_id": draw(_maybe)}
            case "parallel":
                fields["parallel_branches"] = draw(
                    st.lists(st.lists(_ids, min_size=1, max_size=3), min_size=1, max_size=3)
                )
            case "loop":
                fields |= {"loop_count": 2, "loop_step_ids": draw(st.lists(_ids, min_size=1, max_size=3))}
            case "evaluator":
                fields["route_map"] = {"a": draw(_maybe), "b": draw(_maybe)}
            case _:
                pass
        found.append(step(name, kind, **fields))
    return found


@settings(deadline=None)
@given(_steps(), st.text(max_size=20))
def test_any_graph_can_be_drawn(steps: list[dict[str, Any]], name: str) -> None:
    steps[0]["name"] = name.replace("\0", "")
    drawn = orchestration(*steps)
    picture = picture_of(drawn)
    assert set(picture.steps) == {entry["id"] for entry in steps}
    assert all(way.source in picture.steps and way.target in {*picture.steps, END} for way in picture.edges)
    assert mermaid(drawn).startswith("flowchart TD\n")
    document = svg(drawn)
    check(document)
    assert len(re.findall("marker-end", document)) == len(picture.edges)
