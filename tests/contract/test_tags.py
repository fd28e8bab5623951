"""Tags: stored with the run in one transaction, found by lists, changed later, and free for runs without them."""

from __future__ import annotations

import asyncio

import pytest

from runlane import App, Context
from runlane.domain.run import Accepted, Status
from runlane.domain.tags import MAX_TAGS, TagChange, check_change, fork_mark
from runlane.domain.tenant import TenantLimits
from runlane.errors import IdempotencyConflict, InvalidRequest, QueueLimited, RunNotFound
from runlane.settings import Settings
from runlane.store.access.audit import list_audit
from runlane.store.access.tenants import create_tenant
from runlane.store.queue.accept import stand_alone
from runlane.store.queue.retention import delete_old
from runlane.store.queue.search import RunFilter, search_runs
from runlane.store.queue.tags import add_tags, set_tags, tag_run
from runlane.store.sql.database import Session
from tests.harness import Store, new_run


async def tagged(store: Store, *tags: str, tenant: str | None = None) -> list[str]:
    return [run.id for run in (await search_runs(store.database, RunFilter(tags=tags, tenant=tenant))).runs]


async def test_tags_are_stored_with_the_run_and_found_by_lists(store: Store) -> None:
    plain, one = await store.add(), await store.add(tags=("nightly",))
    both = await store.add(tags=("eu", "nightly"))
    assert (await store.get(plain)).tags == ()
    assert (await store.get(both)).tags == ("eu", "nightly")
    assert await tagged(store, "nightly") == [both, one]
    assert await tagged(store, "nightly", "eu") == [both]
    assert await tagged(store, "nigh") == []
    listed = {run.id: run.tags for run in (await search_runs(store.database, RunFilter())).runs}
    assert listed == {plain: (), one: ("nightly",), both: ("eu", "nightly")}


async def test_a_run_without_tags_is_accepted_by_the_short_statement(store: Store) -> None:
    assert stand_alone([new_run()])
    assert not stand_alone([new_run(tags=("a",))])
    await store.add()
    assert await store.count("run_tags") == 0


async def test_tags_belong_to_a_tenant(store: Store) -> None:
    await create_tenant(store.database, "acme", actor="test")
    mine, other = await store.add(tags=("shared",)), await store.add(tags=("shared",), tenant="acme")
    assert await tagged(store, "shared", tenant="default") == [mine]
    assert await tagged(store, "shared", tenant="acme") == [other]
    assert await tagged(store, "shared") == [other, mine]


async def test_tags_change_whatever_the_status_and_the_change_is_audited(store: Store) -> None:
    run_id = await store.add(tags=("b", "c"))
    await store.finish(await store.claim_one())
    assert (await tag_run(store.database, run_id, check_change(["a"], ["c"]), actor="me")).new == ("a", "b")
    assert (await store.get(run_id)).tags == ("a", "b")
    assert [await tagged(store, tag) for tag in "abc"] == [[run_id], [run_id], []]
    await tag_run(store.database, run_id, check_change(["a"]), actor="me")
    await tag_run(store.database, run_id, check_change(replace=[]), actor="me")
    assert (await store.get(run_id)).tags == ()
    assert await store.count("run_tags") == 0
    entries = [entry for entry in await list_audit(store.database, subject=run_id) if entry.action == "run.tag"]
    assert [(entry.actor, entry.old, entry.new) for entry in entries] == [
        ("me", {"tags": ["a", "b"]}, {"tags": []}),
        ("me", {"tags": ["b", "c"]}, {"tags": ["a", "b"]}),
    ]
    with pytest.raises(RunNotFound):
        await tag_run(store.database, "run_unknown", check_change(["a"]), actor="me")


async def test_many_runs_are_tagged_at_once_and_one_with_too_many_is_left(store: Store) -> None:
    full = await store.add(tags=tuple(f"t{number:02}" for number in range(MAX_TAGS)))
    runs = [await store.add(tags=("old",)) for _ in range(3)]

    async def work(session: Session) -> dict[str, str | None]:
        changed = await set_tags(session, [*runs, full, "run_unknown"], TagChange(add=("new",), remove=("old",)))
        return {run.run_id: None if run.refusal is None else str(run.refusal) for run in changed}

    refusals = await store.database.transact(work)
    assert refusals == dict.fromkeys(runs) | {
        full: f"The run would have {MAX_TAGS + 1} tags; at most {MAX_TAGS} are allowed. Remove some."
    }
    assert await tagged(store, "new") == runs[::-1]
    assert len((await store.get(full)).tags) == MAX_TAGS


async def test_concurrent_changes_of_tags_are_all_kept(store: Store) -> None:
    run_id = await store.add()
    names = [f"t{number}" for number in range(8)]
    await asyncio.gather(*(tag_run(store.database, run_id, check_change([name]), actor="me") for name in names))
    assert (await store.get(run_id)).tags == tuple(names)
    assert await store.count("run_tags") == len(names)


async def test_a_worker_records_while_tags_change(store: Store) -> None:
    run_id = await store.add()
    claimed = await store.claim_one()
    await asyncio.gather(store.finish(claimed), tag_run(store.database, run_id, check_change(["seen"]), actor="me"))
    run = await store.get(run_id)
    assert (run.status, run.tags) == (Status.COMPLETED, ("seen",))


async def test_a_rejected_or_repeated_request_stores_no_tags(store: Store) -> None:
    await create_tenant(store.database, "acme", actor="test", limits=TenantLimits(max_queued=1))
    first = new_run(tenant="acme", tags=("a",), idempotency_key="k", fingerprint="f")
    await store.add_all(first)
    again, refused = await store.accept(first._replace(id="run_again"), new_run(tenant="acme", tags=("b",)))
    assert again == Accepted(first.id, Status.QUEUED, "default", replayed=True)
    assert isinstance(refused, QueueLimited)
    rows = await store.sql("select tag, run_id from run_tags")
    assert [(row["tag"], row["run_id"]) for row in rows] == [("a", first.id)]


async def test_forks_are_listed_beside_other_filters_and_their_mark_is_not_a_tag(store: Store) -> None:
    origin = await store.add()
    forks = [await store.add(tags=("a",)), await store.add(), await store.add(origin='{"schedule": "nightly"}')]
    await store.add(tags=("a",), origin='{"schedule": "nightly"}')

    async def mark(session: Session) -> None:
        await add_tags(session, [("default", fork, (fork_mark(origin),)) for fork in forks])

    await store.database.transact(mark)
    for wanted, expected in (
        (RunFilter(forked_from=origin), forks),
        (RunFilter(forked_from=origin, tags=("a",)), forks[:1]),
        (RunFilter(forked_from=origin, schedule_id="nightly"), forks[2:]),
        (RunFilter(forked_from=origin, tenant="acme"), []),
        (RunFilter(forked_from=forks[0]), []),
    ):
        found = (await search_runs(store.database, wanted)).runs
        assert sorted(run.id for run in found) == sorted(expected), wanted
    await tag_run(store.database, forks[0], check_change(replace=["b"]), actor="test")
    (run,) = (await search_runs(store.database, RunFilter(forked_from=origin, tags=("b",)))).runs
    assert (run.id, run.tags) == (forks[0], ("b",))


async def test_the_schedule_of_a_run_is_kept_when_its_tags_change_and_is_not_a_tag(store: Store) -> None:
    run_id = await store.add(origin='{"schedule": "nightly"}', tags=("a",))
    for change in (check_change(["b"]), check_change(replace=[])):
        await tag_run(store.database, run_id, change, actor="me")
        found = (await search_runs(store.database, RunFilter(schedule_id="nightly"))).runs
        assert [run.id for run in found] == [run_id]
    assert (await store.get(run_id)).tags == ()
    with pytest.raises(InvalidRequest):
        check_change(["#schedule:nightly"])


async def test_retention_deletes_the_tags_of_a_run(store: Store) -> None:
    await store.add(tags=("old",))
    kept = await store.add(tags=("old",))
    await store.finish(await store.claim_one())
    await store.sql("update runs set ended_at = 1 where ended_at is not null")
    assert await store.database.transact(lambda session: delete_old(session, 60.0)) == 1
    assert await tagged(store, "old") == [kept]
    assert await store.count("run_tags") == 1


async def test_every_kind_of_request_takes_tags(settings: Settings, store: Store) -> None:
    app = App(settings)

    @app.task("job")
    async def job(ctx: Context) -> None: ...

    async with app:
        await app.sync(
            {
                "orchestrations": [{"id": "flow", "steps": [{"id": "a", "type": "print", "print_content": "x"}]}],
                "agents": [{"id": "helper"}],
            }
        )
        started = [
            (await app.enqueue("job", tags=["z", "a", "a"])).run_id,
            (await app.enqueue_many([("job", {})], tags=["a"]))[0].run_id,
            (await app.orchestrate("flow", tags=["a"])).run_id,
            (await app.ask("helper", "hi", tags=["a"])).run_id,
            (await app.chat("helper", "hi", tags=["a"])).run_id,
        ]
        assert [run.id async for run in app.list(tag="a")] == started[::-1]
        assert (await app.get(started[0])).tags == ("a", "z")
        assert await app.set_tags(started[0], add=["b"], remove=["z"]) == ("a", "b")
        assert [run.id async for run in app.list(tag=["a", "b"])] == started[:1]


async def test_tags_are_part_of_the_request_that_an_idempotency_key_names(settings: Settings) -> None:
    app = App(settings)

    @app.task("job")
    async def job(ctx: Context) -> None: ...

    async with app:
        first = await app.enqueue("job", tags=["b", "a"], idempotency_key="k")
        again = await app.enqueue("job", tags=["a", "b"], idempotency_key="k")
        assert (again.run_id, again.replayed) == (first.run_id, True)
        with pytest.raises(IdempotencyConflict):
            await app.enqueue("job", tags=["c"], idempotency_key="k")


@pytest.mark.parametrize(
    "tags", [["a b"], [""], ["-a"], ["a" * 65], ["é"], ["a\x00"], [7], "abc", [f"t{n}" for n in range(21)]]
)
async def test_invalid_tags_are_refused_and_nothing_is_stored(
    settings: Settings, store: Store, tags: list[str]
) -> None:
    app = App(settings)

    @app.task("job")
    async def job(ctx: Context) -> None: ...

    async with app:
        with pytest.raises(InvalidRequest):
            await app.enqueue("job", tags=tags)
    assert await store.count("runs") == 0
