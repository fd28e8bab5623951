"""The names of executions. They are stored with every finished step: a change of one loses recorded work."""

from __future__ import annotations

from runlane.interpreter.values import Done, Outcome, PendingStep
from tests.unit.interpreter.play import Play, if_else, loop, nested, orchestration, parallel, say


def test_the_grammar_of_paths() -> None:
    inner = orchestration(say("first", "again"), if_else("again", yes="first"), id="inner")
    main = orchestration(
        say("research", "check"),
        if_else("check", yes="research", no="fan"),
        parallel("fan", [["draft"], ["left", "right"], ["each"]], "rounds"),
        say("draft", "rounds"),
        say("left"),
        say("right"),
        loop("each", ["on_item"], "rounds", for_each="x", max_concurrency=2),
        say("on_item"),
        loop("rounds", ["body", "deep"], "while", loop_count=2),
        say("body"),
        loop("deep", ["leaf"], loop_count=1),
        say("leaf"),
        loop("while", ["work"], "sub", while_condition="x"),
        say("work"),
        nested("sub", "inner", "last"),
        say("last"),
    )

    yes_once = {"check", "sub/>again"}

    def answer(pending: PendingStep) -> Outcome:
        match pending.part, pending.step.type:
            case "items", _:
                return Done(["a", "b"])
            case "condition", _:
                return Done(pending.path == "while/1?")
            case _, "if_else":
                return Done(pending.path in yes_once)
            case _:
                return Done("x")

    play = Play(main, inner)
    play.finish(answer)
    assert play.paths == [
        "research",
        "check",
        "research~2",
        "check~2",
        "fan/0/draft",
        "fan/1/left",
        "fan/2/each?",
        "fan/1/right",
        "fan/2/each/1/on_item",
        "fan/2/each/2/on_item",
        "rounds/1/body",
        "rounds/1/deep/1/leaf",
        "rounds/2/body",
        "rounds/2/deep/1/leaf",
        "while/1?",
        "while/1/work",
        "while/2?",
        "sub/>first",
        "sub/>again",
        "sub/>first~2",
        "sub/>again~2",
        "last",
    ]


def test_a_second_visit_of_what_contains_steps_shows_in_their_paths() -> None:
    inner = orchestration(say("one"), id="inner")
    main = orchestration(
        loop("rounds", ["body"], "fan", loop_count=1),
        say("body"),
        parallel("fan", [["draft"]], "sub"),
        say("draft"),
        nested("sub", "inner", "check"),
        if_else("check", yes="rounds"),
    )
    play = Play(main, inner)
    play.finish(lambda pending: Done(pending.path == "check"))
    assert play.paths[4:] == ["rounds~2/1/body", "fan~2/0/draft", "sub~2/>one", "check~2"]


def test_a_step_listed_twice_in_a_body_is_visited_twice() -> None:
    play = Play(orchestration(loop("rounds", ["a", "b", "a"], loop_count=2), say("a", max_iterations=1), say("b")))
    play.finish()
    assert play.paths == [
        "rounds/1/a",
        "rounds/1/b",
        "rounds/1/a~2",
        "rounds/2/a",
        "rounds/2/b",
        "rounds/2/a~2",
    ]
    assert play.emitted("loop_limit_reached") == []


def test_a_retried_composite_step_gets_new_paths() -> None:
    retry = {"attempts": 2, "backoff_seconds": 3}
    inner = orchestration(say("one"), id="inner")
    play = Play(orchestration(nested("sub", "inner", retry=retry)), inner)
    play.fail("sub/>one", retryable=True)
    assert play.open == ["sub~2/>one"]
