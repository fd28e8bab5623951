"""Probes are answered while a server loads, and other requests reach the server unread."""

from __future__ import annotations

import json
import socket
from collections.abc import Generator
from contextlib import closing

import pytest

from runlane.cli import startup
from runlane.cli.startup import StartupResponder

REQUEST = b"POST /api/v2/tasks/add/run HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}"


@pytest.fixture
def responder() -> Generator[StartupResponder]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        responder = StartupResponder(listening)
        responder.start()
        yield responder
        for connection in responder.stop():
            connection.close()


def connect(responder: StartupResponder, sent: bytes = b"") -> socket.socket:
    client = socket.create_connection(responder.listening.getsockname(), timeout=60)
    client.sendall(sent)
    return client


def ask(responder: StartupResponder, request_line: str) -> tuple[int, dict[str, object]]:
    """Send a request and return the status and the body of the whole response."""
    with connect(responder, f"{request_line} HTTP/1.1\r\nhost: a\r\n\r\n".encode()) as client:
        head, _, body = b"".join(iter(lambda: client.recv(4096), b"")).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize("path", ["/health", "/health?a=b", "/live"])
def test_health_is_answered_while_the_server_loads(responder: StartupResponder, path: str) -> None:
    status, body = ask(responder, f"GET {path}")
    assert (status, body["status"]) == (200, "ok")


def test_a_server_that_loads_is_not_ready(responder: StartupResponder) -> None:
    status, body = ask(responder, "GET /ready")
    assert (status, body["status"], body["problems"]) == (503, "not_ready", ["starting"])


@pytest.mark.parametrize(
    "sent",
    [REQUEST, b"GET /health", b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n" * 2, b"HEAD /health HTTP/1.1\r\n\r\n", b""],
    ids=["another", "incomplete", "two requests", "another method", "nothing"],
)
def test_the_server_gets_every_other_connection_unread(responder: StartupResponder, sent: bytes) -> None:
    with connect(responder, sent) as client:
        # A connection that was opened later is answered, so this one has been read.
        assert ask(responder, "GET /health")[0] == 200
        (waiting,) = responder.stop()
        with closing(waiting):
            assert waiting.getpeername() == client.getsockname()
            waiting.setblocking(True)
            assert sent == (waiting.recv(4096) if sent else b"")


def test_a_client_that_disconnects_is_forgotten(responder: StartupResponder) -> None:
    connect(responder).close()
    assert ask(responder, "GET /health")[0] == 200
    assert responder.stop() == []


def test_waiting_connections_do_not_block_a_probe(responder: StartupResponder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "MAX_WAITING", 2)
    first, second = connect(responder, REQUEST), connect(responder, REQUEST)
    with first, second:
        assert ask(responder, "GET /health")[0] == 200
        # The oldest connection made room.
        with pytest.raises(ConnectionResetError):
            first.recv(1)
        (waiting,) = responder.stop()
        assert waiting.getpeername() == second.getsockname()
        waiting.close()


def test_stopping_twice_is_harmless(responder: StartupResponder) -> None:
    assert responder.stop() == []
    assert responder.stop() == []
