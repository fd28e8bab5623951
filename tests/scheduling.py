"""How `make test` spreads the suite over processes: what takes longest begins first.

A unit of work is a file, because the tests of a file share fixtures and imports. A chaos test is a unit by itself: it
starts its own processes, mostly waits for them, and shares nothing with its neighbours. Chaos tests only run in the
first CHAOS_PROCESSES of the processes, so that the processes that they start get enough of the machine, while the
others execute the rest of the suite. A process without units of its kind continues with the other kind if it may.

The tests of layout, language and public names take seconds and fail after most mistakes, so they begin before all
other files.

`tests/durations.json` has the seconds of each unit. Only the order of units depends on it, so it may be out of date.
`make durations` measures it again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

CHAOS: Final = "tests/chaos/"
CHAOS_PROCESSES: Final = 2
FIRST: Final = frozenset({"tests/unit/test_layout.py", "tests/unit/test_language.py", "tests/unit/test_surface.py"})
DURATIONS: Final = Path(__file__).with_name("durations.json")
# A unit without a record is new, and may take long.
_UNKNOWN_SECONDS: Final = 20.0


def unit_of(test: str) -> str:
    """Return the unit that a test belongs to."""
    return test if test.startswith(CHAOS) else test.partition("::")[0]


class LongestFirst(LoadScopeScheduling):
    """Assigns the longest unit that is left to a process that needs work."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        self._seconds: dict[str, float] = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        unit = self._next_unit(node)
        if unit is None:
            node.shutdown()
            return
        self.workqueue.move_to_end(unit, last=False)
        super()._assign_work_unit(node)

    def _next_unit(self, node: WorkerController) -> str | None:
        """Return the unit for this process; None if no unit of its kind is left."""
        chaos = [unit for unit in self.workqueue if unit.startswith(CHAOS)]
        others = [unit for unit in self.workqueue if not unit.startswith(CHAOS)]
        candidates = (chaos or others) if self.nodes.index(node) < CHAOS_PROCESSES else others
        return max(candidates, key=self._urgency, default=None)

    def _urgency(self, unit: str) -> tuple[bool, float]:
        return unit in FIRST, self._seconds.get(unit, _UNKNOWN_SECONDS)


class DurationRecorder:
    """Measures the seconds of every unit and writes them to `tests/durations.json`."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # The last test of a process also removes the servers of the session, which is not a cost of its unit.
        seconds = 0.0 if report.when == "teardown" else report.duration
        self._seconds[unit_of(report.nodeid)] += seconds

    def pytest_sessionfinish(self) -> None:
        rounded = {unit: round(seconds, 1) for unit, seconds in sorted(self._seconds.items())}
        DURATIONS.write_text(json.dumps(rounded, indent=1) + "\n")
