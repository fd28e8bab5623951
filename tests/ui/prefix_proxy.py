"""A proxy that publishes a server below a path, as nginx does with or without a slash at the end of `proxy_pass`."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Final, cast

PREFIX: Final = "/tools/runlane"
_CHUNK: Final = 65_536


class PrefixProxy(socketserver.ThreadingTCPServer):
    """Forwards requests below the prefix and answers 404 to all others, which it remembers."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, upstream: int, *, strips: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.upstream = upstream
        self.strips = strips
        self.outside: list[str] = []

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Connection(socketserver.StreamRequestHandler):
    """One request: each connection ends with its answer, so an answer may be a stream."""

    def handle(self) -> None:
        proxy = cast("PrefixProxy", self.server)
        line = self.rfile.readline().decode("latin-1").split(" ")
        headers: list[str] = []
        while (header := self.rfile.readline().decode("latin-1").strip()) != "":
            headers.append(header)
        if len(line) != 3:
            return
        method, path, version = line
        if path != PREFIX and not path.startswith(f"{PREFIX}/"):
            proxy.outside.append(path)
            self.wfile.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return
        if proxy.strips:
            path = path.removeprefix(PREFIX) or "/"
            headers.append(f"X-Forwarded-Prefix: {PREFIX}")
        kept = [header for header in headers if not header.lower().startswith("connection:")]
        kept += ["X-Forwarded-Proto: http", f"X-Forwarded-For: {self.client_address[0]}", "Connection: close"]
        lengths = [header.split(":")[1] for header in headers if header.lower().startswith("content-length:")]
        body = self.rfile.read(int(lengths[0])) if lengths else b""
        with socket.create_connection(("127.0.0.1", proxy.upstream)) as upstream:
            upstream.sendall(f"{method} {path} {version}".encode("latin-1") + "\r\n".join([*kept, "", ""]).encode())
            upstream.sendall(body)
            # A browser that has left ends the copy.
            with suppress(ConnectionError):
                while data := upstream.recv(_CHUNK):
                    self.wfile.write(data)


@contextmanager
def publishing(upstream: int, *, strips: bool) -> Generator[PrefixProxy]:
    """Publish a server of this machine below the prefix until the end of the block."""
    with PrefixProxy(upstream, strips=strips) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
