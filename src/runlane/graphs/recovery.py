"""The recovery rule: choose the input of an attempt so that no part of an earlier attempt is applied twice.

If the newest checkpoint of the thread was stored by this run, the run continues from it, without input. Otherwise the
request is sent again, without the parts that an earlier attempt has stored: the update of a command is stored once, and
an answer is given only to the question that was open when the run began, never to another question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, cast

from langchain_core.runnables import RunnableConfig
from langgraph.errors import UnknownInterruptError
from langgraph.graph import END, START
from langgraph.types import Command, Send, StateSnapshot

from runlane.domain.graph import GraphRequest
from runlane.domain.text import dump_json, load_json
from runlane.errors import Fail
from runlane.graphs.exports import Graph
from runlane.graphs.run_config import at_checkpoint, command_of
from runlane.store.queue.claim import Claimed

_HEXDIGITS: Final = frozenset("0123456789abcdef")

# Names of nodes, or all of them.
Nodes = Sequence[str] | Literal["*"]


@dataclass(frozen=True, slots=True)
class Memo:
    """The memo of an attempt for later ones: the questions that its answers are for, and whether its command is stored.

    Answers by id name their questions themselves, and are in the memo as evidence that an attempt has begun.
    """

    answers: str | None = None
    applied: bool = False

    @classmethod
    def of(cls, claimed: Claimed) -> Memo:
        """Return the memo of the earlier attempts."""
        return cls() if claimed.saved is None else cls(**load_json(claimed.saved))

    def to_json(self) -> str:
        """Return it as it is stored."""
        return dump_json({"answers": self.answers, "applied": self.applied})


@dataclass(frozen=True, slots=True)
class StartPoint:
    """The start of an attempt. `stopped` is the state of a run that has already reached a breakpoint."""

    input: Any
    config: RunnableConfig
    memo: Memo
    stopped: StateSnapshot | None = None


@dataclass(frozen=True, slots=True)
class Breakpoints:
    """The nodes before and after which a run stops."""

    before: Nodes
    after: Nodes

    @classmethod
    def of(cls, request: GraphRequest, graph: Graph) -> Breakpoints:
        """Return the breakpoints of the request, or else those of the graph."""
        return cls(
            _nodes(request.interrupt_before) or graph.interrupt_before_nodes,
            _nodes(request.interrupt_after) or graph.interrupt_after_nodes,
        )


async def start_point(graph: Graph, config: RunnableConfig, claimed: Claimed, request: GraphRequest) -> StartPoint:
    """Return where this attempt starts.

    UnknownInterruptError if the request answers a question that is not open, and Fail if it names an unknown node.
    """
    _check_nodes(graph, request)
    memo = Memo.of(claimed)
    if claimed.attempt > 1:
        head = await graph.aget_state(config)
        if (head.metadata or {}).get("run_id") == claimed.run_id:
            stopped = await _at_breakpoint(graph, head, Breakpoints.of(request, graph))
            return StartPoint(None, config, memo, head if stopped else None)
    config = at_checkpoint(config, request.checkpoint)
    if request.command is None:
        return StartPoint(request.input, config, memo)
    command = command_of(request.command)
    answers: Mapping[str, Any] | None = None
    if "resume" in request.command:
        open_ids = [interrupt.id for interrupt in (await graph.aget_state(config)).interrupts]
        memo, answers = _answers(command.resume, open_ids, memo)
    if memo.applied:
        command = Command()
    if answers is not None:
        command = replace(command, resume=answers or None)
    is_empty = not (command.update or command.goto or command.resume is not None)
    return StartPoint(None if is_empty and claimed.attempt > 1 else command, config, memo)


def _answers(resume: Any, open_ids: Sequence[str], memo: Memo) -> tuple[Memo, Mapping[str, Any] | None]:
    """Return the answers by question. None leaves the answer as it is, for questions that have no ids of their own."""
    # Without a memo, no earlier attempt has stored anything.
    first = memo.answers is None
    if _is_map(resume):
        answers = cast("Mapping[str, Any]", resume)
        memo = replace(memo, answers=",".join(sorted(answers)))
    elif memo.answers is not None:
        answers = {memo.answers: resume}
    elif len(open_ids) == 1 and _is_id(open_ids[0]):
        memo, answers = replace(memo, answers=open_ids[0]), {open_ids[0]: resume}
    elif open_ids:
        return memo, None
    else:
        raise UnknownInterruptError(
            "The thread has no open interrupt, so the answer has no question. Start a run without a command.",
            reason="not_pending",
        )
    unknown = sorted(set(answers) - set(open_ids))
    if first and unknown:
        raise UnknownInterruptError(
            f'The interrupt "{unknown[0]}" is not open. Read the state of the thread for those that are.',
            reason="not_pending",
            interrupt_ids=unknown,
            pending_ids=sorted(open_ids),
        )
    # An earlier attempt may have consumed the others.
    return memo, {key: value for key, value in answers.items() if key in open_ids}


def _is_map(resume: Any) -> bool:
    return isinstance(resume, dict) and bool(cast("Any", resume)) and all(map(_is_id, cast("dict[Any, Any]", resume)))


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 32 and _HEXDIGITS.issuperset(value)


async def _at_breakpoint(graph: Graph, head: StateSnapshot, breakpoints: Breakpoints) -> bool:
    """Return whether the run is at a breakpoint. If it continued, it would pass the breakpoint, as a later run does."""
    if not head.next:
        return False
    if _stops(breakpoints.before, head.next):
        return True
    if not breakpoints.after or head.parent_config is None or (head.metadata or {}).get("source") != "loop":
        return False
    return _stops(breakpoints.after, (await graph.aget_state(head.parent_config)).next)


def _stops(nodes: Nodes, executed: Sequence[str]) -> bool:
    if nodes == "*":
        return any(not name.startswith("__") for name in executed)
    return not set(nodes).isdisjoint(executed)


def _check_nodes(graph: Graph, request: GraphRequest) -> None:
    """Raise Fail for a name that is not a node: LangGraph ignores it, so that a breakpoint would not stop the graph."""
    if not (request.command or request.interrupt_before or request.interrupt_after):
        return
    goto = cast("Sequence[str | Send]", command_of(request.command or {}).goto)
    targets = [target.node if isinstance(target, Send) else target for target in goto]
    named = {
        "interrupt_before": request.interrupt_before or (),
        "interrupt_after": request.interrupt_after or (),
        "goto": targets,
    }
    known = {*graph.nodes, END, "*"}
    for field, names in named.items():
        unknown = sorted(set(names) - known)
        if unknown:
            nodes = ", ".join(sorted(name for name in graph.nodes if name != START))
            raise Fail(f'{field}: the graph has no node "{unknown[0]}". Its nodes: {nodes}.')


def _nodes(given: Sequence[str] | None) -> Nodes:
    return "*" if given is not None and "*" in given else given or ()
