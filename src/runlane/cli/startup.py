"""Responses to probes while a server loads.

The modules of the API take most of the time of a start. Until they are loaded and the database is connected, a thread
accepts connections: it responds to /health and /live with 200 and to /ready with 503. Every other request waits. Its
connection is passed on unread, and the server responds to it.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import threading
from typing import Final

from runlane.version import VERSION

# Beyond this the oldest connection is closed, so that waiting ones cannot block a probe.
MAX_WAITING: Final = 512
_PEEKED_BYTES: Final = 8192


def _response(status: str, body: dict[str, object]) -> bytes:
    content = json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n"
    return f"{head}connection: close\r\n\r\n".encode() + content


_ALIVE: Final = _response("200 OK", {"status": "ok", "version": VERSION, "dev": None})
_RESPONSES: Final = {
    b"/health": _ALIVE,
    b"/live": _ALIVE,
    b"/ready": _response(
        "503 Service Unavailable",
        {
            "status": "not_ready",
            "database": "not connected",
            "schema_revision": None,
            "redis": "not connected",
            "problems": ["starting"],
        },
    ),
}


class StartupResponder:
    """Responds to probes on a listening socket until stop(), which returns the other connections."""

    def __init__(self, listening: socket.socket) -> None:
        self.listening = listening
        self._waiting: dict[socket.socket, None] = {}
        self._stopped, self._stopping = socket.socketpair()
        self._thread = threading.Thread(target=self._respond, name="runlane-startup", daemon=True)

    def start(self) -> None:
        """Accept connections from now on."""
        self.listening.setblocking(False)
        self._thread.start()

    def stop(self) -> list[socket.socket]:
        """Accept no more. Return the connections whose request waits or has not arrived, oldest first."""
        self._stopping.close()
        self._thread.join()
        self._stopped.close()
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting

    def _respond(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._stopped, selectors.EVENT_READ)
            selector.register(self.listening, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._stopped in ready:
                    return
                if self.listening in ready:
                    self._accept(selector)
                for connection in [waiting for waiting in self._waiting if waiting in ready]:
                    self._read(selector, connection)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._close(selector, next(iter(self._waiting)))
        with contextlib.suppress(OSError):
            connection, _ = self.listening.accept()
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ)
            self._waiting[connection] = None

    def _read(self, selector: selectors.BaseSelector, connection: socket.socket) -> None:
        try:
            head = connection.recv(_PEEKED_BYTES, socket.MSG_PEEK)
            response = _RESPONSES.get(_path_of(head))
            if head and response is None:
                # The request is not for this thread, or not complete. The server reads it.
                selector.unregister(connection)
                return
            if response is not None:
                connection.recv(len(head))
                connection.sendall(response)
        except OSError:
            pass  # the client has closed the connection
        self._close(selector, connection)

    def _close(self, selector: selectors.BaseSelector, connection: socket.socket) -> None:
        del self._waiting[connection]
        # A connection whose request waits is not registered.
        with contextlib.suppress(KeyError):
            selector.unregister(connection)
        connection.close()


def _path_of(head: bytes) -> bytes:
    """Return the path of a GET request if exactly its head has arrived, otherwise an empty string."""
    if not head.startswith(b"GET ") or head.find(b"\r\n\r\n") != len(head) - 4:
        return b""
    return head.split(b" ", 2)[1].partition(b"?")[0]
