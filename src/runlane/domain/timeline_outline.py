"""Choose the spans that a page of a timeline shows, from only the paths of records and events.

A run may have a hundred thousand events, and a page shows a few hundred spans. The outline takes the path, the type and
the time of each event, but not its values. It chooses the spans of a page and the events that have their names and
times, and counts the outcomes of what stays collapsed. So the values of few events are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final, NamedTuple

from runlane.domain.events import EventType
from runlane.domain.ids import INSIDE
from runlane.domain.timeline import MAX_PARTS, place_of
from runlane.domain.timeline_facts import CALL_EVENTS, PartsSummary, StepFacts

_STARTS: Final = frozenset({EventType.STEP_START.value, EventType.PARALLEL_START.value})
_ENDS: Final = {
    EventType.STEP_COMPLETE.value: "done",
    EventType.PARALLEL_COMPLETE.value: "done",
    EventType.LOOP_COMPLETE.value: "done",
    EventType.STEP_ERROR.value: "failed",
}
# Their path is the path of the group, and only their values have the number of the part.
_PART_STARTS: Final = frozenset({EventType.LOOP_ITERATION.value, EventType.BRANCH_START.value})
_CALLS: Final = frozenset(kind.value for kind in CALL_EVENTS)


class EventHead(NamedTuple):
    """An event without its values."""

    seq: int
    type: str
    at_us: int
    path: str


class _Part(NamedTuple):
    """A subtree as one value. `ended_us` is null while something in it is open."""

    outcome: str
    started_us: int | None
    ended_us: int | None
    cost_usd: float | None
    tokens: int


@dataclass(frozen=True, slots=True)
class OutlinePage:
    """The content of a page: its spans, the events to read for them, and summaries of collapsed spans by path."""

    records: Sequence[StepFacts]
    events: Sequence[int]
    summaries: Mapping[str, PartsSummary]
    next_offset: int | None


class Outline:
    """The tree of a run's paths."""

    def __init__(
        self,
        records: Iterable[StepFacts],
        heads: Sequence[EventHead],
        ended_at_us: int | None,
        *,
        parent: str = "",
        groups: Mapping[str, PartsSummary] | None = None,
    ) -> None:
        self._parent = parent
        self._prefix = f"{parent}/" if parent else ""
        self._records: dict[str, StepFacts] = {}
        self._heads = heads
        self._run_ended_us = ended_at_us
        self._parts: dict[str, dict[str, None]] = {}
        self._starts: dict[str, int] = {}
        self._ends: dict[str, tuple[str, int]] = {}
        # The steps of open questions, by the path of the question.
        self._asked: dict[str, str] = {}
        self._folded: dict[str, _Part] = {}
        # Long groups whose parts are not given.
        self._groups = groups or {}
        for record in records:
            if record.path.startswith(self._prefix):
                self._records[record.path] = record
                self._add(record.path)
        for head in heads:
            self._take(head)

    def page(self, *, offset: int, limit: int, from_us: int | None = None, to_us: int | None = None) -> OutlinePage:
        """Return the children of the parent from `offset` on, with what is inside them, at most `limit` spans."""
        children = self._ordered(from_us, to_us)
        shown: set[str] = set()
        collapsed: set[str] = set()
        following: int | None = None
        count = 0
        for position in range(offset, len(children)):
            if count >= limit:
                following = position
                break
            child = children[position]
            inside: list[str] = []
            closed: list[str] = []
            # A step that does not fit as a whole is left out, so that no part of a step is missing without an
            # indication.
            if self._opens(child) and self._descend(child, limit - count - 1, inside, closed):
                shown.update(inside)
                collapsed.update(closed)
            elif child in self._parts or child in self._groups:
                collapsed.add(child)
            shown.add(child)
            count += 1 + len(inside) * (child not in collapsed)
        records = [record for path in shown if (record := self._records.get(path)) is not None]
        records.sort(key=lambda record: record.ended_at_us)
        summaries = {path: self._summary(path) for path in collapsed}
        events = self._choose(lambda path: path in shown or path == self._parent, collapsed)
        if self._parent:
            events = self._without_parts(events, whole=offset == 0 and following is None, last=following is None)
        return OutlinePage(records, events, summaries, following)

    @property
    def has_parts(self) -> bool:
        """Return whether the parent has steps inside it; otherwise its children are calls."""
        return self._parent in self._parts

    def open_events(self) -> list[int]:
        """Return the events of steps without a record: those that run, wait, or have steps inside them."""
        return self._choose(lambda path: path not in self._records, frozenset())

    def _add(self, path: str) -> None:
        while path != self._parent:
            above = path.rpartition("/")[0]
            siblings = self._parts.setdefault(above, {})
            if path in siblings:
                return
            siblings[path] = None
            path = above

    def _take(self, head: EventHead) -> None:
        path = _step_of(head.path)
        if not path.startswith(self._prefix) or head.type in _CALLS:
            return
        if path not in self._records and path:
            self._add(path)
        if head.type in _STARTS:
            self._starts.setdefault(path, head.at_us)
        elif head.type in _ENDS:
            self._ends[path] = (_ENDS[head.type], head.at_us)
        elif head.type == EventType.HUMAN_INPUT_REQUIRED:
            self._asked[head.path] = path
        elif head.type == EventType.RESUMED:
            self._asked.pop(head.path, None)

    def _ordered(self, from_us: int | None, to_us: int | None) -> list[str]:
        found: list[tuple[tuple[bool, int], str]] = []
        for child in self._parts.get(self._parent, {}):
            part = self._fold(child)
            started, ended = part.started_us or 0, part.ended_us
            if (to_us is None or started < to_us) and (from_us is None or ended is None or ended >= from_us):
                found.append((place_of(child, part.started_us), child))
        # Sorted only by place: spans that begin at the same time keep the order in which they were recorded.
        found.sort(key=lambda item: item[0])
        return [child for _, child in found]

    def _is_long(self, path: str) -> bool:
        return path in self._groups or len(self._parts.get(path, ())) > MAX_PARTS

    def _opens(self, path: str) -> bool:
        return path not in self._groups and 0 < len(self._parts.get(path, ())) <= MAX_PARTS

    def _descend(self, path: str, room: int, inside: list[str], closed: list[str]) -> bool:
        """Collect the spans that are shown below a span; return whether they fit."""
        for part in self._parts.get(path, ()):
            if len(inside) >= room:
                return False
            inside.append(part)
            if self._is_long(part):
                closed.append(part)
            elif not self._descend(part, room, inside, closed):
                return False
        return True

    def _choose(self, shown: Callable[[str], bool], collapsed: Set[str]) -> list[int]:
        """Return the numbers of the events of these steps; of a long group, few of those that begin its parts."""
        chosen: list[int] = []
        last_part: dict[str, int] = {}
        for head in self._heads:
            path = _step_of(head.path)
            if not shown(path):
                continue
            if head.type in _PART_STARTS and (path in collapsed or self._is_long(path)):
                # The first event has the start of the group, the last one the part that may have no step yet.
                known = path in last_part
                last_part[path] = head.seq
                if known:
                    continue
            chosen.append(head.seq)
        return sorted({*chosen, *last_part.values()})

    def _without_parts(self, events: Sequence[int], *, whole: bool, last: bool) -> list[int]:
        """Return the events without those that begin parts of the parent on another page."""
        if whole and not self._is_long(self._parent):
            return list(events)
        begun = [head.seq for head in self._heads if head.type in _PART_STARTS and head.path == self._parent]
        # The newest part of an open run may have no step yet.
        kept = set(begun[-1:]) if last and self._run_ended_us is None else set[int]()
        hidden = set(begun) - kept
        return [seq for seq in events if seq not in hidden]

    def _summary(self, path: str) -> PartsSummary:
        whole = self._fold(path)
        if path in self._groups:
            return self._groups[path]._replace(started_us=whole.started_us, ended_us=whole.ended_us)
        parts = [self._fold(child) for child in self._parts.get(path, ())]
        outcomes = Counter(part.outcome for part in parts)
        return PartsSummary(
            len(parts), dict(sorted(outcomes.items())), whole.started_us, whole.ended_us, whole.cost_usd, whole.tokens
        )

    def _fold(self, path: str) -> _Part:
        """Return a subtree as one value. Parts of an ended run that are still open were abandoned."""
        known = self._folded.get(path)
        if known is not None:
            return known
        parts = [self._fold(child) for child in self._parts.get(path, ())]
        record = self._records.get(path)
        starts = [part.started_us for part in parts if part.started_us is not None]
        group = self._groups.get(path)
        started = self._starts.get(path, min(starts, default=None) if group is None else group.started_us)
        outcome, ended = self._end(path, record, parts)
        if ended is None and self._run_ended_us is not None:
            outcome, ended = "abandoned", self._run_ended_us
        if record is not None and started is None:
            started = record.ended_at_us - (record.duration_us or 0)
        costs = [part.cost_usd for part in parts if part.cost_usd is not None]
        cost = sum(costs) if costs else None
        tokens = sum(part.tokens for part in parts)
        if group is not None:
            cost, tokens = group.cost_usd, group.tokens
        if record is not None:
            cost, tokens = record.cost_usd if record.cost_usd is not None else cost, record.tokens or tokens
        part = self._folded[path] = _Part(outcome, started, ended, cost, tokens)
        return part

    def _end(self, path: str, record: StepFacts | None, parts: Sequence[_Part]) -> tuple[str, int | None]:
        if record is not None:
            outcome = record.outcome or "done"
            return outcome, None if outcome == "retrying" else record.ended_at_us
        if path in self._ends:
            return self._ends[path]
        ends = [part.ended_us for part in parts if part.ended_us is not None]
        if path.rpartition("/")[2].isdecimal() and parts and len(ends) == len(parts):
            return "failed" if any(part.outcome == "failed" for part in parts) else "done", max(ends)
        waits = any(part.outcome == "waiting" for part in parts) or path in self._asked.values()
        waits = waits or bool(path in self._groups and self._groups[path].outcomes.get("waiting"))
        return "waiting" if waits else "running", None


def _step_of(path: str) -> str:
    """Return the path of the step that an event belongs to; the path of a question contains the path of its step."""
    return path.partition(INSIDE)[0].removesuffix("?")
