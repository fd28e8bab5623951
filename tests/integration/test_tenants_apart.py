"""Two tenants in one process: what one reads of its runs is the same, whatever the other or the platform keeps secret.

A model that answers letter by letter makes visible what is held back from readers. If text of a tenant were
compared with a value that is not its own, the tenant could find that value out: it says a guess and watches when it
arrives.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import shutil
from collections.abc import Coroutine, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import Phase, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from pydantic import SecretStr

from runlane import Context, Fail, Status
from runlane.access.keyring import new_key
from runlane.access.secrets import SecretVault
from runlane.agents import delta_stream
from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.domain.events import Delta as LivePiece
from runlane.domain.events import Notice
from runlane.llm.models import Delta, ModelContext, ModelDelta, ModelReply, ModelRequest
from runlane.redaction import LOGS, REDACTED, is_hidable
from runlane.settings import Settings, redact_settings
from runlane.store.access.tenants import create_tenant
from tests.harness import settings_for
from tests.integration.process import Process

T = TypeVar("T")

VICTIM, OTHER = "victim", "other"
OWN = "own-token-of-the-victim"
# Words of events, of conditions and of Runlane's own fields, all of which a tenant may store as a secret.
WORDS = (
    "approved", "completed", "response", "thinking", "orch_step_id", "final_state", "step_name", "step_type",
    "duration_seconds", "tokens_in", "tool_calls", "traceback", "orchestration_complete", "attempt_failed",
)  # fmt: skip
FLOW: dict[str, Any] = {
    "id": "flow",
    "entry_step_id": "ask",
    "steps": [
        {
            "id": "ask",
            "type": "llm",
            "prompt_template": "{state.user_input}",
            "model": "letters",
            "output_key": "said",
            "next_step_id": "check",
        },
        {
            "id": "check",
            "type": "if_else",
            "if_condition": "'approved' in state.said",
            "if_true_step_id": "note",
            "if_false_step_id": "other",
        },
        {"id": "other", "type": "print", "print_content": "not approved", "next_step_id": "note", "output_key": "way"},
        {
            "id": "note",
            "type": "task",
            "task": "note",
            "arguments": {"text": "{state.said}"},
            "output_key": "noted",
            "next_step_id": "fail",
        },
        {
            "id": "fail",
            "type": "task",
            "task": "fall",
            "arguments": {"text": "{state.said}"},
            "output_key": "none",
            "on_error": "end",
            "next_step_id": "end",
        },
        {"id": "end", "type": "print", "print_content": "{state.error.message} {state.said}", "output_key": "last"},
    ],
}
hidable = st.text(min_size=8, max_size=30).filter(lambda text: text == text.strip() and is_hidable(text))


class Letters:
    """Repeats its prompt one letter at a time, so that each can be published before the next one comes."""

    def __call__(self, name: str, scene: ModelContext, /) -> Letters:
        return self

    async def credential(self) -> str:
        return ""

    async def answer(self, request: ModelRequest, delta: Delta | None = None) -> ModelReply:
        assert delta is not None
        for letter in request.prompt:
            delta(ModelDelta("text", letter))
            for _ in range(3):
                await asyncio.sleep(0)
        return ModelReply(request.prompt, model="letters")


@dataclass
class Seen:
    """Everything that a tenant can read of a run, without what differs from run to run."""

    status: Status
    result: Any
    state: Any
    error: Any
    events: list[tuple[str, Any]]
    live: list[tuple[str, Any]]


class House:
    """One process with a worker for both tenants. It is idle between examples, so that nothing else draws numbers."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._runner = asyncio.Runner()
        self._process: Process
        self._vault: SecretVault
        self.wait(self._open())

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def close(self) -> None:
        self.wait(self._process.stop())
        self._runner.close()

    def seen(self, message: str) -> Seen:
        """Let the victim run its flow with this message."""
        return self.wait(self._seen(message))

    def keep(self, values: Sequence[str]) -> None:
        """Store these values for the other tenant and use all of them in a run that repeats them."""
        self.wait(self._keep(values))

    async def _open(self) -> None:
        self._process = Process(self._settings)
        app = self._process.app
        app.models.register("letters", Letters())

        @app.task("note", max_attempts=1)
        async def note(ctx: Context, text: str) -> dict[str, Any]:
            own = await ctx.secret("OWN")
            await ctx.log(text, text=text, own=own, nested={text: [text]})
            await ctx.progress(0.5, text)
            await ctx.checkpoint({text: text})
            return {"text": text, text: "as a key", "own": own, "basic": base64.b64encode(own.encode()).decode()}

        @app.task("fall", max_attempts=1)
        async def fall(ctx: Context, text: str) -> None:
            raise Fail(text)

        @app.task("use", max_attempts=1)
        async def use(ctx: Context, names: list[str]) -> list[str]:
            return [await ctx.secret(name) for name in names]

        await self._process.start()
        database = await app.database()
        self._vault = (await app.connect()).vault
        for tenant in (VICTIM, OTHER):
            await create_tenant(database, tenant, actor="test")
        await sync_definitions(database, VICTIM, parse_bodies({"orchestrations": [FLOW]}), actor="test")
        await self._vault.set(VICTIM, "OWN", OWN, actor="test")

    async def _keep(self, values: Sequence[str]) -> None:
        names = [f"S{number}" for number in range(len(values))]
        for name, value in zip(names, values, strict=True):
            await self._vault.set(OTHER, name, value, actor="test")
        run = await self._process.run("use", {"names": names}, tenant=OTHER)
        assert run.result == [REDACTED] * len(names)

    async def _seen(self, message: str) -> Seen:
        app, live = self._process.app, list[tuple[str, Any]]()
        connection = await app.connect()
        accepted = await app.orchestrate("flow", message, tenant=VICTIM, hold=True)

        def receive(published: Notice | LivePiece) -> None:
            if isinstance(published, LivePiece):
                live.append((published.type, json.loads(published.data)))

        leave = connection.bus.follow(accepted.run_id, receive)
        await app.approve(accepted.run_id)
        run = await self._process.end(accepted.run_id)
        leave()
        found = [(event.type, _steady(event.data)) for event in await self._process.events(accepted.run_id)]
        return Seen(run.status, run.result, run.state, run.error, found, live)


def _steady(data: dict[str, Any]) -> dict[str, Any]:
    """Return the data of an event without what is different in every run."""
    return {name: None if name in ("duration_seconds", "worker_id") else value for name, value in data.items()}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Generator[House]:
    path = tmp_path_factory.mktemp("apart") / "runlane.db"
    shutil.copyfile(sqlite_template, path)
    with pytest.MonkeyPatch.context() as patch:
        # Each piece goes by itself, so that what is held back can be seen.
        patch.setattr(delta_stream, "TOGETHER_SECONDS", 0.0)
        opened = House(settings_for(f"sqlite:///{path}", timer_seconds=0.02, secret_key=new_key()))
        try:
            yield opened
        finally:
            opened.close()


def platform(password: str, key: str) -> None:
    """Register a password and a master key as secrets of the process."""
    redact_settings(
        Settings(database_url=SecretStr(f"postgresql://app:{password}@db.local/shop"), secret_key=SecretStr(key))
    )


@given(
    kept=st.lists(st.one_of(st.sampled_from(WORDS), hidable), min_size=1, max_size=4, unique=True),
    before=st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=5),
    cut=st.integers(1, 30),
)
# Not shrunk: an example takes half a second, and any difference is a leak.
@examples(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_output_for_a_tenant_does_not_depend_on_secrets_of_others(
    house: House, kept: list[str], before: str, cut: int
) -> None:
    password, key = secrets.token_urlsafe(12), base64.b64encode(secrets.token_bytes(32)).decode()
    guesses = [*kept, *(value[:cut] for value in (*kept, password, key)), password, key, "approved", OWN]
    message = before + " ".join("".join(filter(str.isprintable, guess)) for guess in guesses)
    LOGS.forget_all()
    alone = house.seen(message)
    house.keep(kept)
    platform(password, key)
    assert LOGS.occurs(f"{key} {password}")
    assert house.seen(message) == alone
    assert alone.status is Status.COMPLETED
    # What is the tenant's own is still taken out, from when the run has used it on.
    assert alone.state["noted"]["own"] == alone.state["noted"]["basic"] == REDACTED
    assert OWN not in json.dumps([alone.state["noted"], [event for event in alone.events if event[0] == "log"]])


@pytest.mark.parametrize("whose", ["master key", "database password", "secret of another tenant", "word"])
def test_a_guess_is_shown_letter_by_letter_as_any_other_text_is(house: House, whose: str) -> None:
    known = "approved" if whose == "word" else base64.b64encode(secrets.token_bytes(32)).decode()
    match whose:
        case "master key":
            platform("irrelevant-here", known)
        case "database password":
            platform(known.replace("/", "_").replace("+", "-").replace("=", "."), new_key())
            known = known.replace("/", "_").replace("+", "-").replace("=", ".")
        case _:
            house.keep([known])
    assert LOGS.occurs(known)
    for length in (1, 4, 7, 8, len(known) - 1, len(known)):
        guess = known[:length]
        random = "".join(secrets.choice("bcdfghjk") for _ in range(length))
        shown = [text for kind, data in house.seen(guess).live if kind == "text" for text in [data["text"]]]
        other = [text for kind, data in house.seen(random).live if kind == "text" for text in [data["text"]]]
        assert shown == list(guess)
        assert other == list(random)


def test_a_secret_of_the_tenant_itself_is_held_back_from_when_the_run_has_used_it(house: House) -> None:
    """The same text before and behind the use: only behind it the value is replaced."""
    seen = house.seen(f"{OWN} approved")
    (log,) = [data for kind, data in seen.events if kind == "log"]
    assert log == {"message": f"{REDACTED} approved", "fields": {
        "text": f"{REDACTED} approved", "own": REDACTED, "nested": {f"{REDACTED} approved": [f"{REDACTED} approved"]},
    }}  # fmt: skip
    assert OWN not in json.dumps([seen.result, seen.error, seen.state])
