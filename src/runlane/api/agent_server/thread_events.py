"""The log of a run as events of the thread protocol: the output of its modes, and the status of the run.

The events of the root namespace report that a run is running and how it ended. `completed` and `failed` end the run for
clients. `interrupted` leaves the run open; each of its questions is an `input.requested`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import orjson

from runlane.api.agent_server.event_channels import EventNumber, EventSelection, UnionSelection, part_of
from runlane.api.agent_server.frames import wire_event
from runlane.api.agent_server.message_blocks import MessageBlocks
from runlane.api.agent_server.run_stream import wire_error
from runlane.domain.events import EventType, StoredEvent
from runlane.domain.graph import StreamMode
from runlane.domain.run import Status
from runlane.domain.text import dump_json, load_json
from runlane.store.threads.thread_runs import RunResult

_PASSED: Final = frozenset({"values", "updates", "messages", "tools", "tasks", "custom"})
_INTERRUPT: Final = "__interrupt__"
_CANCELLED: Final = "The run was cancelled."


@dataclass(frozen=True, slots=True)
class ProtocolEvent:
    """An event without its number."""

    method: str
    namespace: tuple[str, ...]
    data: Any


# Return an event in the form in which it is sent: an SSE frame, or a message of a socket.
Framing = Callable[[dict[str, Any]], bytes]


def sse_frame(event: dict[str, Any]) -> bytes:
    """Return an event as a frame of an event stream."""
    body = orjson.dumps(event, option=orjson.OPT_NON_STR_KEYS).decode()
    return f"event: {event['method']}\ndata: {body}\nid: {event['seq']}\n\n".encode()


class EventEncoding:
    """The events of one run for one reader. `after` is the number of the last event that the reader has received."""

    def __init__(
        self, ordinal: int, subscription: EventSelection | UnionSelection, after: int, framing: Framing
    ) -> None:
        self._ordinal = ordinal
        self._subscription = subscription
        self._after = after
        self._framing = framing
        self._blocks = MessageBlocks()
        self._attempts = 0
        # The log entry of the end of the run, and its time.
        self._end = (0, 0)
        self._last: list[ProtocolEvent] = []

    def event(self, run_id: str, line: StoredEvent) -> bytes:
        """Return the events of an entry of the log."""
        if line.type == EventType.DONE:
            self._end = (line.seq, line.at_us)
        found = wire_event(run_id, line)
        if found is None:
            return b""
        name, data = found
        mode, *namespace = name.split("|")
        return self._numbered(line.seq, line.at_us, self._of_mode(mode, tuple(namespace), data))

    def graph_events(self, line: StoredEvent, events: Iterable[tuple[str, Any]]) -> bytes:
        """Return the events of an entry that is not stored in the form of a graph, as pairs of a mode and its data."""
        found = [item for mode, data in events for item in self._of_mode(mode, (), dump_json(data))]
        if line.type == EventType.DONE:
            # These events share an entry with the end of the run. The end of the run assigns their numbers.
            self._last, self._end = found, (line.seq, line.at_us)
            return b""
        return self._numbered(line.seq, line.at_us, found)

    def asked(self, entry: int, interrupts: Iterable[Mapping[str, Any]]) -> bytes:
        """Return the events for the questions of a run that this entry paused."""
        return self._numbered(entry, 0, [*requests(interrupts), lifecycle("interrupted")])

    def gap(self, run_id: str, first_seq: int) -> bytes:
        """Return the event which announces that earlier entries are no longer stored."""
        data = {"name": "truncated", "payload": {"run_id": run_id, "first_seq": first_seq}}
        return self._numbered(first_seq - 1, 0, [ProtocolEvent("custom", (), data)])

    def ended(self, found: RunResult) -> bytes:
        """Return the events for the end of the run."""
        events = [*self._last, *(ProtocolEvent("messages", (), data) for data in self._blocks.finish())]
        events += ended_events(found)
        return self._numbered(*self._end, events)

    def _of_mode(self, mode: str, namespace: tuple[str, ...], text: str) -> list[ProtocolEvent]:
        if mode == "metadata":
            return self._running(load_json(text))
        if mode == StreamMode.CHECKPOINT_IDS.value:
            return [ProtocolEvent("checkpoints", namespace, load_json(text))]
        if mode not in _PASSED:
            return []
        data = load_json(text)
        match mode:
            case "messages":
                chunk, metadata = data
                return [ProtocolEvent(mode, namespace, item) for item in self._blocks.add(chunk, metadata)]
            case "updates":
                return [ProtocolEvent(mode, namespace, item) for item in _updates(data)]
            case "custom":
                return [ProtocolEvent(mode, namespace, _custom(data))]
            case _:
                return [ProtocolEvent(mode, namespace, _without_interrupts(data) if mode == "values" else data)]

    def _running(self, metadata: Mapping[str, Any]) -> list[ProtocolEvent]:
        """Return the event for the start of an attempt, which repeats incomplete messages of an earlier attempt."""
        events = [ProtocolEvent("messages", (), data) for data in self._blocks.withdraw()]
        self._blocks = MessageBlocks()
        return [*events, lifecycle("running", run_id=metadata["run_id"], attempt=metadata["attempt"])]

    def _numbered(self, entry: int, at_us: int, events: Iterable[ProtocolEvent]) -> bytes:
        found = list(events)
        frames: list[bytes] = []
        for index, event in enumerate(found):
            number = EventNumber(self._ordinal, entry, part_of(index, len(found))).to_int()
            wanted = self._subscription.includes(event.method, event.namespace, event.data)
            if wanted and number > self._after:
                frames.append(self._framing(_wire(event, number, f"{self._ordinal}.{entry}.{index}", at_us)))
        return b"".join(frames)


def lifecycle(event: str, **more: Any) -> ProtocolEvent:
    """Return an event about the run as a whole."""
    return ProtocolEvent("lifecycle", (), {"event": event, **more})


def ended_events(found: RunResult) -> list[ProtocolEvent]:
    """Return the events for the result of a run."""
    match found.status:
        case Status.FAILED:
            error = wire_error(found)
            return [lifecycle("failed", error=f"{error['error']}: {error['message']}")]
        case Status.CANCELLED:
            return [lifecycle("failed", error=_CANCELLED)]
        case _ if found.interrupted:
            result = cast("dict[str, Any]", found.result) if isinstance(found.result, dict) else {}
            return [*requests(result.get(_INTERRUPT) or ()), lifecycle("interrupted")]
        case _:
            return [lifecycle("completed")]


def requests(interrupts: Iterable[Mapping[str, Any]]) -> list[ProtocolEvent]:
    """Return questions as events. The Python and the JavaScript client read the question under different names."""
    return [
        ProtocolEvent(
            "input.requested",
            (),
            {"interrupt_id": item["id"], "value": item.get("value"), "payload": item.get("value")},
        )
        for item in interrupts
    ]


def _wire(event: ProtocolEvent, number: int, event_id: str, at_us: int) -> dict[str, Any]:
    params = {"namespace": list(event.namespace), "timestamp": at_us // 1000, "data": event.data}
    return {"type": "event", "event_id": event_id, "seq": number, "method": event.method, "params": params}


def _updates(data: Any) -> list[dict[str, Any]]:
    """Return one update for each node. Questions are separate events."""
    updates = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    return [{"node": node, "values": values} for node, values in updates.items() if node != _INTERRUPT]


def _custom(data: Any) -> Any:
    """Return the value that a node has written.

    An object with a name keeps the name, so that a channel can select it.
    """
    if isinstance(data, dict) and "name" in data:
        return cast("Any", data)
    return {"payload": cast("Any", data)}


def _without_interrupts(values: Any) -> Any:
    if not isinstance(values, dict):
        return values
    return {name: value for name, value in cast("dict[str, Any]", values).items() if name != _INTERRUPT}
