"""The client and the command line with a server that requires keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runlane import Client, Forbidden, Unauthorized
from tests.server_process import command, serving, write_tasks


async def test_keys_decide(tmp_path: Path) -> None:
    variables = write_tasks(tmp_path)

    def key(role: str) -> str:
        made = command(tmp_path, "keys", "create", role, "--role", role, "--json", **variables)
        return json.loads(made.stdout)["key"]

    developer, viewer = key("developer"), key("viewer")
    with serving(tmp_path, variables, "serve", "tasks:app", "--worker") as server:
        async with Client(server.url, developer) as client:
            accepted = await client.enqueue("talk", {"count": 1})
            assert [event.type async for event in client.stream(accepted.run_id)][-1] == "done"
        async with Client(server.url, viewer) as client:
            assert (await client.get(accepted.run_id)).result == 1
            with pytest.raises(Forbidden, match="runs:write"):
                await client.enqueue("talk", {"count": 1})
        for wrong in (None, "sk-rl-" + "0" * 64):
            async with Client(server.url, wrong) as client:
                with pytest.raises(Unauthorized, match="API key"):
                    await client.get(accepted.run_id)
                with pytest.raises(Unauthorized):
                    await anext(client.stream(accepted.run_id))
        way = {"RUNLANE_URL": server.url, "RUNLANE_API_KEY": viewer}
        assert accepted.run_id in command(tmp_path, "runs", "list", **way).stdout
        refused = command(tmp_path, "run", "talk", "--input", '{"count": 1}', **way)
        assert (refused.returncode, "Error (forbidden)" in refused.stderr) == (1, True)
        assert viewer not in refused.stderr + refused.stdout
