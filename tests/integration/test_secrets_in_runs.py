"""Secrets in runs: tasks read them, a new value is used soon, and a broken secret fails its step only."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from runlane import Context, Run, Status
from runlane.access.keyring import new_key
from runlane.access.secrets import SecretVault
from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.redaction import REDACTED
from runlane.settings import Settings
from runlane.store.access.secrets import delete_secret
from runlane.store.access.tenants import create_tenant
from tests.harness import Store, eventually, settings_for
from tests.integration.process import Process

CANARY = "canary-9ab1f3-secret"
FLOW: dict[str, Any] = {
    "id": "flow",
    "entry_step_id": "use",
    "steps": [
        {"id": "use", "type": "task", "task": "use", "output_key": "used", "on_error": "sorry", "next_step_id": "end"},
        {"id": "sorry", "type": "print", "print_content": "{state.error.message}", "output_key": "said"},
        {"id": "end", "type": "print", "print_content": "fine: {state.used}", "output_key": "said"},
    ],
}


def digest(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()


@pytest.fixture
def keyed(settings: Settings) -> Settings:
    assert settings.database_url is not None
    return settings_for(settings.database_url.get_secret_value(), secret_key=new_key())


def with_tasks(settings: Settings) -> Process:
    process = Process(settings)

    @process.app.task("use", max_attempts=1)
    async def use(ctx: Context) -> str:
        return digest(await ctx.secret("TOKEN"))

    @process.app.task("use in a thread", max_attempts=1)
    def use_in_a_thread(ctx: Context) -> list[str]:
        value: str = ctx.secret("TOKEN")
        return [digest(value), value]

    return process


async def test_tasks_get_the_secrets_of_their_tenant(keyed: Settings) -> None:
    process = with_tasks(keyed)
    await process.start()
    try:
        database = await process.app.database()
        vault = SecretVault(database, keyed)
        await create_tenant(database, "acme", actor="test")
        await vault.set("default", "TOKEN", CANARY, actor="test")
        await vault.set("acme", "TOKEN", f"{CANARY}-acme", actor="test")
        assert (await process.run("use")).result == digest(CANARY)
        assert (await process.run("use", tenant="acme")).result == digest(f"{CANARY}-acme")
        assert (await process.run("use in a thread")).result == [digest(CANARY), REDACTED]
        await vault.set("default", "TOKEN", f"{CANARY}-2", actor="test")

        async def uses_it() -> bool:
            return (await process.run("use")).result == digest(f"{CANARY}-2")

        await eventually(uses_it, "the new value")
        await delete_secret(database, "default", "TOKEN", actor="test")

        async def is_gone() -> bool:
            run = await process.run("use")
            return run.status is Status.FAILED and 'No secret "TOKEN" is set' in str(run.error)

        await eventually(is_gone, "the end of the secret")
    finally:
        await process.stop()


@pytest.mark.parametrize("harm", ["other key", "tampered", "swapped", "missing"])
async def test_a_broken_secret_fails_its_step_only(keyed: Settings, store: Store, harm: str) -> None:
    vault = SecretVault(store.database, keyed)
    await vault.set("default", "TOKEN", CANARY, actor="test")
    await vault.set("default", "OTHER", f"{CANARY}-other", actor="test")
    settings = keyed
    match harm:
        case "other key":
            settings = settings_for(
                keyed.database_url.get_secret_value() if keyed.database_url else "", secret_key=new_key()
            )
        case "tampered":
            (row,) = await store.sql("select value from secrets where name = 'TOKEN'")
            # In the middle: the last letter of base64 has bits that mean nothing.
            middle = len(row["value"]) // 2
            other = "A" if row["value"][middle] != "A" else "B"
            changed = f"{row['value'][:middle]}{other}{row['value'][middle + 1 :]}"
            await store.sql("update secrets set value = :value where name = 'TOKEN' returning name", value=changed)
        case "swapped":
            await store.sql(
                "update secrets set value = (select value from secrets where name = 'OTHER') where name = 'TOKEN' "
                "returning name"
            )
        case _:
            await delete_secret(store.database, "default", "TOKEN", actor="test")
    process = with_tasks(settings)
    await process.start()
    try:
        database = await process.app.database()
        await sync_definitions(database, "default", parse_bodies({"orchestrations": [FLOW]}), actor="test")
        run = await process.end((await process.app.orchestrate("flow")).run_id)
        assert run.status is Status.COMPLETED, run.error
        wanted = {
            "other key": "which this process does not have",
            "tampered": "its row was changed",
            "swapped": "its row was changed, or copied",
            "missing": 'No secret "TOKEN" is set',
        }
        assert wanted[harm] in str(run.result)
        assert CANARY not in str(run.result)
        # The worker continues, and other secrets are not affected.
        if harm != "other key":
            assert await process.app.connect()
            assert (await SecretVault(database, settings).values("default", ["OTHER"]))["OTHER"] == f"{CANARY}-other"
        else:
            assert (await process.run("use")).status is Status.FAILED
    finally:
        await process.stop()


async def test_a_run_continues_with_what_was_stored(keyed: Settings, store: Store) -> None:
    """A secret in a step's output is taken out before the next step sees it, not only before it is stored."""
    process = Process(keyed)

    @process.app.task("use")
    async def use(ctx: Context) -> dict[str, Any]:
        return {"header": f"Bearer {await ctx.secret('TOKEN')}"}

    await SecretVault(store.database, keyed).set("default", "TOKEN", CANARY, actor="test")
    flow = {**FLOW, "steps": [FLOW["steps"][0], *FLOW["steps"][1:]]}
    await process.start()
    try:
        await sync_definitions(store.database, "default", parse_bodies({"orchestrations": [flow]}), actor="test")
        run = await process.end((await process.app.orchestrate("flow")).run_id)
        assert (run.status, run.state) == (Status.COMPLETED, run.state)
        assert run.state is not None
        assert run.state["used"] == {"header": f"Bearer {REDACTED}"}
        assert f"Bearer {REDACTED}" in str(run.result)
    finally:
        await process.stop()


# Names and words of Runlane's own, all of which a tenant may store.
OWN_WORDS = (
    "orch_step_id", "step_name", "step_type", "duration_seconds", "tool_calls", "tool_name", "arguments", "thinking",
    "tokens_in", "tokens_out", "cost_usd", "agent_context", "channel_id", "final_state", "response", "input_schema",
    "description", "properties", "completed", "call_again", "traceback", "model_response", "arguments_schema",
)  # fmt: skip


def answering_flow() -> dict[str, Any]:
    """Uses every word as a secret, then an agent with a tool that a person approves, which is a new attempt."""
    agent = {"id": "ask", "type": "agent", "agent_id": "clerk", "prompt_template": "go", "output_key": "said"}
    print_ = {"id": "end", "type": "print", "print_content": "{state.said} {state.used}", "output_key": "last"}
    flow = {
        "id": "words",
        "entry_step_id": "use",
        "steps": [
            {"id": "use", "type": "task", "task": "use words", "output_key": "used", "next_step_id": "ask"},
            {**agent, "next_step_id": "again"},
            # The output of the new attempt is redacted with them too.
            {"id": "again", "type": "task", "task": "use words", "output_key": "used", "next_step_id": "end"},
            print_,
        ],
    }
    clerk = {
        "id": "clerk",
        "model": "scripted",
        "tools": ["note"],
        "answers": [
            {"calls": [{"tool": "note", "arguments": {"text": "description of properties"}}], "thinking": "thinking"},
            "all completed",
        ],
    }
    tool = {
        "name": "note",
        "tool_type": "task",
        "task": "note",
        "requires_approval": True,
        "input_schema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    }
    return {"orchestrations": [flow], "agents": [clerk], "tools": [tool]}


async def test_a_run_whose_secrets_are_our_own_keywords_continues_with_readable_events(keyed: Settings) -> None:
    process, noted = Process(keyed), list[str]()

    @process.app.task("use words")
    async def use_words(ctx: Context) -> list[str]:
        return [await ctx.secret(f"S{number}") for number in range(len(OWN_WORDS))] if ctx.saved is None else []

    @process.app.task("use nothing")
    async def use_nothing(ctx: Context) -> list[str]:
        return []

    @process.app.task("note")
    async def note(ctx: Context, text: str) -> dict[str, str]:
        noted.append(text)
        return {"description": text}

    async def through(flow: str) -> tuple[Run, list[tuple[str, frozenset[str]]]]:
        accepted = await process.app.orchestrate(flow)

        async def has_question() -> bool:
            return (await process.app.get(accepted.run_id)).status is Status.PAUSED

        await eventually(has_question, "the question")
        await process.app.resume(accepted.run_id, {"decision": "approve"})
        run = await process.end(accepted.run_id)
        return run, [(event.type, frozenset(event.data)) for event in await process.events(accepted.run_id)]

    await process.start()
    try:
        database = await process.app.database()
        bodies = answering_flow()
        plain: dict[str, Any] = {**bodies["orchestrations"][0], "id": "plain"}
        steps: list[dict[str, Any]] = plain["steps"]
        nothing = [{**step, "task": "use nothing"} if step["type"] == "task" else step for step in steps]
        bodies["orchestrations"].append({**plain, "steps": nothing})
        await sync_definitions(database, "default", parse_bodies(bodies), actor="test")
        vault = (await process.app.connect()).vault
        for number, word in enumerate(OWN_WORDS):
            await vault.set("default", f"S{number}", word, actor="test")
        ordinary, wanted = await through("plain")
        run, events = await through("words")
        assert (ordinary.status, ordinary.error) == (Status.COMPLETED, None)
        assert (run.status, run.error) == (Status.COMPLETED, None)
        assert events == wanted
        # A model's arguments are data: they are cleaned before the call, as they are where they are stored.
        assert noted == ["description of properties", f"{REDACTED} of {REDACTED}"]
        assert run.state is not None
        assert run.state["used"] == [REDACTED] * len(OWN_WORDS)
    finally:
        await process.stop()
