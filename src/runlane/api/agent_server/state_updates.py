"""Updates of the state of a thread as frames of its stream: the new state, after the update is stored.

The position of a frame is the time of its checkpoint, so a reader resumes after it as after an event of a run.
"""

from __future__ import annotations

from typing import Final

import orjson

from runlane.store.sql.database import Database
from runlane.store.threads.states import find_updates, read_state

STATE_UPDATE: Final = "state_update"
_END: Final = 2**62


class StateUpdates:
    """The updates of the state of one thread for one reader, after a time in microseconds."""

    def __init__(self, database: Database, key: str, thread_id: str, after_us: int) -> None:
        self._database = database
        self._key = key
        self._thread_id = thread_id
        self._after_us = after_us

    async def frames(self, before_us: int = _END) -> bytes:
        """Return the frames of the updates before a time that were not returned yet."""
        out: list[bytes] = []
        while found := await find_updates(self._database, self._key, self._after_us, before_us):
            for at_us, checkpoint_id in found:
                self._after_us = at_us
                state = await read_state(self._database, self._key, checkpoint_id=checkpoint_id)
                # It may have been deleted meanwhile. The statement also finds runs with such a value in their metadata.
                if state is not None and state["metadata"].get("source") == "update":
                    out.append(self._frame(at_us, state))
        return b"".join(out)

    def _frame(self, at_us: int, state: object) -> bytes:
        data = orjson.dumps({"state": state, "thread_id": self._thread_id}, option=orjson.OPT_NON_STR_KEYS)
        return b"event: %s\ndata: %s\nid: %d.0\n\n" % (STATE_UPDATE.encode(), data, at_us)
