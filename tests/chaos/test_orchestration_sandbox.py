"""User code inside a worker: whatever it tries, it fails its step within its limits and the worker survives."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from runlane import Run, Status
from runlane.errors import InvalidDefinitions
from tests.chaos.cluster import Cluster, MakeCluster, Process, eventually
from tests.chaos.flows import MODEL, Flows, Steps, say

SCRIPTS = {
    "class": "result = str(().__class__.__base__.__subclasses__())",
    "globals": "result = str((lambda: 0).__globals__)",
    "builtins": "result = __builtins__",
    "import": "result = __import__('os').getcwd()",
    "os": "import os\nresult = os.environ['PATH']",
    "file": "result = open('/etc/passwd').read()",
    "path": "from pathlib import Path\nresult = Path('/etc/passwd').read_text()",
    "socket": "import socket\nresult = socket.create_connection(('127.0.0.1', 1))",
    "exec": "exec('import os; result = os.getcwd()')",
    "endless": "while True:\n    pass\nresult = 1",
    "list": "result = len([0] * 10**10)",
    "growing": "x = ['a']\nwhile True:\n    x = x + x\nresult = 1",
    "text": "result = 'a' * 10**11",
    "power": "result = str(9 ** 9 ** 9)",
    "deep": "def f(n):\n    return f(n + 1)\nresult = f(0)",
    "sleep": "import time\ntime.sleep(600)\nresult = 1",
}
CONDITIONS = {
    "class": "().__class__.__base__ is not None",
    "state": "state.__class__ is not None",
    "file": "open('/etc/passwd').read() != ''",
    "import": "__import__('socket') is not None",
    "endless": "sum(1 for _ in range(10**15)) > 0",
    "list": "len([0] * 10**10) > 0",
}
CODES = {"sandbox_refused", "sandbox_limit", "expression_error"}
LIMITS = {"RUNLANE_SANDBOX_SCRIPT_SECONDS": "1", "RUNLANE_SANDBOX_CONDITION_SECONDS": "1"}
MOST_MEMORY_MB = 200.0


def scripted(name: str, code: str) -> list[Steps]:
    return [{"id": name, "type": "transform", "transform_code": code, "output_key": "out"}]


def conditional(name: str, code: str) -> list[Steps]:
    step = {"id": name, "type": "if_else", "if_condition": code, "if_true_step_id": "yes", "if_false_step_id": "no"}
    return [step, say("yes", next_step_id=None), say("no")]


def code_of(run: Run) -> str:
    """Why a run failed."""
    assert run.status is Status.FAILED
    assert run.error is not None
    return str(run.error["type"])


async def test_code_that_must_not_be_fails_its_step_and_nothing_else(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(**LIMITS)
    flows = Flows(cluster)
    [worker] = await cluster.start_workers(1)
    tries = [(f"script {name}", scripted("bad", code)) for name, code in SCRIPTS.items()]
    tries += [(f"condition {name}", conditional("bad", code)) for name, code in CONDITIONS.items()]
    runs: dict[str, str] = {}
    for what, steps in tries:
        try:
            runs[what] = await flows.start(steps)
        except InvalidDefinitions as error:
            # Refused before it ran.
            print(what, str(error)[:200])
    assert len(runs) > len(tries) / 2, "too few of them came as far as a worker"
    await cluster.all_ended()
    for what, run_id in runs.items():
        run = await cluster.app.get(run_id)
        print(what, run.status, run.error)
        assert code_of(run) in CODES, what
        assert run.attempt == 1, what
    assert worker.alive
    assert worker.resident_mb < MOST_MEMORY_MB
    run_id = await flows.start(scripted("good", "result = 6 * 7"))
    assert (await cluster.app.wait(run_id, 30)).result == 42
    assert worker.alive
    assert len(await cluster.workers()) == 1, "the worker had to begin a new life"
    await cluster.check_story()


def computing(worker: Process) -> int | None:
    """Return the sandbox process of a worker that has computed for a while, longer than it takes to begin."""
    children: list[str] = []
    for thread in Path(f"/proc/{worker.pid}/task").iterdir():
        # Threads and processes may end while they are looked at.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            children += (thread / "children").read_text().split()
    for pid in {int(child) for child in children}:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] != "Z" and int(fields[11]) / os.sysconf("SC_CLK_TCK") > 1:
            return pid
    return None


async def kill_sandbox(worker: Process) -> int:
    async def found() -> int | None:
        return computing(worker)

    pid = await eventually(found, "a running sandbox process", 30, every=0.02)
    os.kill(pid, signal.SIGKILL)

    async def gone() -> bool:
        return computing(worker) != pid

    await eventually(gone, "the end of the sandbox process", 30, every=0.02)
    return pid


@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_killed_sandbox_fails_the_step_and_not_the_worker(make_cluster: MakeCluster, attempts: int) -> None:
    cluster = await make_cluster(RUNLANE_SANDBOX_SCRIPT_SECONDS="120")
    flows = Flows(cluster)
    [worker] = await cluster.start_workers(1)
    retry: dict[str, Any] = {"attempts": attempts, "backoff_seconds": 0.01}
    [step] = scripted("bad", SCRIPTS["endless"])
    run_id = await flows.start([{**step, "retry": retry}])
    killed = {await kill_sandbox(worker) for _ in range(attempts)}
    run = await cluster.app.wait(run_id, 30)
    assert len(killed) == attempts
    assert code_of(run) == "sandbox_limit"
    assert run.attempt == 1
    assert len(await flows.paths(run_id, "step_retry")) == attempts - 1
    assert worker.alive
    run_id = await flows.start(scripted("good", "result = 6 * 7"))
    assert (await cluster.app.wait(run_id, 30)).result == 42


def judging(**more: Any) -> list[Steps]:
    step = {
        "id": "judge", "type": "evaluator", "model": MODEL, "evaluator_prompt": "<judge>",
        "route_map": {"good": "publish", "bad": "reject"}, **more,
    }  # fmt: skip
    return [step, say("publish", next_step_id=None), say("reject", next_step_id=None)]


async def test_an_evaluator_with_an_invalid_answer_is_called_again_and_never_trusted(cluster: Cluster) -> None:
    flows = Flows(cluster)
    await cluster.start_workers(1)
    flows.script(answers=["banana"])
    run_id = await flows.start(judging())
    run = await cluster.app.wait(run_id, 30)
    assert code_of(run) == "no_route"
    assert len(flows.calls()) == 3
    assert await flows.paths(run_id, "routing_decision") == []
    assert await flows.done(run_id) == []

    run_id = await flows.start(judging(fallback_route="bad", max_turns=2))
    assert (await cluster.app.wait(run_id, 30)).result == "reject"
    assert len(flows.calls()) == 5
    assert len(await flows.paths(run_id, "step_warning")) == 1

    flows.script(answers=["banana", "bad"])
    run_id = await flows.start(judging())
    assert (await cluster.app.wait(run_id, 30)).result == "reject"
    assert len(flows.calls()) == 7
    assert await flows.paths(run_id, "step_warning") == []
