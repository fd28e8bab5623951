"""Keep the ids of checkpoints in order when the clocks of two workers differ.

LangGraph takes ids from the clock of the process, and the newest checkpoint of a thread is the one with the largest id.
A worker whose clock is slow would store checkpoints that sort before those of the previous worker.
"""

from __future__ import annotations

from typing import Final

from runlane.graphs.langgraph_internals import NEWEST_ID_TIME, checkpoint_id_module

_TIME_ORDERED: Final = 6


def advance_past(checkpoint_id: str) -> None:
    """Make every later id of this process sort after this one."""
    try:
        parsed = checkpoint_id_module.UUID(hex=checkpoint_id)
    except ValueError:
        return
    # LangGraph's own guard against a clock that goes back.
    if parsed.version == _TIME_ORDERED and (getattr(checkpoint_id_module, NEWEST_ID_TIME) or 0) < parsed.time:
        setattr(checkpoint_id_module, NEWEST_ID_TIME, parsed.time)
