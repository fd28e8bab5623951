"""The port of `runlane dev`: the usual one, or one of its own."""

from __future__ import annotations

import pytest

from runlane.cli import serve
from tests.server_process import free_port


def test_two_that_start_at_the_same_moment_have_ports_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "DEFAULT_PORT", free_port())
    # Neither of them serves yet: that comes when database and worker are there.
    with serve._bind("127.0.0.1", None, dev=True) as one, serve._bind("127.0.0.1", None, dev=True) as other:
        assert one.getsockname()[1] == serve.DEFAULT_PORT
        assert other.getsockname()[1] != serve.DEFAULT_PORT
