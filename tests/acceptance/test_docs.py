"""The documentation is true: its code runs, its commands exist, its links lead somewhere, nothing public is left out.

A fence's words after the language say what a block is: `run` executes it in a temporary folder on the embedded file,
`file=name` writes it there first, `cwd=folder` starts from a copy of a folder of ours, `worker=module:app` keeps a
worker running meanwhile, `server=module:app` a server. Shell blocks with a server are executed as well. Every other
Python block is compiled, and every other command is parsed. A JSON block says its `kind`, a kind of definition, a step
or a bundle, and is parsed and checked together with the others of its page; one with `run` is also executed, with
`message`, `answer` if it asks, and until `result`.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import typer.main
from pydantic import SecretStr, TypeAdapter
from typer.testing import CliRunner

import runlane
from runlane import App, Client, Context, Interrupted, Run, RunlaneError, Settings, Status, errors, testing
from runlane.api.server import build_api
from runlane.catalog.bundle_format import unpack
from runlane.catalog.sync import sync_definitions
from runlane.cli.commands import cli, load_command
from runlane.definitions.files import FOLDERS
from runlane.definitions.loader import LoadedDefinitions, check_loaded, parse_bodies
from runlane.definitions.schema.definition import KINDS, Kind
from runlane.definitions.schema.step import Step
from runlane.domain.events import EventType
from runlane.domain.options import RunOptions, TaskOptions
from runlane.settings import CLIENT_VARIABLES, variable_of
from runlane.testing.binaries import find_postgres
from tests import forking
from tests.cli_commands import leaf_commands
from tests.harness import eventually
from tests.server_process import environment, serving

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# The web chat's test installs packages, which have pages of their own.
_EXAMPLES = [page for page in (ROOT / "examples").rglob("*.md") if "node_modules" not in page.parts]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md"), *_EXAMPLES])
COMMAND: Any = typer.main.get_command(cli)
READ_ONLY = ("runs list", "lanes list", "workers", "db current", "dead-letters list")


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    words: dict[str, str]
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    language, words, first, lines = "", dict[str, str](), 0, list[str]()
    inside = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if not line.startswith("```"):
            if inside:
                lines.append(line)
            continue
        if inside:
            yield Block(page, first, language, words, "\n".join(lines) + "\n")
        else:
            language, *rest = shlex.split(line.removeprefix("```")) or [""]
            words = {key: value for key, _, value in (word.partition("=") for word in rest)}
            first, lines = number, []
        inside = not inside
    assert not inside, f"{page}: a code block does not end"


@cache
def described_paths() -> dict[str, Any]:
    """Return the paths of the API's description, which takes seconds of computing: not while tests are collected."""
    return build_api(App()).openapi()["paths"]


BLOCKS = [block for page in PAGES for block in blocks(page)]
JSON = [block for block in BLOCKS if block.language == "json"]
PYTHON = [block for block in BLOCKS if block.language == "python"]
SERVED = [block for block in BLOCKS if block.language == "sh" and "server" in block.words]
SHELL_LINES = [
    (block, line.split("#")[0].strip())
    for block in BLOCKS
    # A script that is written to a file is executed by the test of its page.
    if block.language == "sh" and "file" not in block.words
    for line in block.text.splitlines()
    if line.split("#")[0].strip()
]
COMMAND_LINES = [(block, line) for block, line in SHELL_LINES if line.startswith("runlane ")]


def test_code_blocks_are_of_a_kind_that_is_checked() -> None:
    assert {block.language for block in BLOCKS} <= {"python", "sh", "json", "mermaid", "text"}
    assert {block.words.get("kind") for block in JSON} <= {*KINDS, "step", "bundle"}
    assert len([block for block in JSON if "run" in block.words]) >= 5


@pytest.mark.parametrize("block", JSON, ids=str)
def test_json_blocks_are_definitions_without_a_flaw(block: Block) -> None:
    if block.words["kind"] == "step":
        step = TypeAdapter[Any](Step).validate_json(block.text)
        assert step.type == json.loads(block.text)["type"]
        return
    if block.words["kind"] == "bundle":
        unpacked = unpack(json.loads(block.text))
        assert (unpacked.skipped, list(unpacked.loaded.problems)) == ([], [])
        return
    loaded = _definitions(block)
    assert [str(problem) for problem in loaded.problems] == []
    assert len(loaded.definitions) == 1


async def test_json_blocks_that_are_to_run_do(tmp_path: Path) -> None:
    app = App(Settings(database_url=SecretStr(f"sqlite:///{tmp_path / 'runlane.db'}")))
    async with app:
        worker = await app.worker()
        await worker.start()
        try:
            for block in JSON:
                if "run" in block.words:
                    await _run_definition(app, block)
        finally:
            await worker.stop()


def _definitions(block: Block) -> LoadedDefinitions:
    """Return the block's definition, checked among the others of its page."""
    others = [
        (parsed.definition, other)
        for other in JSON
        if other.page == block.page and other.words["kind"] in KINDS
        for parsed in _parsed(other).definitions
    ]
    return check_loaded(_parsed(block), [definition for definition, other in others if other is not block])


def _parsed(block: Block) -> LoadedDefinitions:
    folders = {kind: folder for folder, kind in FOLDERS.items()}
    return parse_bodies({folders[cast("Kind", block.words["kind"])]: [json.loads(block.text)]})


async def _run_definition(app: App, block: Block) -> None:
    database = await app.database()
    page = [other for other in JSON if other.page == block.page and other.words["kind"] in KINDS]
    bodies: dict[str, list[Any]] = {}
    for other in page:
        folder = next(folder for folder, kind in FOLDERS.items() if kind == other.words["kind"])
        bodies.setdefault(folder, []).append(json.loads(other.text))
    await sync_definitions(database, "default", parse_bodies(bodies), actor="docs", remove_missing=True)
    accepted = await app.orchestrate(json.loads(block.text)["id"], block.words.get("message", ""))
    if "answer" in block.words:
        await eventually(lambda: _has_question(app, accepted.run_id), f"the question of {block}")
        await app.resume(accepted.run_id, json.loads(block.words["answer"]))
    run = await app.wait(accepted.run_id, timeout=60)
    assert run.status is Status.COMPLETED, f"{block}: {run.error}"
    assert run.result == block.words["result"], str(block)


async def _has_question(app: App, run_id: str) -> bool:
    return (await app.get(run_id)).status is Status.PAUSED


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_blocks_compile(block: Block) -> None:
    compile(block.text, str(block), "exec")


def test_the_page_of_the_shop_shows_its_code() -> None:
    shop = ROOT / "examples" / "shop"
    tasks = (shop / "shop" / "tasks.py").read_text()
    assert tasks in [block.text for block in PYTHON if block.page == shop / "README.md"]


@pytest.mark.parametrize(
    "page", sorted({block.page for block in PYTHON if "run" in block.words}), ids=lambda page: page.name
)
def test_runnable_blocks_run(page: Path, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    mine = [block for block in PYTHON if block.page == page]
    for start_from in {block.words["cwd"] for block in mine if "cwd" in block.words}:
        shutil.copytree(ROOT / start_from, folder, ignore=shutil.ignore_patterns(".runlane", "__pycache__"))
    folder.mkdir(exist_ok=True)
    for block in mine:
        if "file" in block.words:
            (folder / block.words["file"]).write_text(block.text)
    for block in mine:
        if "run" in block.words:
            with _worker(folder, block.words.get("worker")), _server(folder, block.words.get("server")) as variables:
                done = _python(folder, "-c", block.text, **variables)
            assert done.returncode == 0, f"{block}:\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", sorted({block.page for block in SERVED}), ids=lambda page: page.name)
def test_shell_blocks_with_a_server_run(page: Path, tmp_path: Path) -> None:
    mine = [block for block in SERVED if block.page == page]
    for block in PYTHON:
        if block.page == page and "file" in block.words:
            (tmp_path / block.words["file"]).write_text(block.text)
    with _server(tmp_path, mine[0].words["server"]) as variables:
        for block in mine:
            for line in block.text.splitlines():
                words = shlex.split(line.replace("http://127.0.0.1:8765", variables["RUNLANE_URL"]))
                if words[0] == "runlane":
                    words = [sys.executable, "-m", *words]
                done = forking.run(
                    [*words, "-f"] if words[0] == "curl" else words,
                    cwd=tmp_path,
                    env=environment(**variables),
                    capture_output=True,
                    text=True,
                    timeout=500,
                    check=False,
                )
                assert done.returncode == 0, f"{block}: {line}\n{done.stdout}{done.stderr}"


def test_the_tutorial_quotes_the_error_that_it_provokes(tmp_path: Path) -> None:
    page = DOCS / "tutorial" / "first-run.md"
    tasks, mistake = (next(b for b in PYTHON if b.page == page and wanted in b.text) for wanted in ("sleep", "Invalid"))
    (tmp_path / tasks.words["file"]).write_text(tasks.text)
    printed = _python(tmp_path, "-c", mistake.text).stdout.strip()
    assert printed
    assert printed in " ".join(page.read_text().split())


@pytest.mark.parametrize(("block", "line"), COMMAND_LINES, ids=str)
def test_commands_parse(block: Block, line: str) -> None:
    command, name, arguments = _resolve(shlex.split(line)[1:])
    assert command is not None, f"{block}: no command in {line!r}"
    command.make_context(name, arguments)


def test_other_shell_lines_name_things_that_exist() -> None:
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None
    for block, line in SHELL_LINES:
        match shlex.split(line):
            case ["runlane", *_] | ["pip", "install", ".[all]"] | ["kill", "-9", _]:
                pass
            case ["pg_dump" | "pg_restore" | "createdb" as program, *_]:
                assert (find_postgres() / program).exists(), f"{block}: {line}"
            case ["make", target, *arguments]:
                assert target in targets[1].split(), f"{block}: {line}"
                assert all(argument.startswith("ARGS=") for argument in arguments), f"{block}: {line}"
            case ["python", file]:
                assert (block.page.parent / file).exists(), f"{block}: {line}"
            case ["curl", *words]:
                url = next(word for word in words if word.startswith("http"))
                assert _path_exists(url.partition("127.0.0.1:8765")[2].partition("?")[0]), f"{block}: {line}"
            case ["export", assignment]:
                _check_variable(assignment.partition("=")[0], block)
            case _:
                pytest.fail(f"{block}: no check exists for {line!r}")


def test_reading_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNLANE_DATABASE_URL", raising=False)
    lines = {line.removeprefix("runlane ") for _, line in COMMAND_LINES}
    reading = sorted(line for line in lines if line.startswith(READ_ONLY))
    assert len(reading) >= len(READ_ONLY)
    assert CliRunner().invoke(cli, ["db", "upgrade"]).exit_code == 0
    for line in reading:
        result = CliRunner().invoke(cli, shlex.split(line))
        assert result.exit_code == 0, f"runlane {line}: {result.output} {result.exception}"


def test_commands_and_variables_in_prose_exist() -> None:
    for page in PAGES:
        for code in re.findall(r"`([^`\n]+)`", _without_blocks(page)):
            if code.startswith("runlane ") and len(code.split()) > 1:
                command, _, rest = _resolve(code.split()[1:])
                assert command is not None, f"{page.name}: no such command: {code}"
                known = {option for parameter in command.params for option in _options(parameter)}
                unknown = [word for word in rest if word.startswith("--") and word not in known | {"--help"}]
                assert not unknown, f"{page.name}: {code}: {unknown}"
            for variable in re.findall(r"\bRUNLANE_[A-Z_]+[A-Z]\b", code):
                _check_variable(variable, page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in _links(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in _anchors(file), f"{page.name}: {target}"


def test_every_page_can_be_reached() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        waiting += [(page.parent / target.partition("#")[0]).resolve() for target in _links(page)]
    assert [page for page in PAGES if page not in seen] == []


def test_every_setting_is_documented_as_it_is() -> None:
    page = (DOCS / "reference" / "settings.md").read_text()
    for name, field in Settings.model_fields.items():
        default = _default(field.get_default(call_default_factory=True))
        row = f"| `{variable_of(name)}` | {default} | {field.description} |"
        assert row in page, f"settings.md lacks: {row}"


def test_every_command_and_option_is_documented() -> None:
    page = (DOCS / "reference" / "cli.md").read_text()
    for path, command in leaf_commands():
        assert f"`runlane {' '.join(path)}" in page, f"cli.md lacks: runlane {' '.join(path)}"
        for parameter in command.params:
            for option in _options(parameter):
                assert f"{option}" in page, f"cli.md lacks: runlane {' '.join(path)} {option}"


def test_every_endpoint_is_documented_and_nothing_else_is() -> None:
    page = "".join((DOCS / "reference" / name).read_text() for name in ("http-api.md", "agent-server.md"))
    documented = set(re.findall(r"`(GET|POST|PUT|PATCH|DELETE) (/[^`?]*)`", page))
    real = {
        (method.upper(), path)
        for path, methods in described_paths().items()
        for method in methods
        if not path.startswith("/api/v2/orchestrations/runs/")
    }
    assert documented == real


def test_every_endpoint_that_a_page_names_exists() -> None:
    routes = [
        (method.upper(), re.compile(re.sub(r"\{[^}]*\}", "[^/]+", path)))
        for path, methods in described_paths().items()
        for method in methods
    ]
    for page in PAGES:
        for method, path in re.findall(r"\b(GET|POST|PUT|PATCH|DELETE) (/api/[\w./{}:-]*[\w}])", page.read_text()):
            known = any(route == method and pattern.fullmatch(path) for route, pattern in routes)
            assert known, f"{page.relative_to(ROOT)} names {method} {path}, which does not exist."


def test_every_error_code_of_the_api_is_documented() -> None:
    page = (DOCS / "reference" / "http-api.md").read_text()
    kinds = [value for value in vars(errors).values() if isinstance(value, type)]
    for kind in kinds:
        if issubclass(kind, RunlaneError) and 400 <= kind.http_status < 500:
            assert f"`{kind.code}`" in page, f"http-api.md lacks {kind.code}"


def test_everything_of_the_client_is_documented() -> None:
    page = (DOCS / "reference" / "client.md").read_text()
    names = [name for kind in Client.__mro__ if kind is not object for name in _public(kind)]
    assert [name for name in names if not re.search(rf"\bclient\.{name}\b", page)] == []
    assert [name for name in RunOptions._fields if f"`{name}`" not in page] == []


def test_every_event_type_is_documented() -> None:
    page = (DOCS / "reference" / "events.md").read_text()
    for kind in EventType:
        assert f"\n| `{kind.value}` |" in page, f"events.md lacks {kind.value}"


def test_everything_public_is_documented() -> None:
    page = (DOCS / "reference" / "python.md").read_text()
    names = [name for kind in App.__mro__ if kind is not object for name in _public(kind)]
    assert [name for name in names if not re.search(rf"\bapp\.{name}\b", page)] == []
    # check_awaited, interrupt and take_progress are the worker's side of a context.
    names = [name for name in _public(Context) if name not in {"check_awaited", "interrupt", "take_progress"}]
    assert [name for name in names if f"`ctx.{name}" not in page] == []
    assert [field.name for field in fields(Run) if f"`{field.name}`" not in page] == []
    assert [status.value for status in Status if f"`{status.value}`" not in page] == []
    options = [*sorted(TaskOptions.__optional_keys__), "tenant", "trace"]
    assert [name for name in options if f"| `{name}=" not in page] == []
    for name in runlane.__all__:
        value = getattr(runlane, name)
        assert re.search(rf"`{name}\b", page), f"python.md lacks {name}"
        if isinstance(value, type) and issubclass(value, RunlaneError) and value is not RunlaneError:
            assert f"| `{name}` | `{value.code}` |" in page, f"python.md lacks the code of {name}"
        assert not (isinstance(value, type) and issubclass(value, Interrupted)) or f"`{name}`" in page


def test_everything_of_the_testing_kit_is_documented() -> None:
    page = (DOCS / "reference" / "testing.md").read_text()
    assert [name for name in testing.__all__ if not re.search(rf"`{name}\b", page)] == []
    # Each of them is used in an example as well.
    examples = "".join(re.findall(r"```python run\n(.*?)```", page, re.DOTALL))
    names = {*testing.__all__} - {"ExternalPostgres", "PostgresServer"}
    assert [name for name in names if not re.search(rf"\b{name}\b", examples)] == []
    for kind in (testing.FakeAnswer, testing.FakeControl):
        assert [name for name in kind.model_fields if f"`{name}`" not in page] == []
    calls = [name for kind in (testing.FakeProvider, testing.FakeMcp) for name in _public(kind)]
    assert [name for name in calls if name not in ("name", "stop_steps") and not re.search(rf"`{name}\b", page)] == []


def _public(kind: type) -> list[str]:
    return [name for name in vars(kind) if not name.startswith("_")]


def _default(value: object) -> str:
    match value:
        case None:
            return "not set"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case dict():
            return "none"
        case _:
            return str(value)


def _check_variable(name: str, where: object) -> None:
    if name.startswith("RUNLANE_") and name not in CLIENT_VARIABLES:
        assert name.removeprefix("RUNLANE_").lower() in Settings.model_fields, f"{where}: no setting {name}"


def _path_exists(path: str) -> bool:
    patterns = [re.sub(r"\\\{[^}]*\\\}", "[^/]+", re.escape(known)) for known in described_paths()]
    return any(re.fullmatch(pattern, path) for pattern in patterns)


def _without_blocks(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def _links(page: Path) -> list[str]:
    found = re.findall(r"\[[^\]]+\]\(([^)\s]+)\)", _without_blocks(page))
    return [target for target in found if "://" not in target]


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", _without_blocks(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _resolve(words: list[str]) -> tuple[Any, str, list[str]]:
    """Return the command that these words begin with, and what is left for it."""
    command, name = COMMAND, "runlane"
    while words and words[0] in getattr(command, "commands", {}):
        name = words[0]
        command, words = load_command(name) if command is COMMAND else command.commands[name], words[1:]
    is_group = bool(getattr(command, "commands", None))
    complete = not is_group or not words or words[0].startswith("-")
    return (command if complete else None), name, words


def _options(parameter: Any) -> list[str]:
    names: list[str] = [*parameter.opts, *parameter.secondary_opts]
    return [name for name in names if name.startswith("--")]


def _python(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return forking.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


@contextmanager
def _worker(folder: Path, app: str | None) -> Generator[None]:
    if app is None:
        yield
        return
    process = forking.Popen(
        [sys.executable, "-m", "runlane", "worker", app],
        cwd=folder,
        env=environment(),
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(60)
        finally:
            process.kill()


@contextmanager
def _server(folder: Path, app: str | None) -> Generator[dict[str, str]]:
    if app is None:
        yield {}
        return
    with serving(folder, {}, "dev", app) as server:
        yield {"RUNLANE_URL": server.url}
