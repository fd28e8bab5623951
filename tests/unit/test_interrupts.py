"""Ctrl-C wakes a command whose event loop sleeps, even if the sleep itself is not interrupted by it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, signal, threading, time
from runlane.cli.interrupts import run_interruptibly

def interrupt():
    # Let the loop go to sleep. Were this too short, the test would be easier to pass, and never harder.
    time.sleep(0.2)
    # Taken by this thread, so that the main one sleeps on: as when it comes right before the main one goes to sleep.
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

async def wait():
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        await asyncio.Event().wait()
    finally:
        print("woken", flush=True)

try:
    run_interruptibly(wait())
except KeyboardInterrupt:
    print(signal.set_wakeup_fd(-1))
"""


def test_an_interrupt_wakes_a_loop_that_sleeps() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("woken\n-1\n", "")
