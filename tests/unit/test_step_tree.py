"""The tree of a run's steps: what it shows after which events."""

from __future__ import annotations

from typing import Any

from runlane.cli.step_tree import MAX_NOTE, MAX_PARTS, MAX_TOOLS, StepState, StepTree
from runlane.domain.events import Event
from runlane.domain.views import LiveEvent

SECOND = 1_000_000


class Events:
    """Events of a run, a second apart, and the tree that they make."""

    def __init__(self) -> None:
        self.tree = StepTree()
        self.seq = 0
        self.attempt = 1

    def emit(self, kind: str, path: str | None = None, **data: Any) -> Events:
        self.seq += 1
        about = {} if path is None else {"path": path, "orch_step_id": path, "step_name": data.pop("name", "")}
        self.tree.apply(Event("run_1", self.seq, kind, self.attempt, self.seq * SECOND, about | data))
        return self

    def step(self, path: str, **data: Any) -> Events:
        return self.emit("step_start", path, step_type="print", **data).emit(
            "step_complete", path, duration_seconds=0.25
        )

    def delta(self, path: str, offset: int, text: str) -> Events:
        self.tree.apply(LiveEvent("run_1", "text", self.attempt, {"path": path, "offset": offset, "text": text}))
        return self

    def shown(self) -> list[str]:
        """Each row, with its state if it has one."""
        return [
            "  " * row.depth + (f"{row.node.current_state().value} " if row.node else "") + row.text
            for row in self.tree.rows((self.seq + 1) * SECOND)
        ]


def test_an_inner_orchestration_is_a_step_with_steps_inside() -> None:
    events = Events().emit("step_start", "sub", name="Inner", step_type="orchestration").step("sub/>one", name="One")
    assert events.shown()[1:] == ["  runs Inner", "    done One  250 ms"]
    events.emit("step_complete", "sub", name="Inner", step_type="orchestration")
    assert events.shown()[1:] == ["  done Inner  3.0 s", "    done One  250 ms"]


def test_tries_that_failed_have_cost_something_too() -> None:
    events = Events().emit("step_start", "write", name="Write", step_type="llm")
    events.emit("step_retry", "write", tries=1, delay_seconds=1.0, error="late", cost_usd=0.5)
    events.emit("step_complete", "write", duration_seconds=2.5, cost_usd=0.25)
    events.emit("step_start", "read", step_type="llm").emit("step_error", "read", code="x", error="y", cost_usd=1.0)
    assert events.tree.cost_usd == 1.75
    assert "$0.7500" in events.shown()[1]


def test_costs_are_rounded_for_people() -> None:
    events = Events().emit("step_start", "write", name="Write", step_type="llm")
    events.emit("step_retry", "write", tries=1, delay_seconds=1.0, error="late", cost_usd=0.1)
    events.emit("step_complete", "write", duration_seconds=2.5, cost_usd=0.2)
    assert events.tree.cost_usd != 0.3
    assert [row.count("$0.3000") for row in events.shown()] == [1, 1]
    assert "0.30000" not in "".join(events.shown())


def test_steps_in_a_row_with_times_costs_and_retries() -> None:
    events = Events().emit("queued", status="queued").emit("worker_picked_up", worker_id="w")
    events.emit("orchestration_start", orchestration_id="o", orchestration_name="Article")
    events.step("draft", name="Draft")
    events.emit("step_start", "write", name="Write", step_type="llm")
    events.emit("step_retry", "write", tries=1, delay_seconds=1.0, error="too  busy\nnow")
    assert events.shown() == [
        "Article: running",
        "  done Draft  250 ms",
        "  retries Write  2.0 s  1 retry  too busy now",
    ]
    events.emit("final", "write", response="A long text")
    events.emit("step_complete", "write", duration_seconds=2.5, cost_usd=0.0125, tokens=40)
    events.emit("step_start", "publish", step_type="print")
    assert events.shown() == [
        "Article: running  $0.0125",
        "  done Draft  250 ms",
        "  done Write  2.5 s  1 retry  $0.0125  A long text",
        "  runs publish  1.0 s",
    ]
    events.emit("step_error", "publish", code="x", error="no").emit("done", status="failed")
    assert events.shown()[-1] == "  failed publish  no"
    assert events.shown()[0].startswith("Article: failed")


def test_branches_rounds_and_inner_orchestrations_are_inside() -> None:
    events = Events().emit("parallel_start", "split", branch_count=2).emit("branch_start", "split", branch_index=0)
    events.step("split/0/a").emit("step_start", "split/1/1", step_type="print")
    assert events.shown()[1:] == [
        "  runs split",
        "    done branch 1",
        "      done a  250 ms",
        "    runs branch 2",
        "      runs 1  1.0 s",
    ]
    events.emit("step_complete", "split/1/1", duration_seconds=1.0).emit("parallel_complete", "split", branch_count=2)
    assert events.shown()[1].startswith("  done split  ")
    events.emit("loop_iteration", "loop", iteration=1, total=2).step("loop/1/b")
    events.emit("loop_iteration", "loop", iteration=2, total=2).step("loop/2/b~2", name="Body")
    assert events.shown()[-5:] == [
        "  done loop  round 2 of 2",
        "    done round 1",
        "      done b  250 ms",
        "    done round 2",
        "      done Body (time 2)  250 ms",
    ]
    events.emit("step_start", "sub/>ask", name="Ask", step_type="human")
    events.emit("human_input_required", "sub/>ask", prompt="Go on?")
    assert events.shown()[-2:] == ["  asks sub", "    asks Ask  Go on?"]


def test_waits_and_their_answers_are_shown() -> None:
    events = Events().emit("step_start", "nap", step_type="wait").emit("paused", waiting_for=["nap"])
    assert events.shown() == ["run: paused", "  waits nap"]
    events.emit("resumed", "nap", by="ada")
    assert events.shown()[1] == "  runs nap  3.0 s  answered by ada"


def test_a_claim_after_a_pause_is_not_a_new_attempt() -> None:
    events = Events().emit("worker_picked_up", worker_id="w", tries=1).emit("paused", waiting_for=[])
    events.attempt = 2
    events.emit("worker_picked_up", worker_id="w", tries=1)
    assert events.shown() == ["run: running"]
    events.attempt = 3
    events.emit("worker_picked_up", worker_id="w", tries=2)
    assert events.shown() == ["run: running, attempt 2"]


def test_text_grows_is_folded_once_and_is_void_with_its_attempt() -> None:
    events = Events().emit("step_start", "write", step_type="llm")
    events.delta("write", 0, "Hello ").delta("write", 6, "wor").delta("write", 6, "world")
    assert events.shown()[-1] == "    Hello world"
    events.attempt = 2
    events.emit("worker_picked_up", worker_id="w2")
    assert events.shown() == ["run: running, attempt 2", "  runs write  2.0 s"]
    events.delta("write", 0, "Again")
    assert events.shown()[-1] == "    Again"
    events.emit("step_complete", "write", duration_seconds=1.0)
    assert "Again" not in " ".join(events.shown())


def test_a_long_loop_does_not_grow_the_tree() -> None:
    events = Events()
    for number in range(1, 500):
        events.emit("loop_iteration", "loop", iteration=number, total=None).step(f"loop/{number}/b")
    rows = events.shown()
    assert len(rows) < 3 * MAX_PARTS
    assert rows[2] == f"    ... {499 - MAX_PARTS} earlier"
    assert "round 499" in rows[-2]


def test_a_cancelled_run_has_nothing_that_runs() -> None:
    events = Events().emit("step_start", "a", step_type="task").emit("done", status="cancelled")
    assert events.shown() == ["run: cancelled", "  failed a  cancelled"]
    assert StepState.RUNS.value not in events.shown()[1]


def test_notes_are_short() -> None:
    events = Events().emit("step_start", "a", step_type="llm").emit("final", "a", response="x" * 1000)
    assert len(events.shown()[1]) < MAX_NOTE + 40


def test_a_wait_inside_a_step_is_shown_at_the_step() -> None:
    events = Events().emit("step_start", "work", step_type="agent")
    events.emit("human_input_required", "work!0/approve/0/call_0", prompt="May pay be called?")
    events.emit("paused", waiting_for=["work!0/approve/0/call_0", "!0/cap/run/flow/0"])
    assert len(events.shown()) == 2
    assert "May pay be called?" in events.shown()[1]
    events.emit("human_input_required", "!0/cap/run/flow/0", prompt="May it spend more?")
    assert events.tree.status == "asks: May it spend more?"


def test_tools_and_their_failures_are_shown_below_their_step() -> None:
    events = Events().emit("step_start", "ask", name="Ask", step_type="agent")
    events.emit("tool_execution", "ask", tool_name="add", args={"a": 1})
    events.emit("tool_execution", "ask", tool_name="pay", args={})
    events.emit("tool_result", "ask", tool_name="add", preview="3", failed=False)
    events.emit("tool_result", "ask", tool_name="pay", preview="no money", failed=True)
    assert events.shown()[2:] == ['    [add {"a":1}]', "    [pay {}]", "    [pay failed: no money]"]
    for _ in range(20):
        events.emit("tool_execution", "ask", tool_name="add", args={})
    events.emit("step_complete", "ask", duration_seconds=1.0)
    assert events.shown()[2:] == ["    [add {}]"] * MAX_TOOLS
