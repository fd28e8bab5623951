"""A fake provider in a separate process: real sockets, real wire formats, answers from a script.

`FakeProvider` starts it for a test. From a shell: python -m runlane.testing.fake_provider --port 0 --script FILE. It
listens on loopback only and ends with the process that started it.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from runlane.testing.fake_script import SCRIPT, Answers, FakeAnswer, FakeCall, FakeControl, FakeFault
from runlane.testing.fake_server import FakeServer
from runlane.testing.local import HOST, LocalServer

__all__ = ["FakeAnswer", "FakeCall", "FakeControl", "FakeFault", "FakeProvider", "FakeServer", "main"]

MAX_SECONDS = 3600.0
_CALL_SECONDS = 30
_LOOK_SECONDS = 0.5


class FakeProvider(LocalServer):
    """A fake provider in another process: `with FakeProvider(["Hello."]) as fake: fake.openai_url`."""

    name = "FakeProvider"
    stop_steps = ((signal.SIGTERM, 10), (signal.SIGKILL, 0))

    def __init__(self, answers: Answers, *, max_seconds: float = MAX_SECONDS) -> None:
        super().__init__()
        self._answers = SCRIPT.validate_python(list(answers))
        self._max_seconds = max_seconds

    @property
    def url(self) -> str:
        """The base URL for Anthropic clients (ANTHROPIC_BASE_URL)."""
        return f"http://{HOST}:{self.port}"

    @property
    def openai_url(self) -> str:
        """The base URL for OpenAI clients (OPENAI_BASE_URL)."""
        return f"{self.url}/v1"

    def stats(self) -> dict[str, Any]:
        """Return the number of calls, the maximum of concurrent calls, and the last calls."""
        return self._ask("GET", "/_stats")

    def requests(self, last: int = 50) -> list[dict[str, Any]]:
        """Return the last calls with their bodies, oldest first."""
        return self._ask("GET", f"/_requests?last={last}")

    def control(self, **changes: Any) -> dict[str, Any]:
        """Change the fields of FakeControl. Return the counts."""
        change = FakeControl.model_validate(changes)
        return self._ask("POST", "/_control", change.model_dump_json(exclude_unset=True).encode())

    def _prepare(self, home: Path) -> None:
        (home / "script.json").write_bytes(SCRIPT.dump_json(self._answers))

    def _command(self, home: Path) -> list[str]:
        command = [sys.executable, "-m", "runlane.testing.fake_provider", "--port", str(self.port)]
        return [*command, "--script", str(home / "script.json"), "--max-seconds", f"{self._max_seconds:g}"]

    def _ready(self, home: Path) -> bool:
        # The pid distinguishes this server from another server that has taken the port.
        try:
            return bool(self.stats().get("pid") == self.pid)
        except (OSError, http.client.HTTPException, ValueError):
            return False

    def _ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        link = http.client.HTTPConnection(HOST, self.port, timeout=_CALL_SECONDS)
        try:
            link.request(method, path, body)
            answer = link.getresponse()
            content = answer.read()
        finally:
            link.close()
        if answer.status != 200:
            raise ValueError(f"The fake provider rejected the request: {content.decode(errors='replace')}")
        return orjson.loads(content)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until a signal, the end of the parent process, or the time limit."""
    parser = argparse.ArgumentParser(prog="python -m runlane.testing.fake_provider", description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", type=Path, required=True, help="a JSON file with a list of answers")
    parser.add_argument("--max-seconds", type=float, default=MAX_SECONDS)
    chosen = parser.parse_args(arguments)
    asyncio.run(_run(SCRIPT.validate_json(chosen.script.read_bytes()), chosen.port, chosen.max_seconds))


async def _run(answers: Answers, port: int, max_seconds: float) -> None:
    parent = os.getppid()
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for which in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(which, ended.set)
    async with FakeServer(answers, port) as server:
        sys.stdout.write(orjson.dumps({"pid": os.getpid(), "url": server.url}).decode() + "\n")
        sys.stdout.flush()
        until = loop.time() + max_seconds
        while not ended.is_set() and os.getppid() == parent and loop.time() < until:
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await ended.wait()
            except TimeoutError:
                continue


if __name__ == "__main__":
    main()
