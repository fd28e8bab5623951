"""The store of conversations: what is stored together, what is refused, and what outlives what."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runlane.domain.ids import new_id
from runlane.domain.run import AGENT, Status
from runlane.domain.tenant import TenantLimits, scoped_key
from runlane.domain.text import dump_json
from runlane.errors import Conflict, RateLimited, UnknownSession, WrongState
from runlane.store.access.tenants import create_tenant, delete_tenant
from runlane.store.chat.deletion import delete_old_sessions, delete_session
from runlane.store.chat.posting import ChatTurn, post_turn
from runlane.store.chat.turns import find_session, list_sessions, open_turns, read_before, read_turns
from runlane.store.queue.retention import delete_old
from runlane.store.queue.run_changes import cancel_run
from tests.harness import Store, completed, dead, entry_of, new_run

DAY = 86400.0


async def say(store: Store, message: str, session_id: str | None = None, **more: Any) -> ChatTurn:
    name = session_id or new_id("sess")
    tenant = more.pop("tenant", "default")
    agent = more.pop("agent", "bird")
    run = new_run(
        target=f"{AGENT}{agent}",
        ordering_key=scoped_key(tenant, f"chat:{name}"),
        tenant=tenant,
        plan='{"pins":{}}',
        **more,
    )
    return await post_turn(
        store.database, run, session_id=name, agent=agent, message=message, is_new=session_id is None
    )


async def answer(store: Store, text: str = "yes") -> str:
    """Finish the turn that is next; its run."""
    (claimed,) = await store.claim(await store.worker(), targets=[AGENT], slots=1)
    await store.record(entry_of(claimed, completed(dump_json(text))))
    return claimed.run_id


async def age(store: Store, *tables: tuple[str, str]) -> None:
    for table, column in tables:
        await store.sql(f"update {table} set {column} = {column} - {int(10 * DAY * 1_000_000)}")


async def test_a_turn_is_stored_with_its_run(store: Store) -> None:
    first = await say(store, "one")
    second = await say(store, "two", first.session_id)
    assert (first.turn, second.turn) == (1, 2)
    assert await open_turns(store.database, first.session_id) == [
        (1, first.accepted.run_id),
        (2, second.accepted.run_id),
    ]
    run = await store.get(second.accepted.run_id)
    assert run.plan == {"pins": {}, "chat": {"session_id": first.session_id, "turn": 2}}
    assert run.status is Status.BLOCKED
    assert await answer(store) == first.accepted.run_id
    (done, waits) = await read_turns(store.database, first.session_id)
    assert (done.status, done.answer, done.kept) == (Status.COMPLETED, "yes", True)
    assert (waits.status, waits.answer, waits.ended_at_us) == (Status.QUEUED, None, None)
    session = await find_session(store.database, first.session_id)
    assert (session.status, session.turns) == (Status.QUEUED, 2)


async def test_a_refused_run_leaves_no_turn_and_no_session(store: Store) -> None:
    await create_tenant(store.database, "acme", limits=TenantLimits(max_queued=1), actor="test")
    first = await say(store, "one", tenant="acme")
    with pytest.raises(UnknownSession):
        await say(store, "two", first.session_id, tenant="default")
    with pytest.raises(Conflict):
        await say(store, "two", first.session_id, tenant="acme", agent="owl")
    with pytest.raises(RateLimited):
        await say(store, "two", first.session_id, tenant="acme")
    with pytest.raises(RateLimited):
        await say(store, "another", tenant="acme")
    assert [turn.message for turn in await read_turns(store.database, first.session_id)] == ["one"]
    assert len(await list_sessions(store.database)) == 1


async def test_two_posts_at_the_same_moment_are_two_turns_in_order(store: Store) -> None:
    first = await say(store, "one")
    posts = await asyncio.gather(*(say(store, f"m{number}", first.session_id) for number in range(8)))
    assert sorted(post.turn for post in posts) == list(range(2, 10))
    by_turn = {post.turn: post.accepted.run_id for post in posts} | {1: first.accepted.run_id}
    assert [await answer(store) for _ in range(9)] == [by_turn[turn] for turn in range(1, 10)]


async def test_a_repeated_post_is_found_again_whatever_session_it_would_have_begun(store: Store) -> None:
    first = await say(store, "one", idempotency_key="k", fingerprint="f")
    again = await say(store, "one", idempotency_key="k", fingerprint="f")
    assert (again.session_id, again.turn, again.accepted.replayed) == (first.session_id, 1, True)
    assert len(await list_sessions(store.database)) == 1
    await store.add(idempotency_key="other", fingerprint="g")
    with pytest.raises(Conflict, match="not a chat turn"):
        await say(store, "one", idempotency_key="other", fingerprint="g")


async def test_the_last_turns_before_a_number_are_read_in_order(store: Store) -> None:
    first = await say(store, "1")
    for number in range(2, 6):
        await say(store, str(number), first.session_id)
    assert [turn.message for turn in await read_before(store.database, first.session_id, 5, 2)] == ["3", "4"]
    assert [turn.message for turn in await read_turns(store.database, first.session_id, 3)] == ["4", "5"]
    assert await read_before(store.database, first.session_id, 1, 10) == []


async def test_a_conversation_outlives_its_runs(store: Store) -> None:
    first = await say(store, "one")
    second = await say(store, "two", first.session_id)
    await answer(store, "eins")
    (claimed,) = await store.claim(await store.worker(), targets=[AGENT], slots=1)
    await store.record(entry_of(claimed, dead("no luck")))
    await age(store, ("runs", "ended_at"), ("chat_sessions", "last_at"))
    third = await say(store, "three", first.session_id)
    assert await store.database.transact(lambda session: delete_old(session, DAY)) == 2
    assert await store.database.transact(lambda session: delete_old_sessions(session, DAY)) == 0
    one, two, three = await read_turns(store.database, first.session_id)
    assert (one.answer, one.status, one.kept, one.run_id) == ("eins", Status.COMPLETED, False, first.accepted.run_id)
    assert (two.answer, two.status, two.kept, two.run_id) == (None, Status.FAILED, False, second.accepted.run_id)
    assert two.error is not None
    assert two.error["message"] == "no luck"
    assert one.ended_at_us is not None
    assert (three.status, three.kept) == (Status.QUEUED, True)
    assert await open_turns(store.database, first.session_id) == [(3, third.accepted.run_id)]


async def test_a_session_goes_when_its_last_run_has_gone(store: Store) -> None:
    old = await say(store, "one")
    await answer(store)
    asked = await say(store, "still open")
    await age(store, ("runs", "ended_at"), ("chat_sessions", "last_at"))
    young = await say(store, "two")
    assert await store.database.transact(lambda session: delete_old_sessions(session, DAY)) == 0
    await store.database.transact(lambda session: delete_old(session, DAY))
    assert await store.database.transact(lambda session: delete_old_sessions(session, DAY)) == 1
    with pytest.raises(UnknownSession):
        await find_session(store.database, old.session_id)
    assert await read_turns(store.database, old.session_id) == []
    kept = {session.session_id for session in await list_sessions(store.database)}
    assert kept == {asked.session_id, young.session_id}


async def test_a_deleted_session_takes_all_its_messages_with_it(store: Store) -> None:
    first = await say(store, "one", idempotency_key="k", fingerprint="f")
    with pytest.raises(WrongState, match="has not ended"):
        await delete_session(store.database, first.session_id)
    (claimed,) = await store.claim(await store.worker(), targets=[AGENT], slots=1)
    await store.record(entry_of(claimed, dead()))
    second = await say(store, "two", first.session_id)
    await cancel_run(store.database, second.accepted.run_id)
    await delete_session(store.database, first.session_id)
    for table in ("runs", "run_inputs", "run_events", "dead_letters", "idempotency_keys", "chat_turns"):
        assert await store.count(table) == 0, table
    with pytest.raises(UnknownSession):
        await delete_session(store.database, first.session_id)


async def test_sessions_are_listed_by_tenant_and_agent_and_page_by_page(store: Store) -> None:
    await create_tenant(store.database, "acme", actor="test")
    mine = [await say(store, "hi") for _ in range(3)]
    owl = await say(store, "hi", agent="owl")
    theirs = await say(store, "hi", tenant="acme")
    names = sorted((post.session_id for post in [*mine, owl]), reverse=True)
    page = await list_sessions(store.database, tenant="default", limit=2)
    assert [session.session_id for session in page] == names[:2]
    page = await list_sessions(store.database, tenant="default", before=names[1], limit=10)
    assert [session.session_id for session in page] == names[2:]
    assert [session.session_id for session in await list_sessions(store.database, agent="owl")] == [owl.session_id]
    assert len(await list_sessions(store.database)) == 5
    run_id = theirs.accepted.run_id
    await cancel_run(store.database, run_id)
    await age(store, ("runs", "ended_at"))
    await store.database.transact(lambda session: delete_old(session, DAY))
    await delete_tenant(store.database, "acme", actor="test")
    assert len(await list_sessions(store.database)) == 4
    assert await read_turns(store.database, theirs.session_id) == []
