"""Changes of one transaction while another is open: neither is lost, and nothing stays blocked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runlane.access import secrets as vaults
from runlane.access.keyring import new_key
from runlane.access.secrets import SecretVault
from runlane.domain.run import AGENT, Status
from runlane.domain.tenant import scoped_key
from runlane.settings import load_settings
from runlane.store.access import secrets
from runlane.store.chat.posting import post_turn
from runlane.store.queue.ordering import key_locks
from runlane.store.queue.record import record
from runlane.store.sql.database import Session
from tests.harness import Store, completed, entry_of, eventually, new_run


def vault_of(store: Store, *keys: str) -> SecretVault:
    assert store.settings.database_url is not None
    url = store.settings.database_url.get_secret_value()
    return SecretVault(store.database, load_settings(database_url=url, secret_key=",".join(keys)))


async def test_a_value_that_is_set_again_during_a_rotation_stays(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    old, fresh = new_key(), new_key()
    before = vault_of(store, old)
    await before.set("default", "TOKEN", "first-value", actor="test")

    async def reseal(*arguments: Any, **options: Any) -> int:
        # The rotation has read the first value; this one is stored under the same key, as another version.
        await before.set("default", "TOKEN", "second-value", actor="test")
        return await secrets.reseal(*arguments, **options)

    monkeypatch.setattr(vaults, "reseal", reseal)
    both = vault_of(store, fresh, old)
    assert (await both.rotate(actor="test")).rotated == 0
    assert await both.values("default", ["TOKEN"]) == {"TOKEN": "second-value"}


async def test_a_process_uses_the_value_that_it_has_just_set(store: Store) -> None:
    """Even while what it has read before is fresh."""
    assert store.settings.database_url is not None
    url = store.settings.database_url.get_secret_value()
    settings = load_settings(database_url=url, secret_key=new_key())
    vault = SecretVault(store.database, settings, clock=lambda: 0.0)
    for value in ("first-value", "second-value"):
        await vault.set("default", "TOKEN", value, actor="test")
        assert await vault.values("default", ["TOKEN"]) == {"TOKEN": value}
    await vault.delete("default", "TOKEN", actor="test")
    assert await vault.values("default", ["TOKEN"]) == {}


# SQLite has one writer at a time, so the two cannot meet there.
@pytest.mark.parametrize("settings", ["postgres", "postgres-pgbouncer"], indirect=True)
async def test_a_turn_that_is_posted_while_the_one_before_it_ends_is_queued(store: Store) -> None:
    run = new_run(
        target=f"{AGENT}bird", ordering_key=scoped_key("default", "chat:sess_1"), tenant="default", plan='{"pins":{}}'
    )
    await post_turn(store.database, run, session_id="sess_1", agent="bird", message="one", is_new=True)
    (claimed,) = await store.claim(await store.worker(), targets=[AGENT], slots=1)
    ended, let_go = asyncio.Event(), asyncio.Event()

    async def end(session: Session) -> None:
        await session.lock(exclusive=key_locks([claimed.ordering_key]))
        await record(session, [entry_of(claimed, completed())])
        ended.set()
        await let_go.wait()

    ending = asyncio.create_task(store.database.transact(end))
    await ended.wait()
    following = run._replace(id="run_following")
    posting = asyncio.create_task(
        post_turn(store.database, following, session_id="sess_1", agent="bird", message="two", is_new=False)
    )

    async def held_up() -> bool:
        waiting = await store.sql("select 1 from pg_locks where locktype = 'advisory' and not granted")
        return posting.done() or bool(waiting)

    await eventually(held_up, "the second post to wait for the first turn's end")
    let_go.set()
    await ending
    await posting
    assert await store.status("run_following") is Status.QUEUED
