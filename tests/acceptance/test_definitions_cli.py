"""The commands for definitions, as processes: on files, on a database, on a server, and watched by `runlane dev`."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.server_process import ServerProcess, command, serving, write_tasks

HELLO: dict[str, Any] = {
    "id": "hello",
    "steps": [
        {"id": "ask", "type": "agent", "agent_id": "writer", "output_key": "text", "next_step_id": "say"},
        {"id": "say", "type": "print", "print_content": "{state.text}"},
    ],
}
WAIT_SECONDS = 60.0


def write(folder: Path, name: str, content: Any) -> Path:
    path = folder / "definitions" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write(tmp_path, "orchestrations/hello.json", HELLO)
    write(tmp_path, "agents/writer.json", {"id": "writer", "model": "scripted", "answers": ["Hello."]})
    return tmp_path


def json_of(folder: Path, *arguments: str, **variables: str) -> Any:
    done = command(folder, *arguments, "--json", **variables)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


def test_stored_definitions_are_listed_with_versions_and_users(project: Path) -> None:
    json_of(project, "sync")
    first = json_of(project, "definitions", "list", "agents")[0]
    write(project, "agents/writer.json", {"id": "writer", "model": "scripted", "answers": ["Good evening."]})
    json_of(project, "sync")
    in_database = (
        json_of(project, "definitions", "versions", "agents", "writer"),
        json_of(project, "definitions", "used-by", "agents", "writer"),
    )
    newest, oldest = in_database[0]
    assert (newest["current"], oldest["version"]) == (True, first["version"])
    assert [item["id"] for item in in_database[1]] == ["hello"]
    shown = command(project, "definitions", "show", "agents", "writer", "--version", oldest["version"])
    assert json.loads(shown.stdout)["answers"] == ["Hello."]
    missing = command(project, "definitions", "used-by", "agents", "wirter")
    assert missing.returncode == 1
    assert 'did you mean "writer"' in missing.stderr
    with serving(project, {}, "dev"):
        on_server = (
            json_of(project, "definitions", "versions", "agents", "writer"),
            json_of(project, "definitions", "used-by", "agents", "writer"),
        )
        assert on_server == in_database
        assert [item["id"] for item in json_of(project, "definitions", "list", "agents")] == ["writer"]
        assert "Good evening." in command(project, "definitions", "show", "agents", "writer").stdout


def test_validate_reports_every_problem(project: Path) -> None:
    done = command(project, "validate")
    assert (done.returncode, done.stdout) == (0, "definitions: 2 definitions, 0 warnings, no errors.\n")
    write(project, "agents/writer.json", {"id": "writer", "tols": []})
    write(project, "agents/odd.json", '{"id": "odd",')
    done = command(project, "validate")
    assert done.returncode == 1
    printed = done.stdout.splitlines()
    assert printed[0].startswith("error: agents/odd.json: Line 1, column ")
    assert printed[1].startswith('error: agents/writer.json: agent "writer", field tols: Unknown field (did you')
    assert printed[-1] == "definitions: 2 errors, 0 warnings."
    found = command(project, "validate", "--json")
    assert found.returncode == 1
    problems = json.loads(found.stdout)["problems"]
    assert [(item["file"], item["kind"], item["id"], item["field"]) for item in problems] == [
        ("agents/odd.json", None, None, None),
        ("agents/writer.json", "agent", "writer", "tols"),
    ]


def test_validate_warns_of_what_fails_in_a_run(project: Path) -> None:
    write(project, "agents/writer.json", {"id": "writer", "model": "acme:large"})
    write(project, "tools/local.json", {"name": "local", "url": "http://10.0.0.1:8080/x"})
    done = command(project, "validate")
    assert done.returncode == 0
    printed = done.stdout.splitlines()
    assert printed[0].startswith('warning: agents/writer.json: agent "writer", field model: The model "acme:large" has')
    assert printed[1].startswith('warning: tools/local.json: tool "local", field url: Calls to "10.0.0.1" are refused')
    assert printed[-1] == "definitions: 3 definitions, 2 warnings, no errors."
    assert command(project, "validate", "--strict").returncode == 1
    assert command(project, "validate", "--strict", "--json").returncode == 1
    known = {
        "RUNLANE_PROVIDERS": '{"acme": {"base_url": "https://llm.example"}}',
        "RUNLANE_OUTBOUND_ALLOW": "10.0.0.0/8",
    }
    assert command(project, "validate", "--strict", **known).returncode == 0
    synced = command(project, "sync")
    assert (synced.returncode, synced.stderr.count("warning: ")) == (0, 2)


def test_conditions_are_checked_by_validate_sync_and_import(project: Path) -> None:
    choose = {"id": "choose", "type": "if_else", "if_condition": "state.txt == 'x'", "if_true_step_id": "say"}
    write(project, "orchestrations/hello.json", {**HELLO, "steps": [*HELLO["steps"], choose]})
    expected = 'step "choose", field if_condition: "state.txt" is never set (did you mean "text"?)'
    done = command(project, "validate")
    assert (done.returncode, expected in done.stdout) == (1, True)
    done = command(project, "sync")
    assert (done.returncode, expected in done.stderr) == (1, True)
    bundle = {"runlane_export": True, "orchestrations": [{**HELLO, "steps": [*HELLO["steps"], choose]}]}
    (project / "bundle.json").write_text(json.dumps(bundle))
    done = command(project, "bundle", "import", "bundle.json")
    assert done.returncode == 0
    assert '"state.txt" is never set (did you mean "text"?)' in done.stderr


def test_validate_checks_the_tasks_of_an_app(project: Path) -> None:
    write_tasks(project)
    write(project, "orchestrations/t.json", {"id": "t", "steps": [{"id": "s", "type": "task", "task": "tlk"}]})
    assert command(project, "validate").returncode == 0
    done = command(project, "validate", "--app", "tasks:app")
    assert done.returncode == 1
    assert 'No task "tlk" is registered (did you mean "talk"?)' in done.stdout
    assert command(project, "sync", "--app", "tasks:app").returncode == 1


def test_another_folder_can_be_named(project: Path) -> None:
    (project / "definitions").rename(project / "flows")
    done = command(project, "validate")
    assert done.returncode == 1
    assert "The folder does not exist. Name it with --dir or RUNLANE_DEFINITIONS_DIR" in done.stdout
    assert command(project, "validate", "--dir", "flows").returncode == 0
    assert command(project, "validate", RUNLANE_DEFINITIONS_DIR="flows").returncode == 0


def test_sync_on_the_database(project: Path) -> None:
    tried = json_of(project, "sync", "--dry-run")
    assert (tried["dry_run"], tried["added"]) == (True, 2)
    done = command(project, "sync")
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        ["added", "agent:writer"],
        ["added", "orchestration:hello"],
        ["2", "added,"],
    ]
    write(project, "agents/writer.json", {"id": "writer", "model": "scripted", "name": "W"})
    write(project, "agents/extra.json", {"id": "extra", "name": "E"})
    assert json_of(project, "sync")["changed"] == 1
    (project / "definitions/agents/extra.json").unlink()
    done = command(project, "sync")
    assert "0 removed" in done.stdout
    assert "No longer in the folder, kept: agent:extra. Remove with: runlane sync --prune" in done.stderr
    assert json_of(project, "sync", "--prune")["removed"] == 1
    (project / "definitions/agents/writer.json").unlink()
    done = command(project, "sync", "--prune")
    assert done.returncode == 1
    location = 'error: orchestrations/hello.json: orchestration "hello", step "ask", field agent_id'
    assert f'{location}: The agent "writer" does not exist' in done.stderr
    assert "1 error; nothing was changed." in done.stderr
    (project / "definitions/orchestrations/hello.json").unlink()
    done = command(project, "sync")
    assert done.returncode == 1
    assert "definitions contains no definitions" in done.stderr
    entries = json_of(project, "audit", "list", "--action", "definitions.sync")
    assert len(entries) == 3
    assert all(entry["actor"].startswith("cli") for entry in entries)


def test_two_projects_share_a_database(tmp_path: Path) -> None:
    shared = {"RUNLANE_DATABASE_URL": f"sqlite:///{tmp_path}/shared.db"}
    shop, news = tmp_path / "shop", tmp_path / "news"
    write(shop, "agents/clerk.json", {"id": "clerk"})
    write(news, "agents/writer.json", {"id": "writer"})
    assert json_of(shop, "sync", "--prune", **shared)["source"] == "shop"
    assert json_of(news, "sync", "--prune", **shared)["removed"] == 0
    write(news, "agents/clerk.json", {"id": "clerk", "name": "Mine"})
    done = command(news, "sync", **shared)
    assert done.returncode == 1
    assert 'agent:clerk (source "shop")' in done.stderr
    assert "--take-over" in done.stderr
    assert json_of(news, "sync", "--take-over", **shared)["changed"] == 1
    assert json_of(shop, "sync", "--source", "news", "--prune", "--dry-run", **shared)["removed"] == 1
    named = json_of(shop, "sync", "--dry-run", "--take-over", RUNLANE_DEFINITIONS_SOURCE="store", **shared)
    assert named["source"] == "store"


def test_warnings_do_not_stop_a_sync(project: Path) -> None:
    write(project, "orchestrations/odd.json", {"id": "odd", "steps": [{"id": "s", "type": "end", "agent_id": None}]})
    done = command(project, "sync")
    assert done.returncode == 0
    assert done.stderr.count("Ignored, because they are not used: agent_id.") == 1
    assert len(json_of(project, "sync")["warnings"]) == 1


def test_graphs(project: Path) -> None:
    done = command(project, "graph", "hello")
    assert done.stdout.startswith("flowchart TD\n")
    drawn = command(project, "graph", "hello", "--svg", "--out", "hello.svg")
    assert drawn.stdout == "Wrote hello.svg.\n"
    assert (project / "hello.svg").read_text().startswith("<svg ")
    missing = command(project, "graph", "helo")
    assert missing.returncode == 1
    assert 'The orchestration "helo" does not exist (did you mean "hello"?)' in missing.stderr
    command(project, "sync")
    (project / "definitions").rename(project / "gone")
    assert command(project, "graph", "hello").stdout == done.stdout
    assert command(project, "graph", "helo").returncode == 1
    write(project, "orchestrations/bad.json", {"id": "bad", "steps": [{"id": "s", "type": "nope"}]})
    bad = command(project, "graph", "bad")
    assert bad.returncode == 1
    assert "'nope' is not a step type" in bad.stderr


def test_schemas(tmp_path: Path) -> None:
    assert json.loads(command(tmp_path, "schema", "agent").stdout)["$id"] == "urn:runlane:agent"
    assert json.loads(command(tmp_path, "schema", "mcp-servers").stdout)["$id"] == "urn:runlane:mcp_server"
    kinds = {"orchestration", "agent", "tool", "mcp_server", "schedule", "trigger"}
    assert set(json.loads(command(tmp_path, "schema").stdout)) == kinds
    done = command(tmp_path, "schema", "agnt")
    assert done.returncode == 1
    assert 'did you mean "agent"' in done.stderr


def test_bundles(project: Path) -> None:
    command(project, "sync")
    done = command(project, "bundle", "export", "hello", "--out", "b.json")
    assert (
        done.stdout
        == "Wrote b.json: 1 orchestrations, 1 agents, 0 custom_tools, 0 mcp_servers, 0 schedules, 0 triggers.\n"
    )
    assert json.loads(command(project, "bundle", "export", "hello", "--alone").stdout)["agents"] == []
    assert command(project, "bundle", "export", "helo").returncode == 1
    other = {"RUNLANE_DATABASE_URL": f"sqlite:///{project}/other.db"}
    report = json_of(project, "bundle", "import", "b.json", "--only", "agent:writer", **other)
    assert [(item["id"], item["status"]) for item in report["items"]] == [("writer", "imported")]
    done = command(project, "bundle", "import", "-", given=(project / "b.json").read_text(), **other)
    assert done.stdout.splitlines() == [
        "unchanged  agent:writer",
        "imported   orchestration:hello",
        "1 imported, 1 unchanged, 0 skipped.",
    ]
    bundle: dict[str, Any] = {
        "synapse_export": True,
        "orchestrations": [{"id": "bad", "steps": []}, {**HELLO, "id": "loose"}],
        "mcp_servers": [{"name": "github", "url": "https://example.com", "token": "xxxxxxxxx"}],
    }
    (project / "theirs.json").write_text(json.dumps(bundle))
    done = command(project, "bundle", "import", "theirs.json", RUNLANE_DATABASE_URL=f"sqlite:///{project}/third.db")
    assert done.returncode == 1
    assert "skipped    orchestration:bad  field steps: List should have at least 1 item" in done.stdout
    assert "needs the secret GITHUB_TOKEN: mcp_server:github, token" in done.stdout
    assert 'warning: orchestration:loose, step "ask": The agent "writer" does not exist.' in done.stderr
    for arguments, expected in (
        (("none.json",), "none.json cannot be read"),
        (("tasks.py",), "is not JSON"),
        (("b.json", "--only", "agents:x"), 'did you mean "agent"'),
        (("definitions/agents/writer.json",), "This is not a bundle"),
    ):
        write_tasks(project)
        done = command(project, "bundle", "import", *arguments)
        assert done.returncode == 1
        assert expected in done.stderr


@pytest.fixture
def watched(project: Path) -> Generator[tuple[Path, ServerProcess]]:
    """A folder that `runlane dev` watches."""
    variables = write_tasks(project)
    with serving(project, variables, "dev", "tasks:app") as server:
        yield project, server


def log_of(folder: Path, server: ServerProcess) -> str:
    return (folder / f"server-{server.port}.log").read_text()


def wait_for(folder: Path, server: ServerProcess, words: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while words not in log_of(folder, server):
        assert time.monotonic() < deadline, log_of(folder, server)
        time.sleep(0.05)


def test_dev_follows_the_folder(watched: tuple[Path, ServerProcess]) -> None:
    folder, server = watched
    wait_for(folder, server, "added=['agent:writer', 'orchestration:hello']")
    assert command(folder, "graph", "hello", "--url", server.url).stdout.startswith("flowchart TD\n")
    write(folder, "agents/second.json", {"id": "second"})
    wait_for(folder, server, "added=['agent:second']")
    write(folder, "agents/second.json", '{"id": "second", ')
    wait_for(folder, server, "definition_wrong")
    wait_for(folder, server, "place=agents/second.json")
    write(folder, "agents/second.json", {"id": "second", "delegate_agent_ids": ["unknown"]})
    wait_for(folder, server, 'The agent "unknown" does not exist')
    write(folder, "agents/second.json", {"id": "second", "name": "Second"})
    wait_for(folder, server, "changed=['agent:second']")
    (folder / "definitions/agents/second.json").unlink()
    wait_for(folder, server, "removed=['agent:second']")
    entries = json_of(
        folder, "audit", "list", "--action", "definitions.sync", RUNLANE_DATABASE_URL=f"sqlite:///{folder}/runlane.db"
    )
    assert {entry["actor"] for entry in entries} == {"dev"}


def test_sync_and_bundles_on_a_server(
    watched: tuple[Path, ServerProcess], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, server = watched
    wait_for(folder, server, "definitions_synced")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    write(elsewhere, "agents/third.json", {"id": "third"})
    report = json_of(elsewhere, "sync", "--url", server.url)
    assert [(item["id"], item["change"]) for item in report["items"]] == [("third", "added")]
    write(elsewhere, "agents/third.json", {"id": "third", "delegate_agent_ids": ["unknown"]})
    done = command(elsewhere, "sync", RUNLANE_URL=server.url)
    assert done.returncode == 1
    assert (
        'error: agents/third.json: agent "third", field delegate_agent_ids: The agent "unknown" does not exist'
        in done.stderr
    )
    done = command(elsewhere, "bundle", "export", "hello", "--out", "b.json", "--url", server.url)
    assert done.returncode == 0, done.stderr
    report = json_of(elsewhere, "bundle", "import", "b.json", "--only", "agent:writer", "--url", server.url)
    assert [(item["id"], item["status"]) for item in report["items"]] == [("writer", "unchanged")]


def test_dev_refuses_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    write_tasks(tmp_path)
    done = command(tmp_path, "dev", "tasks:app", "--definitions", "nowhere", "--port", "0")
    assert done.returncode == 1
    assert "The folder nowhere does not exist. Check --definitions." in done.stderr


SHOP: dict[str, Any] = {
    "openapi": "3.0.0",
    "servers": [{"url": "https://shop.example"}],
    "paths": {
        "/orders": {"get": {"operationId": "orders"}, "head": {}},
        "/orders/{id}": {"delete": {"parameters": [{"name": "id", "in": "path", "schema": {"type": "integer"}}]}},
    },
}


def test_tools_from_a_description(tmp_path: Path) -> None:
    (tmp_path / "shop.json").write_text(json.dumps(SHOP))
    order = ("tools", "import-openapi", "shop.json", "--prefix", "shop_", "--header", "X-Key: {secret.SHOP}")
    tried = command(tmp_path, *order, "--dry-run")
    assert tried.returncode == 0, tried.stderr
    assert tried.stdout.splitlines()[-1] == "Would be in definitions/tools: 2 written, 0 unchanged, 0 kept, 1 left out."
    assert not (tmp_path / "definitions").exists()
    done = command(tmp_path, *order)
    assert done.stdout.splitlines() == [
        "written    shop_orders",
        "written    shop_delete_orders_id",
        "definitions/tools: 2 written, 0 unchanged, 0 kept, 1 left out.",
    ]
    assert done.stderr == "left out: HEAD /orders: HEAD returns no content for a tool.\n"
    assert command(tmp_path, "validate").stdout == "definitions: 2 definitions, 0 warnings, no errors.\n"
    path = tmp_path / "definitions" / "tools" / "shop_orders.json"
    assert json.loads(path.read_text())["headers"] == {"X-Key": "{secret.SHOP}"}
    assert [item["state"] for item in json_of(tmp_path, *order)["tools"]] == ["unchanged", "unchanged"]
    path.write_text("{}")
    kept = command(tmp_path, *order)
    assert (kept.returncode, path.read_text()) == (1, "{}")
    assert "Kept as they are: shop_orders. --overwrite replaces them." in kept.stderr
    assert command(tmp_path, *order, "--overwrite", "--base-url", "http://127.0.0.1:1").returncode == 0
    assert json.loads(path.read_text())["url"] == "http://127.0.0.1:1/orders"


def test_invalid_descriptions_are_reported(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text("openapi: 3.0.0")
    done = command(tmp_path, "tools", "import-openapi", "shop.yaml")
    assert done.returncode == 1
    assert "shop.yaml is not JSON (line 1, column 1" in done.stderr
    assert "Convert a description in YAML to JSON first." in done.stderr
    (tmp_path / "shop.json").write_text(json.dumps(SHOP))
    for words, expected in (
        (("gone.json",), "gone.json cannot be read"),
        (("shop.json", "--header", "nothing"), "A header is written"),
        (("shop.json", "--header", "Authorization: Bearer abcdefghijkl"), "looks like a credential"),
    ):
        done = command(tmp_path, "tools", "import-openapi", *words)
        assert done.returncode == 1
        assert expected in done.stderr
        assert "abcdefghijkl" not in done.stderr
    assert not (tmp_path / "definitions").exists()
