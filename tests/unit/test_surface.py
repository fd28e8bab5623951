"""The public surface, and the error tree as runlane.errors draws it."""

from __future__ import annotations

import inspect
import math
import re
import subprocess
import sys
from importlib.resources import files

import pytest

import runlane
from runlane import errors, testing
from runlane.operators.run_reader import RunReader

PUBLIC_ERRORS = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, BaseException) and value.__module__.startswith(errors.__name__)
}


def test_the_public_names_are_unique_and_exist() -> None:
    assert len(runlane.__all__) == len(set(runlane.__all__))
    assert all(hasattr(runlane, name) for name in runlane.__all__)


def test_the_package_declares_its_types() -> None:
    assert files(runlane).joinpath("py.typed").is_file()


def test_every_public_name_of_the_package_is_listed() -> None:
    names = {name for name in dir(runlane) if not name.startswith("_") and not inspect.ismodule(getattr(runlane, name))}
    assert names == set(runlane.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Wrker'"):
        _ = runlane.Wrker  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]


@pytest.mark.parametrize(
    "kind",
    [
        runlane.App,
        runlane.Client,
        runlane.Administration,
        runlane.Secrets,
        runlane.ScheduleCalls,
        runlane.Schedules,
        runlane.Webhooks,
    ],
)
def test_everything_that_a_public_method_returns_is_exported(kind: type) -> None:
    returned: set[str] = set()
    for name, member in inspect.getmembers(kind):
        function = member.fget if isinstance(member, property) else member
        if not name.startswith("_") and callable(function):
            returned |= set(re.findall(r"\b[A-Z]\w+", str(inspect.signature(function).return_annotation)))
    generic = {"Any", "AsyncGenerator", "Callable", "F", "Mapping", "None", "Self", "Sequence", "T"}
    assert returned - generic <= set(runlane.__all__)


def test_every_public_name_of_the_testing_kit_exists_and_is_listed() -> None:
    assert list(testing.__all__) == sorted(testing.__all__)
    assert all(getattr(testing, name).__name__.rpartition(".")[2] == name for name in testing.__all__)
    classes = inspect.getmembers(testing, lambda value: inspect.isclass(value) and "runlane" in value.__module__)
    assert {name for name, _ in classes} <= {*testing.__all__}
    with pytest.raises(AttributeError, match="no attribute 'FakeProvder'"):
        _ = testing.FakeProvder


@pytest.mark.parametrize(
    ("program", "unwanted"),
    [
        ("import runlane", "sqlalchemy httpx2 fastapi pydantic"),
        ("from runlane import App, Context; App()", "httpx2 fastapi starlette uvicorn"),
        ("from runlane import Client; Client('http://127.0.0.1')", "sqlalchemy asyncpg fastapi redis"),
        (
            "import runlane.orchestration.executor, runlane.tools.mcp, runlane.cli.mcp, runlane.testing",
            "mcp mcp_types",
        ),
        (
            "from tests.cli_commands import leaf_commands; list(leaf_commands())",
            "sqlalchemy fastapi httpx2 rich structlog runlane.app runlane.client runlane.settings",
        ),
        (
            (
                "from runlane.cli.logs import configure_logs; configure_logs(dev=False)\n"
                "from runlane import App; from runlane.api.server import build_api; build_api(App())"
            ),
            "a2a alembic asyncpg cryptography httpx2 langgraph mcp mcp_types opentelemetry.sdk pydantic_ai redis rich",
        ),
    ],
)
def test_unused_packages_are_not_imported(program: str, unwanted: str) -> None:
    check = f"{program}\nimport sys\nprint([name for name in {unwanted.split()!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_error_is_public() -> None:
    assert set(PUBLIC_ERRORS) <= set(runlane.__all__)


def test_every_error_has_a_code_of_its_own_and_a_status() -> None:
    coded = [value for value in PUBLIC_ERRORS.values() if issubclass(value, errors.RunlaneError)]
    codes = [value.code for value in coded]
    assert len(codes) == len(set(codes))
    assert all(re.fullmatch(r"[a-z_]+", code) for code in codes)
    assert all(400 <= value.http_status < 600 for value in coded)


def test_the_drawn_tree_is_the_real_one() -> None:
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^([│├└─ ]*)([A-Z]\w+)(\(BaseException\))?(\s{2,}|$)", line)
        if found is None:
            continue
        depth = len(found.group(1)) // 4
        path[depth:] = [found.group(2)]
        drawn[found.group(2)] = path[depth - 1] if depth else ("BaseException" if found.group(3) else "Exception")
    assert drawn == {name: value.__bases__[0].__name__ for name, value in PUBLIC_ERRORS.items()}


def test_interruptions_are_not_ordinary_exceptions() -> None:
    for kind in (errors.Interrupted, errors.RunCancelled, errors.LeaseLost):
        assert not issubclass(kind, Exception)


def test_the_nearest_name_is_offered_when_there_is_one() -> None:
    assert 'did you mean "ingest"' in str(errors.UnknownTask("ingset", ["ingest", "other"]))
    assert "did you mean" not in str(errors.UnknownTask("zzz", ["ingest"]))
    assert "Registered: none." in str(errors.UnknownTask("a", []))
    assert "t17, …" in str(errors.UnknownTask("zz", [f"t{number}" for number in range(20)]))


@pytest.mark.parametrize("seconds", [-1, math.nan, 400 * 86400])
def test_retry_refuses_a_wait_without_sense(seconds: float) -> None:
    with pytest.raises(ValueError, match="between 0 and a year"):
        errors.Retry(after_seconds=seconds)


def test_an_app_reads_runs_by_the_verbs_of_a_client() -> None:
    for name, method in inspect.getmembers(RunReader, inspect.isfunction):
        if name == "database":
            continue
        ours, theirs = inspect.signature(method), inspect.signature(getattr(runlane.Client, name))
        assert ours.return_annotation == theirs.return_annotation, name
        # The client passes other filters of a list on to the server.
        shared = [parameter for parameter in theirs.parameters if parameter != "filters"]
        assert [parameter for parameter in ours.parameters if parameter in shared] == shared, name
