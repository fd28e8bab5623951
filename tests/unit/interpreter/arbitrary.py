"""Orchestrations of any shape, and outcomes of any kind, for properties that hold for all of them.

Wild ones are anything that the definitions allow: any step leads to any other, loops contain themselves,
orchestrations run themselves. Calm ones are what people write: blocks within blocks, and only routes that make sense.
The output of a step depends on its path and on all that it can read, so a value that leaked into another branch shows
in the result.
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import count
from random import Random
from typing import Any

import orjson
from hypothesis import strategies as st

from runlane.definitions.schema.definition import Orchestration
from runlane.definitions.schema.step import EvaluatorStep, HumanStep, WaitStep
from runlane.interpreter.values import Done, Failed, Outcome, PendingStep
from tests.unit.interpreter.play import StepData

KEYS = ["k0", "k1", "k2", "k3"]
LEAVES = ["print", "llm", "human", "wait", "task", "if_else", "switch", "evaluator", "merge"]
COMPOSITES = ["parallel", "loop", "orchestration"]
LABELS = ["one", "two", "three"]
INPUTS: list[dict[str, Any]] = [{}, {"k0": 1}, {"k2": ["{{user_input}}", "{state.user_query}"]}, {"k1": "{state.k0}"}]

# Drawn through one source of randomness, a definition is rich from the first example on; and it still shrinks.
sources = st.randoms(use_true_random=False)


def wild() -> st.SearchStrategy[list[Orchestration]]:
    """Two orchestrations in which anything leads to anything, to each other and to themselves."""
    return sources.map(lambda source: [_wild(source, name) for name in ("main", "other")])


def calm() -> st.SearchStrategy[list[Orchestration]]:
    """Orchestrations of blocks within blocks, in which nothing fails by itself. The first is the run's own."""
    return sources.map(
        lambda source: [
            _Blocks(source, others=("inner",)).orchestration("main"),
            _Blocks(source, others=()).orchestration("inner"),
        ]
    )


def _wild(source: Random, orchestration_id: str) -> Orchestration:
    ids = [f"s{number}" for number in range(source.randint(3, 12))]
    types = ["any", "any", "any", "string", "list"]
    return Orchestration.model_validate(
        {
            "id": orchestration_id,
            "steps": [_wild_step(source, place, ids) for place in range(len(ids))],
            "state_schema": {key: {"type": source.choice(types)} for key in KEYS if source.random() < 0.3},
            "max_total_turns": source.choice([5, 40, 200, 200]),
            "max_total_cost_usd": source.choice([None, None, 0.1, 2]),
            "max_state_bytes": source.choice([1024, 1500, 16_384, 4_000_000]),
        }
    )


def _wild_step(source: Random, place: int, ids: list[str]) -> StepData:
    kind = source.choice([*LEAVES, *LEAVES, "end", *COMPOSITES, *COMPOSITES])
    later = ids[place + 1 :]

    def target() -> str | None:
        # Mostly onwards, or a run would be over before it has met anything.
        chance = source.random()
        if later and chance < 0.75:
            return source.choice(later[:3])
        return source.choice(ids) if chance < 0.9 else None

    def some() -> list[str]:
        return [source.choice(later if later and source.random() < 0.8 else ids) for _ in range(source.randint(1, 3))]

    step: StepData = {
        "id": ids[place],
        "type": kind,
        "next_step_id": target(),
        "output_key": source.choice([None, *KEYS]),
        "max_iterations": source.randint(1, 4),
        "on_limit": source.choice(["fail", "continue", "continue"]),
        "retry": _retry(source),
        "on_error": source.choice([None, target()]),
    }
    match kind:
        case "if_else":
            step |= {"if_true_step_id": target(), "if_false_step_id": target()}
        case "switch":
            step |= {"switch_cases": {"true": target(), "0": target()}, "switch_default_step_id": target()}
        case "evaluator":
            step |= {"route_map": {label: target() for label in LABELS}}
        case "human" | "wait":
            step |= {"on_expiry": source.choice([None, target()])}
        case "parallel":
            branches = [some() if source.random() < 0.9 else [] for _ in range(source.randint(1, 3))]
            step |= {"parallel_branches": branches, "max_concurrency": source.choice([None, 1, 2])}
        case "loop":
            step |= {"loop_step_ids": some(), "collect": source.random() < 0.5, **_rounds(source)}
        case "orchestration":
            step |= {"orchestration_id": source.choice(["main", "other", "other"]), "input": source.choice(INPUTS)}
        case _:
            pass
    return _with_needed(step)


def _retry(source: Random) -> StepData | None:
    if source.random() < 0.5:
        return None
    on = source.choice([[], ["timeout"], ["timeout", "model_error"]])
    return {"attempts": source.randint(1, 3), "backoff_seconds": source.choice([0, 0.5, 2]), "on": on}


def _rounds(source: Random) -> StepData:
    match source.randint(0, 2):
        case 0:
            return {"loop_count": source.randint(1, 3)}
        case 1:
            return {"while_condition": "x", "max_rounds": source.randint(1, 4)}
        case _:
            return {"for_each": "x", "max_concurrency": source.randint(1, 3)}


def _with_needed(step: StepData) -> StepData:
    """Return the step with what its type cannot do without."""
    match step["type"]:
        case "print":
            step["print_content"] = ""
        case "task":
            step["task"] = "work"
        case "wait":
            step["event"] = "signal"
        case "if_else":
            step["if_condition"] = "x"
        case "switch":
            step["switch_expression"] = "x"
        case "transform":
            step["transform_code"] = "result = 1"
        case _:
            pass
    return step


class _Blocks:
    """Makes one orchestration. Steps share a few keys on purpose: that is where branches could meet too early."""

    def __init__(self, source: Random, others: tuple[str, ...]) -> None:
        self._source = source
        self._others = others
        self._numbers = count()
        self._steps: list[StepData] = []

    def orchestration(self, orchestration_id: str) -> Orchestration:
        entry = self._chain(depth=0)[0]
        return Orchestration.model_validate(
            {"id": orchestration_id, "steps": self._steps, "entry_step_id": entry, "max_total_turns": 1_000_000}
        )

    def _chain(self, depth: int) -> list[str]:
        """Steps that follow each other; those that choose go to any later one."""
        ids = [f"s{next(self._numbers)}" for _ in range(self._source.randint(1, 3))]
        for place, step_id in enumerate(ids):
            self._add(step_id, ids[place + 1 :], depth)
        return ids

    def _add(self, step_id: str, later: list[str], depth: int) -> None:
        source = self._source
        kinds = ["print", "human", "if_else", "evaluator", "transform"]
        if depth < 3:
            kinds += ["parallel", "parallel", "loop", "loop", *(["orchestration"] if self._others else [])]
        kind = source.choice(kinds)
        step: StepData = {
            "id": step_id,
            "type": kind,
            "next_step_id": later[0] if later else None,
            "output_key": source.choice([None, *KEYS]),
            "retry": source.choice([None, {"attempts": 5}]),
        }
        targets = [*later, None]
        match kind:
            case "if_else":
                step |= {"if_true_step_id": source.choice(targets), "if_false_step_id": source.choice(targets)}
            case "evaluator":
                step |= {"route_map": {label: source.choice(targets) for label in LABELS}}
            case "orchestration":
                step |= {"orchestration_id": "inner", "input_keys": KEYS}
            case "parallel":
                branches: list[list[str]] = []
                for _ in range(source.randint(1, 3)):
                    chain = self._chain(depth + 1)
                    branches.append(chain if source.random() < 0.5 else chain[:1])
                step |= {"parallel_branches": branches, "max_concurrency": source.choice([None, 1, 2])}
            case "loop":
                step |= {"loop_step_ids": self._chain(depth + 1), "collect": source.random() < 0.5, **_rounds(source)}
                step |= {"max_rounds": 1_000_000} if "while_condition" in step else {}
            case _:
                pass
        self._steps.append(_with_needed(step))


class Performer:
    """Gives the same outcome for the same execution of the same step with the same state.

    `failures` is how many of a hundred tries fail; with `lasting`, some of those are permanent.
    """

    def __init__(self, seed: int, *, failures: int = 0, lasting: bool = False) -> None:
        self._seed = seed
        self._failures = failures
        self._lasting = lasting

    def __call__(self, pending: PendingStep) -> Outcome:
        seen = orjson.dumps(
            [self._seed, pending.path, pending.tries, dict(pending.state)],
            option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS,
        )
        digest = blake2b(seen, digest_size=8).digest()
        chance, choice, extent = digest[0] % 100, digest[1], digest[2]
        cost, tokens = (digest[3] % 50) / 1000, digest[4]
        # Without a retry a retryable failure is a lasting one.
        if chance < self._failures and (self._lasting or (pending.step.retry is not None and pending.tries < 4)):
            retryable = not self._lasting or choice % 2 == 0
            return Failed(["timeout", "model_error"][extent % 2], "It broke.", retryable, cost, tokens)
        if pending.part == "condition":
            # Ends soon by itself for any state.
            number = int(pending.path.rstrip("?").rsplit("/", 1)[1])
            return Done(choice % 3 != 0 and number <= 4, None, cost, tokens)
        if pending.part == "items":
            return Done([digest[5 + place % 3] for place in range(extent % 5)], None, cost, tokens)
        match pending.step:
            case EvaluatorStep():
                return Done(None, LABELS[choice % 3], cost, tokens)
            case HumanStep() | WaitStep() if pending.step.on_expiry is not None and choice % 2:
                return Done(None, "expired", cost, tokens)
            case _ if pending.step.type in ("if_else", "switch"):
                return Done(choice % 2 == 0, None, cost, tokens)
            case _:
                return Done(digest.hex(), None, cost, tokens)
