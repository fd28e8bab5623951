"""The public surface, and the error tree as runlane.errors draws it."""

from __future__ import annotations

import ast
import inspect
import math
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

import runlane
from runlane import errors, testing
from runlane.domain.options import ForkOptions

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


# The classes whose methods are the Python API.
CALLS: list[type] = [
    runlane.Administration,
    runlane.App,
    runlane.AssistantCalls,
    runlane.AssistantOperator,
    runlane.BulkJobs,
    runlane.Client,
    runlane.Context,
    runlane.DeadLetters,
    runlane.MemoryCalls,
    runlane.MemoryService,
    runlane.ScheduleCalls,
    runlane.Schedules,
    runlane.Secrets,
    runlane.ThreadCalls,
    runlane.ThreadOperator,
    runlane.WebhookSources,
    runlane.Webhooks,
]
_CLASSES = {
    node.name
    for path in Path(runlane.__file__).parent.rglob("*.py")
    for node in ast.parse(path.read_text()).body
    if isinstance(node, ast.ClassDef) and not node.name.endswith("Options")
}


def _public_methods(kind: type) -> dict[str, inspect.Signature]:
    members = {
        name: member.fget if isinstance(member, property) else member for name, member in inspect.getmembers(kind)
    }
    return {name: inspect.signature(call) for name, call in members.items() if name[0] != "_" and callable(call)}


@pytest.mark.parametrize("kind", CALLS)
def test_everything_that_a_public_method_returns_is_exported(kind: type) -> None:
    returned: set[str] = set()
    for signature in _public_methods(kind).values():
        returned |= set(re.findall(r"\b[A-Z]\w+", str(signature.return_annotation)))
    generic = {"Any", "AsyncGenerator", "Awaitable", "Callable", "F", "Mapping", "None", "Self", "Sequence", "T"}
    assert returned - generic <= set(runlane.__all__)


@pytest.mark.parametrize("kind", CALLS)
def test_every_value_that_a_public_method_takes_is_exported(kind: type) -> None:
    taken: set[str] = set()
    for signature in _public_methods(kind).values():
        for parameter in signature.parameters.values():
            taken |= set(re.findall(r"\b[A-Z]\w+", str(parameter.annotation)))
    # App is a TaskRegistry, a RetryKind may be a string, and only the package itself passes Applied.
    assert taken & _CLASSES <= {*runlane.__all__, "Applied", "RetryKind", "TaskRegistry"}


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


# App hosts a graph of LangGraph under this name, and Client draws an orchestration. The others are opened by `await`.
_OTHER_VERBS = {"graph", "memory", "schedules", "tasks"}
# The parameters of an App that other parts of a server pass, and those that a request has in its headers.
_OWN_PARAMETERS = {"actor", "answered_by", "platform", "sent_by", "source", "tenant", "trace"}


# The filters that Client takes as keyword arguments and passes on.
_LIST_FILTERS = {
    "list": set(inspect.signature(runlane.App.list).parameters) - set(inspect.signature(runlane.Client.list).parameters)
}


def _shared_verbs() -> list[str]:
    verbs = inspect.getmembers(runlane.App, inspect.isfunction)
    return [name for name, _ in verbs if name[0] != "_" and hasattr(runlane.Client, name) and name not in _OTHER_VERBS]


@pytest.mark.parametrize("name", _shared_verbs())
def test_an_app_and_a_client_have_the_same_verbs(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (runlane.App, runlane.Client))
    assert ours.return_annotation == theirs.return_annotation
    # App declares the options of a fork as a dictionary, and each request of many has its own idempotency key.
    passed_on = {"filters", "options"}
    if name == "enqueue_many":
        passed_on.add("idempotency_key")
    if name == "fork":
        passed_on |= ForkOptions.__optional_keys__
    defaults = {key: value.default for key, value in theirs.parameters.items() if key not in passed_on}
    shared = {key: value.default for key, value in ours.parameters.items() if key in defaults}
    assert shared | {"tenant": None} == defaults | {"tenant": None}
    assert list(shared) == [key for key in defaults if key in shared]
    assert ours.parameters.keys() - shared.keys() <= _OWN_PARAMETERS | passed_on | _LIST_FILTERS.get(name, set())
