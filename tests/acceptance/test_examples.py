"""The examples do what they describe, started as a reader would start them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from runlane.testing import FakeAnswer, FakeCall, FakeProvider
from tests import forking

ROOT = Path(__file__).parents[2]
HELLO = ROOT / "examples" / "hello" / "main.py"
NEWSROOM = ROOT / "examples" / "newsroom" / "main.py"
SHOP = ROOT / "examples" / "shop"
SECONDS = 280


def test_make_run_starts_the_newsroom() -> None:
    assert f"EXAMPLE := {NEWSROOM.relative_to(ROOT)}\n" in (ROOT / "Makefile").read_text()


def test_the_newsroom_prints_one_article_though_its_worker_is_killed(tmp_path: Path) -> None:
    done = _run([str(NEWSROOM), "--folder", str(tmp_path)], ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    in_order(
        done.stdout,
        "Model: scripted",
        "added agent researcher",
        "research thinks: What is in the archive and in the harbour report?",
        "research calls search_archive",
        "research asks: May order_photo be called with these arguments?",
        "demo answers in place of a person: {'decision': 'approve'}",
        "research calls order_photo",
        "drafts 3 branches in parallel",
        # Its first words: the other drafts may break the line behind them at any place.
        "story writes: It was",
        "operator kill -9",
        "run worker lost, queued again",
        "story starts again (llm)",
        "judge chooses again, next step drafts",
        "judge~2 chooses ready, next step approval",
        "approval asks: Print",
        "demo answers in place of a person",
        "decide print, next step publish",
        "run completed",
        "14 steps and 11 model answers, each recorded once; 1 worker killed, 1 draft written again, nothing",
        "OPENAI_API_KEY",
        "The run was on http://127.0.0.1",
    )
    assert "calls ask_harbour" in done.stdout
    # Its pieces are live and may come before the events that were stored first, which break the line.
    assert "seen from 19 miles." in done.stdout
    (article,) = (tmp_path / "published").iterdir()
    assert article.read_text().startswith("# After 40 years")


def test_the_newsroom_uses_a_real_provider_with_the_same_definitions(tmp_path: Path) -> None:
    """The provider is another process with the wire format of a real one."""
    story = "The lighthouse was dark. Volunteers rebuilt it. It shines."
    photo = FakeCall(name="order_photo", arguments={"motif": "the light", "price_euro": 20})
    answers = [
        FakeAnswer(when="Write one headline", text="It shines"),
        FakeAnswer(when="Write a caption", text="At night"),
        FakeAnswer(when="Write a story", text=story, piece_delay_seconds=0.2),
        FakeAnswer(when="Can this be printed?", text="ready"),
        FakeAnswer(calls=[FakeCall(name="search_archive", arguments={"word": "lighthouse"}), photo]),
        FakeAnswer(text="It is lit again."),
    ]
    with FakeProvider(answers) as provider:
        done = _run(
            [str(NEWSROOM), "--folder", str(tmp_path), "--model", "openai:gpt-test"],
            ROOT,
            OPENAI_BASE_URL=provider.openai_url,
            OPENAI_API_KEY="sk-test",
        )
        assert done.returncode == 0, done.stdout + done.stderr
        # Two turns of the agent, three drafts, the judge; and the call that the killed worker was waiting for.
        assert provider.stats()["calls"] in (6, 7), done.stdout
    in_order(done.stdout, "Model: openai:gpt-test", "calls search_archive", "kill -9", "run completed")
    assert "OPENAI_API_KEY" not in done.stdout
    (article,) = (tmp_path / "published").iterdir()
    assert article.read_text() == f"# It shines\n\n{story}\n\n*At night*\n"


def test_the_newsroom_reports_what_is_missing_for_a_real_provider() -> None:
    done = _run([str(NEWSROOM), "--model", "openai:gpt-test"], ROOT, OPENAI_API_KEY="")
    assert done.returncode == 1
    assert "OPENAI_API_KEY" in done.stdout.partition("FAILED: ")[2]


def in_order(printed: str, *wanted: str) -> None:
    """Check that every one of these is in a line, one after another."""
    lines = [" ".join(line.split(" s  ", 1)[-1].split()) for line in printed.splitlines()]
    at = 0
    for text in wanted:
        place = next((number for number in range(at, len(lines)) if text in lines[number]), None)
        assert place is not None, f"not in this order: {text}\n{printed}"
        at = place


def test_the_newsroom_reports_a_broken_promise() -> None:
    done = _run([str(NEWSROOM)], ROOT, RUNLANE_LEASE_SECONDS="2", RUNLANE_HEARTBEAT_SECONDS="1")
    assert done.returncode == 1
    assert "FAILED: runlane " in done.stdout
    assert "The settings are not valid" in done.stdout


def test_the_assistant_remembers_in_another_conversation(tmp_path: Path) -> None:
    done = _run([str(ROOT / "examples" / "assistant" / "main.py"), "--folder", str(tmp_path)], ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    in_order(
        done.stdout,
        "Hello, I am Ada.",
        "[remember {",
        "Welcome, Ada.",
        "Memory guest-ada",
        "context: The guest is Ada.",
        "entry: Ada is allergic to nuts.",
        "What should the kitchen know about me?",
        "[recall {'query': 'food allergic'}]",
        "Please cook without nuts",
    )


def test_hello_loses_nothing_and_reports_it(tmp_path: Path) -> None:
    done = _run([str(HELLO), "--folder", str(tmp_path)], ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9" in done.stdout
    assert "worker lost, queued again" in done.stdout
    assert re.search(r"logs: continues after part \d+ of", done.stdout)
    assert "6 runs accepted, 6 completed, 1 server killed, nothing lost, every event received once," in done.stdout
    assert not list((tmp_path / "runlane.db.workers").iterdir()), "a lock file of a worker was left behind"


def test_hello_reports_a_broken_promise() -> None:
    # A server that cannot start is the one fault that can be made from outside.
    done = _run([str(HELLO)], ROOT, RUNLANE_LEASE_SECONDS="2", RUNLANE_HEARTBEAT_SECONDS="1")
    assert done.returncode == 1
    assert "FAILED: The server did not start" in done.stdout
    assert "The settings are not valid" in done.stdout


def test_shop_does_its_work(tmp_path: Path) -> None:
    shop = shutil.copytree(SHOP, tmp_path / "shop", ignore=shutil.ignore_patterns(".runlane", "pictures"))
    log = (tmp_path / "dev.log").open("w+")
    dev = forking.Popen(
        [sys.executable, "-m", "runlane", "dev", "shop.tasks:app"],
        cwd=shop,
        env=_environment(),
        stdout=log,
        stderr=log,
    )
    try:
        first, second = _run(["enqueue.py"], shop), _run(["enqueue.py"], shop)
    finally:
        dev.send_signal(signal.SIGTERM)
        try:
            code = dev.wait(60)
        finally:
            dev.kill()
    log.seek(0)
    log_text = log.read()
    log.close()
    assert first.returncode == second.returncode == code == 0, first.stderr + second.stderr + log_text
    lines, again = first.stdout.splitlines(), second.stdout.splitlines()
    assert [line.split()[1:3] for line in lines] == [["thumbnail", "completed"]] * 4 + [["report", "completed"]]
    assert lines[0] == again[0], "the idempotency key must give the same run"
    assert lines[1] != again[1]
    assert "'2026-10-01': 4900" in lines[4]
    picture = (shop / "pictures" / "a.200.ppm").read_bytes()
    assert picture.startswith(b"P6 200 150 255\n")
    assert len(picture) == len(b"P6 200 150 255\n") + 200 * 150 * 3
    assert "run_started" in log_text
    assert "Runlane dev: tasks report, thumbnail" in log_text


def _run(arguments: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return forking.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=_environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def _environment(**variables: str) -> dict[str, str]:
    ours = {key: value for key, value in os.environ.items() if not key.startswith("RUNLANE_")}
    return {**ours, "RUNLANE_WORKER_HEALTH_PORT": "0", **variables}
