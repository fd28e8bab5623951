"""What a benchmark's task tells the process that measures: one small datagram with the time it was sent.

Every system's worker imports this module, so it imports nothing that a worker would not have anyway.
"""

import os
import socket
import time

MAILBOX = "BENCH_MAILBOX"
COUNT = "BENCH_COUNT"

_link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
_path = os.environ.get(MAILBOX, "")
_last = int(os.environ.get(COUNT, "0"))
_calls = 0


def post_to(path: str) -> None:
    """Use this mailbox; for a worker that lives in the measuring process."""
    global _path  # noqa: PLW0603 - one mailbox per process by nature
    _path = path


def send(kind: str, key: int) -> None:
    """Tell that something happened now."""
    now = time.time_ns()
    if _path:
        _link.sendto(f"{kind} {key} {os.getpid()} {now}".encode(), _path)


def count() -> None:
    """Count a call; tell of the first one and of the last one that is expected."""
    global _calls  # noqa: PLW0603 - counts the calls of this process
    _calls += 1
    if _calls in (1, _last):
        send("counted", _calls)
