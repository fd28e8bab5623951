"""The port of a server. This module loads nothing else, because a server binds its port before it loads the API."""

from __future__ import annotations

import socket

from runlane.errors import ConfigurationError

DEFAULT_PORT = 8765


def bind(host: str, port: int | None, *, dev: bool) -> socket.socket:
    """Bind the given port. Without one, bind the default port; dev binds a free one if that is taken."""
    wanted = DEFAULT_PORT if port is None else port
    any_port = dev and port is None
    try:
        return _bind(host, wanted, listen=any_port)
    except OSError as error:
        if any_port:
            return _bind(host, 0)
        raise _port_error(host, wanted, error) from None


def listen(bound: socket.socket, host: str) -> None:
    """Listen on the port. If the event loop listened, it would not report that another process listens there."""
    try:
        bound.listen()
    except OSError as error:
        raise _port_error(host, bound.getsockname()[1], error) from None


def _port_error(host: str, port: int, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"The API cannot listen on {host}:{port}: {error.strerror or error}. Choose another with --port."
    )


def _bind(host: str, port: int, *, listen: bool = False) -> socket.socket:
    """Return a socket on this port. Several sockets may be bound to a port; only one can listen."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        if listen:
            bound.listen()
    except OSError:
        bound.close()
        raise
    return bound
