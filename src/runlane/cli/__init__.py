"""The command line. `commands` lists every command with its module.

Commands import what they need when they run, so that `runlane --help` starts fast. Exit codes: 0 success, 1 refused or
failed with the reason on stderr, 2 wrong usage.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from types import TracebackType
from typing import Final

# How many allocations start a collection of the youngest objects, and how many collections one of an older generation.
# With the interpreter's defaults the collector often searches objects that reference counting frees, and at times every
# imported module: 5 to 9 % of the time of a start, and a fifth of the time of a worker that drains short runs.
GC_THRESHOLDS: Final = (10_000, 20, 50)
# The status that shells and containers report for a process that SIGTERM has ended.
_ENDED_BY_SIGTERM: Final = 128 + signal.SIGTERM


def main() -> None:
    """Run the `runlane` command."""
    if os.getpid() == 1:
        # The kernel ignores a signal to PID 1 without a handler. Servers and workers install theirs after loading.
        signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(_ENDED_BY_SIGTERM))
    gc.set_threshold(*GC_THRESHOLDS)
    from runlane.cli.commands import cli
    from runlane.cli.terminal import write_block
    from runlane.errors import RunlaneError
    from runlane.redaction import LOGS

    sys.excepthook = _print_traceback
    if any(word == "--api-key" or word.startswith("--api-key=") for word in sys.argv[1:]):
        write_block("Warning: every process on this machine can see --api-key. Set RUNLANE_API_KEY instead.", err=True)
    try:
        cli()
    except RunlaneError as error:
        write_block(f"Error ({error.code}): {LOGS.clean(str(error))}", err=True, indent=2)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:
        # The reader of a pipe has closed it, as `| head` does.
        raise SystemExit(0) from None


def _print_traceback(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Print an unexpected error as Python does, but redacted: its message may contain text of a tenant."""
    import traceback

    from runlane.cli.terminal import write_block
    from runlane.redaction import LOGS

    write_block(LOGS.clean("".join(traceback.format_exception(kind, error, where))), err=True, end="")
