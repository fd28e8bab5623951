"""The port of a server: no other server uses it, even when several start at the same moment."""

from __future__ import annotations

import pytest

from runlane import App
from runlane.api.auth import RequestAccess
from runlane.cli import ports, server_process
from runlane.cli.server_process import ServerOptions
from runlane.errors import ConfigurationError
from tests.harness import settings_for
from tests.server_process import free_port


def test_of_two_dev_servers_each_has_a_port_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "DEFAULT_PORT", free_port())
    # Neither of them serves yet: that comes when database and worker are there.
    with ports.bind("127.0.0.1", None, dev=True) as one, ports.bind("127.0.0.1", None, dev=True) as other:
        assert one.getsockname()[1] == ports.DEFAULT_PORT
        assert other.getsockname()[1] != ports.DEFAULT_PORT


async def test_of_two_servers_on_one_port_the_second_reports_that_it_cannot_serve(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    access = server_process.check_access
    with ports.bind("127.0.0.1", port, dev=False) as quicker:

        async def listen_first(app: App, options: ServerOptions) -> RequestAccess:
            quicker.listen()
            return await access(app, options)

        monkeypatch.setattr(server_process, "check_access", listen_first)
        app = App(settings_for(sqlite_url))
        with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            await server_process.serve_app(app, ServerOptions("127.0.0.1", port))
