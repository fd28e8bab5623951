"""Plant each bug of the list in a copy of the tree and report which of them the named tests catch.

    python -m tests.mutants [--jobs N] [--limit SECONDS] [--list] [PATTERN ...]

The named tests run on the unchanged copy first: a test that fails anyway catches nothing. The exit code is 0 when every
bug was caught, 1 when one survived, 2 when an entry is stale or a test fails without a bug.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue

from tests.mutants.catalog import Mutant, load_mutants, select
from tests.mutants.tree import Tree, Verdict, copied_tree

LIMIT_SECONDS = 60.0
# The tests pass or fail here as they would in the suite, however busy the machine is.
_BASELINE_SECONDS = 3600.0
_BASELINE_TEST_SECONDS = 600.0
_ROOT = Path(__file__).parents[2]


def main() -> int:
    options = _parse_options()
    mutants = select(load_mutants(Path(__file__).parent), options.patterns)
    problems = [problem for mutant in mutants if (problem := mutant.problem(_ROOT)) is not None]
    if not mutants:
        problems.append("No bug has such a name. See: make mutants ARGS=--list")
    if problems:
        print("\n".join(problems), file=sys.stderr)
        return 2
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name}: {mutant.bug}")
        return 0
    waiting: SimpleQueue[Mutant] = SimpleQueue()
    for mutant in mutants:
        waiting.put(mutant)
    with copied_tree(_ROOT) as tree:
        if not _passes_without_bugs(tree, mutants):
            return 2
    with ThreadPoolExecutor(options.jobs) as jobs:
        results = [
            jobs.submit(_judge_waiting, waiting, options.limit, verbose=options.verbose) for _ in range(options.jobs)
        ]
        try:
            verdicts = [verdict for result in results for verdict in result.result()]
        except BaseException:
            # Interrupted: each job ends after the bug that it tries at the moment.
            while not waiting.empty():
                waiting.get()
            raise
    caught = verdicts.count(Verdict.CAUGHT)
    print(f"{caught} of {len(verdicts)} caught")
    return 0 if caught == len(verdicts) else 1


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Plant bugs; see which are caught.")
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="names of bugs, such as 'store/*'; default: all")
    parser.add_argument("--jobs", type=int, default=1, help="how many bugs to try at a time; default: 1")
    parser.add_argument(
        "--limit",
        type=float,
        default=LIMIT_SECONDS,
        metavar="SECONDS",
        help="how long the tests of a bug may take, more on a busy machine; default: %(default)g",
    )
    parser.add_argument("--list", action="store_true", help="check the entries and list them, without running tests")
    parser.add_argument("--verbose", action="store_true", help="print the output of the tests of each bug")
    return parser.parse_args()


def _passes_without_bugs(tree: Tree, mutants: list[Mutant]) -> bool:
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    verdict, printed = tree.run(tests, _BASELINE_SECONDS, test_seconds=_BASELINE_TEST_SECONDS)
    if verdict is Verdict.SURVIVED:
        return True
    print(f"{printed}\nThe tests do not pass without a bug. Repair them first.", file=sys.stderr)
    return False


def _judge_waiting(waiting: SimpleQueue[Mutant], limit_seconds: float, *, verbose: bool) -> list[Verdict]:
    verdicts: list[Verdict] = []
    with copied_tree(_ROOT) as tree:
        while True:
            try:
                mutant = waiting.get_nowait()
            except Empty:
                return verdicts
            begun = time.monotonic()
            verdict, printed = tree.judge(mutant, limit_seconds)
            verdicts.append(verdict)
            print(f"{verdict:9} {time.monotonic() - begun:5.1f} s  {mutant.name}", flush=True)
            if verbose or verdict in (Verdict.BROKEN, Verdict.TOO_SLOW):
                print(printed, flush=True)


if __name__ == "__main__":
    sys.exit(main())
