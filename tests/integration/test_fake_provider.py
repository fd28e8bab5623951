"""The fake provider as its users see it: a process of its own that counts, can be controlled, and ends by itself."""

from __future__ import annotations

import asyncio
import http.client
import os
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from runlane.testing import FakeAnswer, FakeCall, FakeFault, FakeProvider, local
from tests.harness import eventually

PATHS = {"/v1/chat/completions": "messages", "/v1/responses": "input", "/v1/messages": "messages"}


@pytest.fixture(scope="module")
def fake() -> Generator[FakeProvider]:
    with FakeProvider(["Hello."]) as provider:
        yield provider


@pytest.fixture(autouse=True)
def as_new(fake: FakeProvider) -> None:
    limits = {"max_in_flight": None, "max_per_minute": None, "retry_after_seconds": None, "fault": None}
    fake.control(answers=["Hello."], reset=True, **limits)


def post(fake: FakeProvider, path: str, messages: list[dict[str, Any]], **more: Any) -> httpx2.Response:
    with httpx2.Client(trust_env=False, timeout=30) as client:
        return client.post(f"{fake.url}{path}", json={"model": "m", PATHS[path]: messages, **more})


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("path", PATHS)
def test_answers_are_chosen_by_turn_or_by_message(fake: FakeProvider, path: str) -> None:
    fake.control(answers=["one", "two", FakeAnswer(text="special", when="magic")])
    model = {"role": "assistant", "content": "x"}
    messages = [user("a"), model, user("b"), model, user("c")]
    texts = [post(fake, path, messages[:count]).text for count in (1, 3, 5, 1)]
    assert [word for text in texts for word in ("one", "two") if word in text] == ["one", "two", "two", "one"]
    assert "special" in post(fake, path, [user("say the magic word")]).text
    assert [call["turn"] for call in fake.stats()["log"]] == [0, 1, 2, 0, 0]


@pytest.mark.parametrize("path", PATHS)
def test_whole_and_streamed_answers_are_the_same(fake: FakeProvider, path: str) -> None:
    calls = [FakeCall(name="look", arguments={"at": "this"})]
    fake.control(answers=[FakeAnswer(thinking="deep", text="a rather long text", calls=calls, piece_chars=100)])
    whole = post(fake, path, [user("hi")])
    streamed = post(fake, path, [user("hi")], stream=True)
    assert whole.headers["content-type"] == "application/json"
    assert streamed.headers["content-type"] == "text/event-stream"
    for text in (whole.text, streamed.text):
        for word in ("deep", "a rather long text", "look", "this", "call_0_0"):
            assert word in text


def test_calls_are_counted_and_readable_from_another_process(fake: FakeProvider) -> None:
    for number in range(3):
        post(fake, "/v1/chat/completions", [user(f"question {number}")])
    stats = fake.stats()
    assert (stats["calls"], stats["outcomes"], stats["in_flight"]) == (3, {"200": 3}, 0)
    assert (stats["most_in_flight"], stats["calls_per_minute"]) == (1, 3)
    assert [call["last"] for call in stats["log"]] == ["question 0", "question 1", "question 2"]
    assert "body" not in stats["log"][0]
    [last] = fake.requests(last=1)
    assert last["body"]["messages"] == [user("question 2")]


def test_keys_are_distinguished_and_not_shown(fake: FakeProvider) -> None:
    with httpx2.Client(trust_env=False) as client:
        for key in ("Bearer secret-1", "Bearer secret-1", "Bearer secret-2"):
            body = {"model": "m", "messages": [user("hi")]}
            client.post(f"{fake.openai_url}/chat/completions", json=body, headers={"authorization": key})
    first, second, third = (call["key"] for call in fake.stats()["log"])
    assert first == second != third
    assert "secret" not in str(fake.requests())


async def test_calls_above_the_limit_are_refused_until_it_is_raised(fake: FakeProvider) -> None:
    # Long enough for all four to be there before the first one is answered.
    delay_seconds = 1.5
    slow = FakeAnswer(text="x", delay_seconds=delay_seconds)
    fake.control(answers=[slow], max_in_flight=2, retry_after_seconds=5)
    body = {"model": "m", "messages": [user("hi")]}
    async with httpx2.AsyncClient(trust_env=False, timeout=30) as client:

        async def four() -> list[httpx2.Response]:
            calls = (client.post(f"{fake.openai_url}/chat/completions", json=body) for _ in range(4))
            return await asyncio.gather(*calls)

        answers = await four()
        assert sorted(answer.status_code for answer in answers) == [200, 200, 429, 429]
        assert {answer.headers.get("retry-after") for answer in answers} == {None, "5"}
        assert fake.stats()["most_in_flight"] == 2
        fake.control(max_in_flight=4)
        assert [answer.status_code for answer in await four()] == [200] * 4
        stats = fake.stats()
        assert stats["most_in_flight"] == 4
        assert 6 * delay_seconds <= stats["in_flight_seconds"] < 60
        fake.control(max_per_minute=stats["calls_per_minute"])
        assert [answer.status_code for answer in await four()] == [429] * 4


def test_a_fault_may_pass(fake: FakeProvider) -> None:
    fake.control(answers=[FakeAnswer(text="fine", fault=FakeFault(status=500, times=2))])
    assert [post(fake, "/v1/messages", [user("hi")]).status_code for _ in range(4)] == [500, 500, 200, 200]
    fake.control(fault={"status": 418})
    assert post(fake, "/v1/messages", [user("hi")]).status_code == 418
    fake.control(fault=None)
    assert post(fake, "/v1/messages", [user("hi")]).status_code == 200


def test_a_wrong_order_or_script_is_refused(fake: FakeProvider) -> None:
    with pytest.raises(ValueError, match="speed"):
        fake.control(speed=3)
    with pytest.raises(ValueError, match="txt"):
        FakeProvider([{"txt": "x"}])  # type: ignore[list-item]
    assert post(fake, "/v1/messages", []).status_code == 200
    with httpx2.Client(trust_env=False) as client:
        assert client.get(f"{fake.url}/nothing").status_code == 404


def _started(folder: Path, *options: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    script = folder / "script.json"
    script.write_text('["Hello."]')
    command = [sys.executable, "-m", "runlane.testing.fake_provider", "--script", str(script), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, orjson.loads(process.stdout.readline())


@pytest.mark.parametrize("options", [("--max-seconds", "0.5"), ()])
def test_it_ends_after_its_time_or_by_a_signal(options: tuple[str, ...], tmp_path: Path) -> None:
    process, started = _started(tmp_path, *options)
    with process:
        assert started["pid"] == process.pid
        if not options:
            port = int(started["url"].rpartition(":")[2])
            link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            link.request("GET", "/_stats")
            assert orjson.loads(link.getresponse().read())["calls"] == 0
            link.close()
            process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


class _NoHttp(socketserver.BaseRequestHandler):
    """Answers as Redis does to an unknown protocol."""

    def handle(self) -> None:
        self.request.recv(65536)
        self.request.sendall(b"-ERR unknown command\r\n")


def test_a_port_that_another_process_took_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with socketserver.ThreadingTCPServer((local.HOST, 0), _NoHttp) as other:
        threading.Thread(target=other.serve_forever).start()
        try:
            taken, free = other.server_address[1], local._free_port()
            ports = iter([taken, free])
            monkeypatch.setattr(local, "_free_port", lambda: next(ports))
            with FakeProvider(["Hello."]) as provider:
                assert (provider.port, provider.stats()["calls"]) == (free, 0)
        finally:
            other.shutdown()


async def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    child = _orphan(tmp_path)
    await eventually(lambda: not _alive(child), seconds=30)


def _orphan(tmp_path: Path) -> int:
    """Return the pid of a provider whose parent was killed."""
    (tmp_path / "script.json").write_text('["Hello."]')
    program = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-m', 'runlane.testing.fake_provider', '--script', sys.argv[1]],"
        " stdout=subprocess.PIPE, text=True)\n"
        "print(child.stdout.readline(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "script.json")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(orjson.loads(parent.stdout.readline())["pid"])
        os.kill(child, 0)
        parent.kill()
    return child


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
