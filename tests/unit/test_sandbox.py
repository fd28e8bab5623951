"""The sandbox: what it computes, what it refuses within its limits, and that it keeps working after every failure."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from runlane.interpreter.failure import StepFailed
from runlane.sandbox.sandbox import Sandbox, SandboxLimits
from runlane.settings import Settings

STATE: dict[str, Any] = {
    "n": 3,
    "name": "Ann",
    "none": None,
    "user": {"address": {"city": "Graz"}, "tags": ["a", "b"]},
    "rows": [{"x": 1}, {"x": 5, "ok": True}],
}
SECONDS = 0.5
# For what is done at once, on a machine that has other things to do.
PLENTY = 60.0
MEMORY_BYTES = 32 * 1024 * 1024


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    made = Sandbox(SandboxLimits(condition_seconds=PLENTY, script_seconds=PLENTY, memory_bytes=MEMORY_BYTES))
    yield made
    await made.close()


@pytest.fixture
async def hasty() -> AsyncIterator[Sandbox]:
    """One whose scripts run into their limit soon."""
    made = Sandbox(SandboxLimits(condition_seconds=PLENTY, script_seconds=SECONDS, memory_bytes=MEMORY_BYTES))
    yield made
    await made.close()


def processes() -> dict[int, bytes]:
    """Return the sandbox processes of this one, with their environments."""
    found: dict[int, bytes] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            status = (entry / "status").read_text()
            if status.startswith("Name:\tmonty\n") and f"\nPPid:\t{os.getpid()}\n" in status:
                found[int(entry.name)] = (entry / "environ").read_bytes()
        except OSError:
            continue
    return found


async def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PLENTY
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.01)


async def failure(evaluation: Any) -> StepFailed:
    with pytest.raises(StepFailed) as caught:
        await evaluation
    return caught.value


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("state.n == 3", True),
        ("state['n'] + 1", 4),
        ("state.user.address.city", "Graz"),
        ("state.missing", None),
        ("state.missing.part.of.it is None", True),
        ("state.user.tags[-1].upper()", "B"),
        ("state.name.lower() in ('ann', 'bob') and not state.none", True),
        ("[row.x for row in state.rows if row.ok]", [5]),
        ("sum(row['x'] for row in state.rows)", 6),
        ("f'{state.name}: {state.n:03d}'", "Ann: 003"),
        ("'big' if state.n > 2 else 'small'", "big"),
        ("len(state)", 5),
        ("sorted(state.keys())", ["n", "name", "none", "rows", "user"]),
        ("state.get('missing', 7)", 7),
        ("(1, 2)", [1, 2]),
        ("{'a': {1: None}}", {"a": {"1": None}}),
        ("2 ** 70", 2**70),
        ("'é\\x00'", "é\x00"),
        ("\n  state.n\n  # why\n", 3),
        ("eval('state.keys()') == state.keys()", True),
    ],
)
async def test_expressions(sandbox: Sandbox, code: str, value: Any) -> None:
    assert await sandbox.expression(code, STATE) == value


async def test_a_condition_is_true_or_false(sandbox: Sandbox) -> None:
    assert await sandbox.condition("state.rows", STATE) is True
    assert await sandbox.condition("state.missing", STATE) is False
    assert await sandbox.condition("state.rows[0].ok", STATE) is False


async def test_a_script_sets_result_and_cannot_change_the_state(sandbox: Sandbox) -> None:
    code = """
import json, re, math
def double(x):
    return x * 2
total = 0
for row in state.rows:
    total += double(row.x)
state.n = 99
state["new"] = state.n + 1
result = {"total": total, "new": state.new, "caps": re.findall("[A-Z]", state.name), "floor": math.floor(2.7)}
"""
    before = repr(STATE)
    assert await sandbox.script(code, STATE) == {"total": 12, "new": 100, "caps": ["A"], "floor": 2}
    assert repr(STATE) == before


async def test_deep_state_is_passed_in_and_returned(sandbox: Sandbox) -> None:
    deep: Any = 1
    for _ in range(150):
        deep = {"d": deep}
    assert await sandbox.expression("state.deep", {"deep": deep}) == deep


async def test_a_tool_has_its_arguments_and_gives_its_result_or_what_it_prints(sandbox: Sandbox) -> None:
    assert await sandbox.tool("result = args['a'] + args.b", {"a": 1, "b": 2}, PLENTY) == 3
    assert await sandbox.tool("print('[1,')\nprint('2]')", {}, PLENTY) == [1, 2]
    assert await sandbox.tool("print('hello', _args['who'])", {"who": "you"}, PLENTY) == "hello you"
    endless = "for i in range(20000):\n    print('x' * 100)"
    assert len(await sandbox.tool(endless, {}, PLENTY)) == 64 * 1024


REFUSED = {
    "a class": "().__class__",
    "its bases": "(1).__class__.__mro__",
    "its kin": "object.__subclasses__()",
    "by getattr": "getattr((), '__class__')",
    "by getattr, hidden": "getattr((), '__cla' + 'ss__')",
    "globals of a function": "getattr(lambda: 0, '__globals__')",
    "builtins": "__builtins__",
    "import by name": "__import__('os').system('id')",
    "import in eval": "eval(\"__import__('socket')\")",
    "a file": "open('/etc/passwd').read()",
    "a file to write": "open('/tmp/runlane-escape', 'w')",
}


@pytest.mark.parametrize("code", REFUSED.values(), ids=REFUSED.keys())
async def test_expressions_reach_nothing(sandbox: Sandbox, code: str) -> None:
    error = await failure(sandbox.expression(code, STATE))
    assert error.code == "sandbox_refused"
    assert error.message.startswith("Line 1: ")
    assert await sandbox.expression("state.n", STATE) == 3


REFUSED_IN_SCRIPTS = {
    "environment": "import os\nresult = os.environ",
    "one variable": "import os\nresult = os.getenv('HOME')",
    "a directory": "import os\nresult = os.listdir('/')",
    "a command": "import os\nresult = os.system('id')",
    "fork": "import os\nresult = os.fork()",
    "paths": "from pathlib import Path\nresult = Path('/etc/passwd').read_text()",
    "socket": "import socket\nresult = socket.socket()",
    "subprocess": "import subprocess\nresult = 1",
    "ctypes": "import ctypes\nresult = 1",
    "threading": "import threading\nresult = 1",
    "our own code": "import runlane\nresult = 1",
    "import in exec": "exec('import urllib.request')\nresult = 1",
    "sleeping through the limit": "import time\ntime.sleep(3600)\nresult = 1",
}


@pytest.mark.parametrize("code", REFUSED_IN_SCRIPTS.values(), ids=REFUSED_IN_SCRIPTS.keys())
async def test_scripts_reach_nothing(sandbox: Sandbox, code: str) -> None:
    error = await failure(sandbox.script(code, STATE))
    assert error.code == "sandbox_refused"
    assert "Use a tool or a task step" in error.message
    assert await sandbox.expression("state.n", STATE) == 3


LIMITED = {
    "endless loop": "while True:\n    pass\nresult = 1",
    "endless loop that catches all": "try:\n    while True: pass\nexcept BaseException:\n    result = 1",
    "endless loop in finally": "try:\n    while True: pass\nfinally:\n    while True: pass\nresult = 1",
    "a long sum": "result = sum(range(10 ** 12))",
    "a growing list": "x = []\nwhile True: x.append('a' * 1000)\nresult = 1",
    "a doubling list": "x = [0]\nwhile True: x = x + x\nresult = 1",
    "a huge list": "result = [0] * 10 ** 9",
    "a huge range": "result = list(range(10 ** 9))",
    "a huge text": "result = 'x' * 10 ** 10",
    "a doubling string": "x = 'x' * 1000\nwhile True: x += x\nresult = 1",
    "a huge number": "result = 10 ** 10 ** 9",
    "a string past all address space": "result = ' ' * (1 << 60)",
    "deep recursion": "def f():\n    return f()\nresult = f()",
    "recursion that catches": "def f():\n try:\n  return f()\n except RecursionError:\n  return f()\nresult = f()",
    "a deep value": "x = []\nfor _ in range(100000): x = [x]\nresult = x",
    "a value too large to come out": "result = 'x' * 5_000_000",
    "an instruction that does not look at the clock": "result = int('9' * 4000) ** 5000 % 7",
}


@pytest.mark.parametrize("code", LIMITED.values(), ids=LIMITED.keys())
async def test_limits_hold_and_the_next_evaluation_works(hasty: Sandbox, code: str) -> None:
    assert await hasty.expression("state.n", STATE) == 3
    error = await failure(hasty.script(code, STATE))
    assert error.code == "sandbox_limit"
    assert await hasty.expression("state.n", STATE) == 3


async def test_a_limit_names_its_setting(sandbox: Sandbox, hasty: Sandbox) -> None:
    assert "RUNLANE_SANDBOX_SCRIPT_SECONDS" in (await failure(hasty.script(LIMITED["endless loop"], {}))).message
    assert "RUNLANE_SANDBOX_MEMORY_BYTES" in (await failure(sandbox.script(LIMITED["a huge list"], {}))).message
    too_large = LIMITED["a value too large to come out"]
    assert "RUNLANE_SANDBOX_OUTPUT_BYTES" in (await failure(sandbox.script(too_large, {}))).message
    assert "timeout_seconds" in (await failure(sandbox.tool("while True: pass", {}, 0.2))).message


async def test_a_condition_has_a_limit_of_its_own() -> None:
    sandbox = Sandbox(SandboxLimits(condition_seconds=SECONDS, script_seconds=PLENTY))
    too_long = await failure(sandbox.condition("sum(range(10 ** 12))", {}))
    assert "RUNLANE_SANDBOX_CONDITION_SECONDS" in too_long.message
    await sandbox.close()


@pytest.mark.parametrize(
    ("code", "line", "expected"),
    [
        ("a = 1\nb = a / 0\nresult = b", 2, "ZeroDivisionError"),
        ("\n\nresult = nowhere", 3, "state.key"),
        ("result = state['nowhere']", 1, "state.key is None"),
        ("x = state.nowhere\nresult = x > 1", 2, "A missing key is None"),
        ("result = state.nowhere.upper()", 1, "A missing key is None"),
        ("def f(x):\n    return x.nope\nresult = f(5)", 2, "AttributeError"),
        ("x = f'''\n{state.name}\n'''\nresult = 1 / 0", 4, "ZeroDivisionError"),
        ("raise ValueError('no')\nresult = 1", 1, "ValueError: no"),
        ("result = = 1", 1, "invalid syntax"),
    ],
)
async def test_an_error_names_its_line_and_its_cure(sandbox: Sandbox, code: str, line: int, expected: str) -> None:
    error = await failure(sandbox.script(code, STATE))
    assert error.code == "expression_error"
    assert error.message.startswith(f"Line {line}: ")
    assert expected in error.message
    assert not error.retryable


@pytest.mark.parametrize(
    "code",
    ["{1, 2}", "lambda: 1", "float('nan')", "float('inf')", "[len]", "b'x'", "range(3)", "len"],
)
async def test_results_that_are_not_json_are_refused(sandbox: Sandbox, code: str) -> None:
    error = await failure(sandbox.expression(code, STATE))
    assert error.code == "expression_error"
    assert "not JSON" in error.message


@pytest.mark.parametrize("answer", ["5", "'not json'", "None", "'[' * 3000"])
async def test_a_script_that_forges_its_result_returns_no_value(sandbox: Sandbox, answer: str) -> None:
    code = f"""
class Forged:
    def dumps(self, value, ensure_ascii=True):
        return {answer}
_runlane_json = Forged()
result = 1
"""
    assert (await failure(sandbox.script(code, STATE))).code == "expression_error"


async def test_a_script_without_a_result_is_an_error(sandbox: Sandbox) -> None:
    assert "never sets result" in (await failure(sandbox.script("x = 1", STATE))).message
    assert (
        "without setting result" in (await failure(sandbox.script("if state.missing:\n    result = 1", STATE))).message
    )


async def test_evaluations_share_nothing(sandbox: Sandbox) -> None:
    assert await sandbox.script("secret = 'x'\nimport json as leaked\nresult = 1", {}) == 1
    for _ in range(4):
        assert (await failure(sandbox.expression("secret", {}))).code == "expression_error"
        assert (await failure(sandbox.expression("leaked", {}))).code == "expression_error"


async def test_nothing_of_the_environment_is_inherited(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNLANE_TEST_SECRET", "do not pass on")
    assert await sandbox.expression("1", {}) == 1
    environments = processes()
    assert environments
    assert set(environments.values()) == {b""}


async def test_many_at_once_share_few_processes(sandbox: Sandbox) -> None:
    values = await asyncio.gather(*(sandbox.expression(f"state.n * {number}", STATE) for number in range(20)))
    assert values == [3 * number for number in range(20)]
    assert 1 <= len(processes()) <= sandbox.limits.processes


async def test_good_and_bad_at_once_do_not_disturb_each_other(hasty: Sandbox) -> None:
    async def bad(evaluation: Any) -> str:
        return (await failure(evaluation)).code

    limited = [LIMITED["endless loop"], LIMITED["a growing list"], LIMITED["deep recursion"]]
    bads = [*(hasty.script(code, STATE) for code in limited), hasty.expression("open('/etc/passwd')", STATE)]
    goods = [hasty.expression(f"state.n + {number}", STATE) for number in range(16)]
    results = await asyncio.gather(*(bad(evaluation) for evaluation in bads), *goods)
    assert results == ["sandbox_limit"] * 3 + ["sandbox_refused"] + [3 + number for number in range(16)]


async def test_a_killed_process_fails_its_evaluation_and_is_replaced(sandbox: Sandbox) -> None:
    running = asyncio.create_task(sandbox.tool("while True: pass", {}, 60))
    # A process that dies before it has the code is replaced without a word.
    await until(lambda: any(job._pid for job in sandbox._processes._jobs))
    [victim] = processes()
    os.kill(victim, signal.SIGKILL)
    error = await failure(running)
    assert error.code == "sandbox_limit"
    assert error.retryable
    assert "died" in error.message
    assert await sandbox.expression("state.n", STATE) == 3
    assert victim not in processes()


async def test_a_process_killed_while_idle_is_replaced_unnoticed(sandbox: Sandbox) -> None:
    assert await sandbox.expression("1", {}) == 1
    [victim] = processes()
    os.kill(victim, signal.SIGKILL)
    # A process whose threads are still exiting looks dead in /proc, but the pool takes it for a live one.
    await until(lambda: os.waitid(os.P_PID, victim, os.WEXITED | os.WNOHANG | os.WNOWAIT))
    assert await sandbox.expression("state.n", STATE) == 3


async def test_cancelling_stops_the_code_at_once(sandbox: Sandbox) -> None:
    running = [asyncio.create_task(sandbox.tool("while True: pass", {}, 300)) for _ in range(3)]
    # One tenant leaves a process to others, and its scripts and tools one more to conditions.
    await until(lambda: len(processes()) == sandbox.limits.processes - 2)
    for task in running:
        task.cancel()
    results = await asyncio.gather(*running, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError] * 3
    # The processes were busy for five minutes to come; nothing waits for that.
    async with asyncio.timeout(PLENTY):
        assert await sandbox.expression("state.n", STATE) == 3


def running_jobs(sandbox: Sandbox) -> int:
    return sum(job._pid is not None for job in sandbox._processes._jobs)


async def test_long_scripts_of_one_tenant_stop_no_other() -> None:
    sandbox = Sandbox(SandboxLimits(condition_seconds=PLENTY, script_seconds=300))
    greedy, other = sandbox.for_tenant("greedy"), sandbox.for_tenant("other")
    endless = "while True: pass\nresult = 1"
    long = [
        *(asyncio.create_task(greedy.script(endless, {})) for _ in range(4)),
        *(asyncio.create_task(greedy.tool(endless, {}, 300)) for _ in range(4)),
    ]
    await until(lambda: running_jobs(sandbox) == 2)
    async with asyncio.timeout(PLENTY):
        assert await other.condition("state.n == 3", STATE)
        assert await other.script("result = state.n", STATE) == 3
        assert await other.tool("result = args", {"a": 1}, 30) == {"a": 1}
        # Its own conditions do not wait for its scripts either.
        assert await greedy.condition("state.n == 3", STATE)
        blocked = asyncio.create_task(other.tool(endless, {}, 300))
        await until(lambda: running_jobs(sandbox) == 3)
        assert await sandbox.for_tenant("third").condition("state.n == 3", STATE)
    assert not any(task.done() for task in (*long, blocked))
    await sandbox.close()
    for task in (*long, blocked):
        assert (await failure(task)).code == "sandbox_limit"


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_any_number_of_processes_serves_all_tenants(count: int) -> None:
    sandbox = Sandbox(SandboxLimits(condition_seconds=PLENTY, script_seconds=PLENTY, processes=count))
    tenants = [sandbox.for_tenant(name) for name in ("a", "b", "c") for _ in range(4)]
    async with asyncio.timeout(PLENTY):
        values = await asyncio.gather(
            *(tenant.script("result = state.n", STATE) for tenant in tenants),
            *(tenant.condition("state.n == 3", STATE) for tenant in tenants),
        )
    assert values == [3] * 12 + [True] * 12
    assert len(processes()) <= count
    await sandbox.close()


async def test_closing_ends_the_processes_and_what_runs_in_them() -> None:
    sandbox = Sandbox()
    running = asyncio.create_task(sandbox.tool("while True: pass", {}, 300))
    await until(processes)
    async with asyncio.timeout(PLENTY):
        await sandbox.close()
        assert (await failure(running)).code == "sandbox_limit"
    assert not processes()
    await sandbox.close()


async def test_no_process_before_the_first_evaluation() -> None:
    sandbox = Sandbox()
    assert (await failure(sandbox.expression("1 +", {}))).code == "expression_error"
    assert not processes()
    await sandbox.close()


def test_a_process_that_used_the_sandbox_exits_cleanly() -> None:
    """Several times, because a wrong use of the pool makes an exiting interpreter abort only now and then."""
    import subprocess
    import sys

    code = (
        "import asyncio\nfrom runlane.sandbox.sandbox import Sandbox\n"
        "async def main():\n    print(await Sandbox().expression('1 + 1', {}))\nasyncio.run(main())"
    )
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def test_limits_come_from_the_settings() -> None:
    limits = SandboxLimits.of(Settings(sandbox_condition_seconds=1, sandbox_processes=5))
    assert (limits.condition_seconds, limits.script_seconds, limits.processes) == (1, 10, 5)
    assert SandboxLimits.of(Settings()) == SandboxLimits()
