"""The receivers of docs/how-to/webhooks.md verify real messages, and the commands for webhooks work as processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from runlane.webhooks.signing import new_secret, signed_headers
from tests.acceptance.conftest import Shell
from tests.harness import eventually
from tests.server_process import free_port

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "webhooks.md"
BODY = b'{"type":"run.completed","timestamp":"2026-01-31T12:00:00Z","data":{"run_id":"run_1"}}'


def block(name: str) -> str:
    """Return the code block of the page that is written to this file."""
    _, _, rest = PAGE.read_text().partition(f"file={name}\n")
    return rest.partition("```")[0]


def now() -> int:
    import time

    return int(time.time())


@contextmanager
def served(folder: Path, secret: str) -> Generator[str]:
    (folder / "receiver.py").write_text(block("receiver.py"))
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "receiver:app", "--port", str(port), "--log-level", "warning"],
        cwd=folder,
        env={**os.environ, "WEBHOOK_SECRET": secret},
        stdout=subprocess.PIPE,
    )
    try:
        yield f"http://127.0.0.1:{port}/hooks/runlane"
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


async def test_the_python_receiver_verifies_messages(tmp_path: Path) -> None:
    secret, _ = new_secret("hmac")
    with served(tmp_path, secret) as url:

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", httpx2.URL(url).port or 0)) == 0

        await eventually(listens, "the receiver")
        async with httpx2.AsyncClient() as client:
            headers = signed_headers([secret], "msg_1", now(), BODY)
            for _ in range(2):
                assert (await client.post(url, content=BODY, headers=headers)).status_code == 204
            assert (await client.post(url, content=BODY + b" ", headers=headers)).status_code == 401
            old = signed_headers([secret], "msg_1", now() - 3600, BODY)
            assert (await client.post(url, content=BODY, headers=old)).status_code == 401


def test_the_shell_receiver_verifies_messages(tmp_path: Path) -> None:
    script = tmp_path / "receiver.sh"
    script.write_text(block("receiver.sh"))
    secret, _ = new_secret("hmac")
    other, _ = new_secret("hmac")

    def answer(body: bytes, headers: dict[str, str]) -> bytes:
        names = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()}
        environment = {**os.environ, "WEBHOOK_SECRET": secret, **names}
        done = subprocess.run(["sh", str(script)], input=body, env=environment, capture_output=True, check=True)
        return done.stdout

    # While a secret is being replaced, the header has two signatures.
    headers = signed_headers([other, secret], "msg_1", now(), BODY)
    assert answer(BODY, headers) == b"Status: 204 No Content\r\n\r\n"
    assert answer(BODY + b" ", headers) == b"Status: 401 Unauthorized\r\n\r\n"
    assert answer(BODY, signed_headers([secret], "msg_1", now() - 3600, BODY)).startswith(b"Status: 401")
    assert answer(BODY, signed_headers([other], "msg_1", now(), BODY)).startswith(b"Status: 401")


def test_the_life_of_an_endpoint_on_the_command_line(shell: Shell) -> None:
    shell.environment["RUNLANE_SECRET_KEY"] = shell.run("secrets", "new-key", "--json").json["key"]
    made = shell.run("webhooks", "create", "https://192.0.2.1/hook", expect=1)
    assert "RUNLANE_OUTBOUND_ALLOW" in made.err
    shell.environment["RUNLANE_OUTBOUND_ALLOW"] = "127.0.0.1"
    created = shell.run("webhooks", "create", "http://127.0.0.1:9/hook", "--types", "run.failed", "--json").json
    endpoint = created["endpoint"]["id"]
    secret = created["secret"]["secret"]
    assert shell.run("webhooks", "secret", endpoint).out.strip() == secret
    assert shell.run("webhooks", "rotate", endpoint, "--overlap-hours", "1", "--json").json["version"] == 2
    assert "no default webhook secret" in shell.run("webhooks", "secret", expect=1).err
    default = shell.run("webhooks", "rotate", "--json").json
    assert (default["endpoint_id"], default["version"]) == (None, 1)
    assert shell.run("webhooks", "secret").out.strip() == default["secret"]
    assert endpoint in shell.run("webhooks", "list").out
    assert shell.run("webhooks", "keys", "--json").json == []
    signed = ("--signature", "ed25519", "--types", "run.failed", "--json")
    other = shell.run("webhooks", "create", "http://127.0.0.1:9/other", *signed).json
    (key,) = shell.run("webhooks", "keys", "--json").json
    assert (key["endpoint_id"], key["public_key"]) == (other["endpoint"]["id"], other["secret"]["public_key"])
    shell.run("webhooks", "delete", other["endpoint"]["id"])
    assert shell.run("webhooks", "set", endpoint, "--rate", "2", "--json").json["rate_per_second"] == 2
    changed = shell.run("webhooks", "set", endpoint, "--header", "X-Team: {secret.TEAM}", "--tags", "eu", "--json").json
    assert (changed["headers"], changed["filter"]) == ({"X-Team": "{secret.TEAM}"}, {"tag": ["eu"]})
    assert "X-Team" in shell.run("webhooks", "show", endpoint).out
    assert "does not exist" in shell.run("webhooks", "test", endpoint, expect=1).out
    shell.run("webhooks", "set", endpoint, "--header", "")
    assert "cannot be reached" in shell.run("webhooks", "test", endpoint, expect=1).out
    (delivery, _) = shell.run("webhooks", "deliveries", "--json").json
    assert "test.ping" in shell.run("webhooks", "delivery", delivery["id"]).out
    assert delivery["message_id"] in shell.run("webhooks", "replay", delivery["id"]).out
    shell.run("webhooks", "disable", endpoint, "--reason", "pause")
    assert "pause" in shell.run("webhooks", "show", endpoint).out
    assert "1 endpoint is disabled" in shell.run("doctor").out
    assert "enabled" in shell.run("webhooks", "enable", endpoint, "--held", "discard").out
    assert "0 messages" in shell.run("webhooks", "replay", "--endpoint", endpoint).out
    shell.run("webhooks", "delete", endpoint)
    assert "does not exist" in shell.run("webhooks", "show", endpoint, expect=1).err
