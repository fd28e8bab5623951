"""Notify the measuring process from a task: one small datagram with the time it was sent.

The workers of all systems import this module, so it imports only the standard library.
"""

import os
import socket
import time

RECEIVER = "BENCH_RECEIVER"
COUNT = "BENCH_COUNT"

_socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
_path = os.environ.get(RECEIVER, "")
_last = int(os.environ.get(COUNT, "0"))
_calls = 0


def set_receiver(path: str) -> None:
    """Set the receiver, for a worker in the measuring process."""
    global _path  # noqa: PLW0603 - one receiver per process
    _path = path


def send(kind: str, key: int) -> None:
    """Send a notification with the current time."""
    now = time.time_ns()
    if _path:
        _socket.sendto(f"{kind} {key} {os.getpid()} {now}".encode(), _path)


def count() -> None:
    """Count a call, and notify of the first one and of the last expected one."""
    global _calls  # noqa: PLW0603 - counts the calls of this process
    _calls += 1
    if _calls in (1, _last):
        send("counted", _calls)
