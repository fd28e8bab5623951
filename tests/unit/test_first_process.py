"""The kernel ignores signals to PID 1 without a handler, so the command installs one before it loads anything."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The command ends as soon as it would load its subcommands, and prints whether SIGTERM has a handler by then.
CODE = """
import os, signal, sys
os.getpid = lambda: {pid}

class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == "runlane.cli.commands":
            print(callable(signal.getsignal(signal.SIGTERM)), flush=True)
            os._exit(0)

from runlane.cli import main
sys.meta_path.insert(0, Stop())
main()
"""


@pytest.mark.parametrize(("pid", "handled"), [(1, True), (77, False)])
def test_only_the_first_process_handles_sigterm_while_it_loads(pid: int, handled: bool) -> None:
    code = CODE.format(pid=pid)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(handled)
