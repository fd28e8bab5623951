"""The tree of a run's steps: what it shows after which events."""

from __future__ import annotations

from typing import Any

from runlane.cli.tree import MAX_NOTE, MAX_PARTS, MAX_TOOLS, State, StepTree
from runlane.client import LiveEvent
from runlane.domain.events import Event

SECOND = 1_000_000


class Story:
    """Events of a run, a second apart."""

    def __init__(self) -> None:
        self.tree = StepTree()
        self.seq = 0
        self.attempt = 1

    def tell(self, kind: str, path: str | None = None, **data: Any) -> Story:
        self.seq += 1
        about = {} if path is None else {"path": path, "orch_step_id": path, "step_name": data.pop("name", "")}
        self.tree.take(Event("run_1", self.seq, kind, self.attempt, self.seq * SECOND, about | data))
        return self

    def step(self, path: str, **data: Any) -> Story:
        return self.tell("step_start", path, step_type="print", **data).tell(
            "step_complete", path, duration_seconds=0.25
        )

    def delta(self, path: str, offset: int, text: str) -> Story:
        self.tree.take(LiveEvent("run_1", "text", self.attempt, {"path": path, "offset": offset, "text": text}))
        return self

    def shown(self) -> list[str]:
        """Each row, with its state if it has one."""
        return [
            "  " * row.depth + (f"{row.node.standing().value} " if row.node else "") + row.text
            for row in self.tree.rows((self.seq + 1) * SECOND)
        ]


def test_an_inner_orchestration_is_a_step_with_steps_inside() -> None:
    story = Story().tell("step_start", "sub", name="Inner", step_type="orchestration").step("sub/>one", name="One")
    assert story.shown()[1:] == ["  runs Inner", "    done One  250 ms"]
    story.tell("step_complete", "sub", name="Inner", step_type="orchestration")
    assert story.shown()[1:] == ["  done Inner  3.0 s", "    done One  250 ms"]


def test_tries_that_failed_have_cost_something_too() -> None:
    story = Story().tell("step_start", "write", name="Write", step_type="llm")
    story.tell("step_retry", "write", tries=1, delay_seconds=1.0, error="late", cost_usd=0.5)
    story.tell("step_complete", "write", duration_seconds=2.5, cost_usd=0.25)
    story.tell("step_start", "read", step_type="llm").tell("step_error", "read", code="x", error="y", cost_usd=1.0)
    assert story.tree.cost_usd == 1.75
    assert "$0.7500" in story.shown()[1]


def test_steps_in_a_row_with_times_costs_and_retries() -> None:
    story = Story().tell("queued", status="queued").tell("worker_picked_up", worker_id="w")
    story.tell("orchestration_start", orchestration_id="o", orchestration_name="Article")
    story.step("draft", name="Draft")
    story.tell("step_start", "write", name="Write", step_type="llm")
    story.tell("step_retry", "write", tries=1, delay_seconds=1.0, error="too  busy\nnow")
    assert story.shown() == [
        "Article: running",
        "  done Draft  250 ms",
        "  retries Write  2.0 s  1 retry  too busy now",
    ]
    story.tell("final", "write", response="A long text")
    story.tell("step_complete", "write", duration_seconds=2.5, cost_usd=0.0125, tokens=40)
    story.tell("step_start", "publish", step_type="print")
    assert story.shown() == [
        "Article: running  $0.0125",
        "  done Draft  250 ms",
        "  done Write  2.5 s  1 retry  $0.0125  A long text",
        "  runs publish  1.0 s",
    ]
    story.tell("step_error", "publish", code="x", error="no").tell("done", status="failed")
    assert story.shown()[-1] == "  failed publish  no"
    assert story.shown()[0].startswith("Article: failed")


def test_branches_rounds_and_inner_orchestrations_are_inside() -> None:
    story = Story().tell("parallel_start", "split", branch_count=2).tell("branch_start", "split", branch_index=0)
    story.step("split/0/a").tell("step_start", "split/1/1", step_type="print")
    assert story.shown()[1:] == [
        "  runs split",
        "    done branch 1",
        "      done a  250 ms",
        "    runs branch 2",
        "      runs 1  1.0 s",
    ]
    story.tell("step_complete", "split/1/1", duration_seconds=1.0).tell("parallel_complete", "split", branch_count=2)
    assert story.shown()[1].startswith("  done split  ")
    story.tell("loop_iteration", "loop", iteration=1, total=2).step("loop/1/b")
    story.tell("loop_iteration", "loop", iteration=2, total=2).step("loop/2/b~2", name="Body")
    assert story.shown()[-5:] == [
        "  done loop  round 2 of 2",
        "    done round 1",
        "      done b  250 ms",
        "    done round 2",
        "      done Body (time 2)  250 ms",
    ]
    story.tell("step_start", "sub/>ask", name="Ask", step_type="human")
    story.tell("human_input_required", "sub/>ask", prompt="Go on?")
    assert story.shown()[-2:] == ["  asks sub", "    asks Ask  Go on?"]


def test_what_waits_and_who_answered() -> None:
    story = Story().tell("step_start", "nap", step_type="wait").tell("paused", waiting_for=["nap"])
    assert story.shown() == ["run: paused", "  waits nap"]
    story.tell("resumed", "nap", by="ada")
    assert story.shown()[1] == "  runs nap  3.0 s  answered by ada"


def test_a_claim_after_a_pause_is_no_new_attempt() -> None:
    story = Story().tell("worker_picked_up", worker_id="w", tries=1).tell("paused", waiting_for=[])
    story.attempt = 2
    story.tell("worker_picked_up", worker_id="w", tries=1)
    assert story.shown() == ["run: running"]
    story.attempt = 3
    story.tell("worker_picked_up", worker_id="w", tries=2)
    assert story.shown() == ["run: running, attempt 2"]


def test_text_grows_is_folded_once_and_is_void_with_its_attempt() -> None:
    story = Story().tell("step_start", "write", step_type="llm")
    story.delta("write", 0, "Hello ").delta("write", 6, "wor").delta("write", 6, "world")
    assert story.shown()[-1] == "    Hello world"
    story.attempt = 2
    story.tell("worker_picked_up", worker_id="w2")
    assert story.shown() == ["run: running, attempt 2", "  runs write  2.0 s"]
    story.delta("write", 0, "Again")
    assert story.shown()[-1] == "    Again"
    story.tell("step_complete", "write", duration_seconds=1.0)
    assert "Again" not in " ".join(story.shown())


def test_a_long_loop_does_not_grow_the_tree() -> None:
    story = Story()
    for number in range(1, 500):
        story.tell("loop_iteration", "loop", iteration=number, total=None).step(f"loop/{number}/b")
    rows = story.shown()
    assert len(rows) < 3 * MAX_PARTS
    assert rows[2] == f"    ... {499 - MAX_PARTS} earlier"
    assert "round 499" in rows[-2]


def test_a_cancelled_run_has_nothing_that_runs() -> None:
    story = Story().tell("step_start", "a", step_type="task").tell("done", status="cancelled")
    assert story.shown() == ["run: cancelled", "  failed a  cancelled"]
    assert State.RUNS.value not in story.shown()[1]


def test_notes_are_short() -> None:
    story = Story().tell("step_start", "a", step_type="llm").tell("final", "a", response="x" * 1000)
    assert len(story.shown()[1]) < MAX_NOTE + 40


def test_what_waits_inside_a_step_is_shown_at_the_step() -> None:
    story = Story().tell("step_start", "work", step_type="agent")
    story.tell("human_input_required", "work!0/approve/0/call_0", prompt="May pay be called?")
    story.tell("paused", waiting_for=["work!0/approve/0/call_0", "!0/cap/run/flow/0"])
    assert len(story.shown()) == 2
    assert "May pay be called?" in story.shown()[1]
    story.tell("human_input_required", "!0/cap/run/flow/0", prompt="May it spend more?")
    assert story.tree.status == "asks: May it spend more?"


def test_tools_and_their_failures_are_shown_below_their_step() -> None:
    story = Story().tell("step_start", "ask", name="Ask", step_type="agent")
    story.tell("tool_execution", "ask", tool_name="add", args={"a": 1})
    story.tell("tool_execution", "ask", tool_name="pay", args={})
    story.tell("tool_result", "ask", tool_name="add", preview="3", failed=False)
    story.tell("tool_result", "ask", tool_name="pay", preview="no money", failed=True)
    assert story.shown()[2:] == ['    [add {"a":1}]', "    [pay {}]", "    [pay failed: no money]"]
    for _ in range(20):
        story.tell("tool_execution", "ask", tool_name="add", args={})
    story.tell("step_complete", "ask", duration_seconds=1.0)
    assert story.shown()[2:] == ["    [add {}]"] * MAX_TOOLS
