"""The command line: thin edges that translate and delegate.

Commands import what they need when they run, so that `runlane --help` starts fast. Exit codes: 0 done, 1 refused or
failed with the reason on stderr, 2 wrong usage.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the `runlane` command."""
    from runlane.cli.commands import cli
    from runlane.errors import RunlaneError
    from runlane.redaction import clean

    if any(word == "--api-key" or word.startswith("--api-key=") for word in sys.argv[1:]):
        print("Warning: every process on this machine can see --api-key. Set RUNLANE_API_KEY instead.", file=sys.stderr)
    try:
        cli()
    except RunlaneError as error:
        print(f"Error ({error.code}): {clean(str(error))}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:
        # The reader of a pipe went away, as `| head` does.
        raise SystemExit(0) from None
