"""A fake MCP server in separate processes, over streamable HTTP, SSE (the older transport) and stdio.

`FakeMcp` starts the server for HTTP. For stdio, the code under test starts `fake.command`. Both append to one journal
file, which any process can read and which survives a kill. The server listens on loopback only and ends with the
process that started it.
"""

from __future__ import annotations

import argparse
import http.client
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from runlane.testing.local import HOST, LocalServer

MAX_SECONDS = 3600.0
JOURNAL = "journal.jsonl"
CONTROL = "control.json"
READY = "ready"
_CALL_SECONDS = 30


@dataclass(frozen=True, slots=True)
class FakeMcpCall:
    """A tool call as the server received it. `over` is http, sse or stdio."""

    tool: str
    over: str
    pid: int
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    key: str | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])


class FakeMcp(LocalServer):
    """A fake MCP server: `with FakeMcp() as fake: fake.url`.

    It offers the tools echo(text), add(a, b), slow(seconds), fail(message), huge(size), picture(), headers(),
    environment(), once(name), which returns how often it was called for a name, and drop(), which breaks the connection
    instead of responding. Tools are listed in pages of three.
    """

    name = "FakeMcp"
    stop_steps = ((signal.SIGTERM, 10), (signal.SIGKILL, 0))

    def __init__(self, *, max_seconds: float = MAX_SECONDS) -> None:
        super().__init__()
        self._max_seconds = max_seconds

    @property
    def url(self) -> str:
        """The URL for streamable HTTP."""
        return f"http://{HOST}:{self.port}/mcp"

    @property
    def sse_url(self) -> str:
        """The URL for the older transport, SSE."""
        return f"http://{HOST}:{self.port}/sse"

    @property
    def command(self) -> list[str]:
        """The command that starts the server over stdio."""
        return [sys.executable, "-m", "runlane.testing.fake_mcp", "--home", str(self._folder), "--stdio"]

    @property
    def connections(self) -> int:
        """The number of connections of any kind that were opened."""
        return sum(entry["kind"] == "open" for entry in self._entries())

    @property
    def programs(self) -> list[int]:
        """The pids of the servers that were started over stdio, oldest first."""
        return [entry["pid"] for entry in self._entries() if entry["kind"] == "program"]

    def calls(self, tool: str | None = None) -> list[FakeMcpCall]:
        """Return the calls so far, of all tools or of one."""
        entries = [entry for entry in self._entries() if entry["kind"] == "call"]
        calls = [FakeMcpCall(**{key: value for key, value in entry.items() if key != "kind"}) for entry in entries]
        return [call for call in calls if tool in (None, call.tool)]

    def control(
        self,
        *,
        status: int | None = None,
        token: str | None = None,
        legacy: bool = False,
        extra_tools: int = 0,
        odd_name: str | None = None,
        schema_size: int = 0,
    ) -> None:
        """Change the behaviour. Omitted settings are reset to their defaults.

        `status` is the response to every HTTP request, `token` rejects other bearer tokens, `legacy` supports only the
        handshake and sessions of 2025. `extra_tools`, a tool with an `odd_name` and a tool with a schema of
        `schema_size` bytes are offered in addition to the others.
        """
        change = {
            "status": status,
            "token": token,
            "legacy": legacy,
            "extra_tools": extra_tools,
            "odd_name": odd_name,
            "schema_size": schema_size,
        }
        new = self._folder / f"{CONTROL}.new"
        new.write_bytes(orjson.dumps(change))
        new.replace(self._folder / CONTROL)

    def drop(self) -> None:
        """Break all connections over HTTP."""
        link = http.client.HTTPConnection(HOST, self.port, timeout=_CALL_SECONDS)
        try:
            link.request("POST", "/_drop")
            link.getresponse().read()
        finally:
            link.close()

    @property
    def _folder(self) -> Path:
        if self._home is None:
            raise ValueError("The fake MCP server has no folder yet. Call start() first.")
        return self._home

    def _entries(self) -> list[dict[str, Any]]:
        try:
            content = (self._folder / JOURNAL).read_bytes()
        except FileNotFoundError:
            return []
        # A line is written by one call, but a concurrent reader may read only its beginning.
        return [orjson.loads(line) for line in content.rpartition(b"\n")[0].splitlines()]

    def _prepare(self, home: Path) -> None:
        """Do nothing, because the first entry creates the journal."""

    def _command(self, home: Path) -> list[str]:
        command = [sys.executable, "-m", "runlane.testing.fake_mcp", "--home", str(home), "--port", str(self.port)]
        return [*command, "--max-seconds", f"{self._max_seconds:g}"]

    def _ready(self, home: Path) -> bool:
        # The pid distinguishes this server from a server that was killed.
        try:
            return (home / READY).read_text() == str(self.pid)
        except FileNotFoundError:
            return False


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until a signal, the end of the parent process, or the time limit."""
    parser = argparse.ArgumentParser(prog="python -m runlane.testing.fake_mcp", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="a folder for the journal")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--stdio", action="store_true")
    parser.add_argument("--max-seconds", type=float, default=MAX_SECONDS)
    chosen = parser.parse_args(arguments)
    # The library is imported here, so that a test suite that only starts the server does not load it.
    from runlane.testing.fake_mcp_server import serve_http, serve_stdio

    if chosen.stdio:
        serve_stdio(chosen.home)
    else:
        serve_http(chosen.home, chosen.port, chosen.max_seconds)


if __name__ == "__main__":
    main()
