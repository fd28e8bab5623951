"""`runlane health`: a probe for containers, which have no other HTTP client."""

from __future__ import annotations

from http.client import HTTPConnection, HTTPException
from typing import Annotated, Final

import typer

from runlane.cli.terminal import write_line

# The default ports of a server and of a worker; this command must start fast, so their modules are not imported.
_PORTS: Final = (8765, 9000)
_SHOWN: Final = 500


def health(
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port of the process. Default: 8765, then 9000, whichever answers."),
    ] = None,
    host: Annotated[str, typer.Option(help="Host of the process.")] = "127.0.0.1",
    ready: Annotated[bool, typer.Option("--ready", help="Check readiness instead of liveness.")] = False,
    timeout_seconds: Annotated[float, typer.Option(min=0.1, max=60, help="How long to wait for the response.")] = 3.0,
) -> None:
    """Exit with code 0 if a server or worker on this machine is alive, otherwise with 1."""
    path = "/ready" if ready else "/health"
    answer = "no answer"
    for wanted in _PORTS if port is None else (port,):
        try:
            status, answer = _ask(host, wanted, path, timeout_seconds)
        except (OSError, HTTPException) as error:
            answer = f"{host}:{wanted}: {error}"
            continue
        write_line(answer)
        raise typer.Exit(0 if status == 200 else 1)
    write_line(answer, err=True)
    raise typer.Exit(1)


def _ask(host: str, port: int, path: str, timeout_seconds: float) -> tuple[int, str]:
    connection = HTTPConnection(host, port, timeout=timeout_seconds)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read(_SHOWN).decode("utf-8", "replace")
    finally:
        connection.close()
