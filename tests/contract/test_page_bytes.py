"""Pages of large values are bounded in bytes, and the pages after them have the rest."""

from __future__ import annotations

from runlane import App
from runlane.domain.tenant_event import MAX_EVENT_BYTES
from runlane.store.events import waiting as waiting_events
from runlane.store.events.reading import list_events
from runlane.store.events.waiting import OpenMatch, unsearched_waits
from runlane.store.sql.page_bytes import MAX_PAGE_BYTES
from runlane.triggers.waiting_runs import WaitingRuns
from tests.contract.test_trigger_edges import app, waiting
from tests.harness import Store

__all__ = ["app"]

_LARGE = "x" * (MAX_EVENT_BYTES - 100)
_FIT = MAX_PAGE_BYTES // MAX_EVENT_BYTES


async def test_a_page_of_events_has_a_bound_in_bytes(app: App, store: Store) -> None:
    sent = [(await app.broadcast("order.paid", {"n": number, "text": _LARGE})).event_id for number in range(_FIT + 3)]
    found, more = await list_events(store.database, "default", limit=1000)
    assert (len(found), more) == (_FIT, True)
    assert sum(len(event.data["text"]) for event in found) <= MAX_PAGE_BYTES
    rest, more = await list_events(store.database, "default", before=found[-1].id, limit=1000)
    assert (len(rest), more) == (3, False)
    assert [event.id for event in (*found, *rest)] == sent[::-1]
    assert (await list_events(store.database, "default", limit=2))[1]


async def test_a_wait_is_compared_with_large_events_a_page_at_a_time(app: App, store: Store) -> None:
    for number in range(_FIT + 3):
        await app.broadcast("order.paid", {"n": number, "text": _LARGE})
    await waiting(store, "default", "one", lookback_us=3_600_000_000)
    await store.sql(f"""update run_waits set match = '{{"n": {_FIT + 2}}}'""")
    ((wait,), _) = await unsearched_waits(store.database)
    compared = [event.data["n"] async for event in waiting_events.earlier_events(store.database, wait)]
    assert compared == list(range(_FIT + 3))
    rows = await store.database.query(
        waiting_events._EARLIER,
        tenant="default", name="order.paid", since=wait["since"], after="", limit=1000,
    )  # fmt: skip
    assert (len(rows), rows[0]["page_rows"]) == (_FIT, _FIT + 3)
    assert not await WaitingRuns(await app.connect()).search()
    assert (await store.sql("select answered_by from run_waits"))[0]["answered_by"] is not None


async def test_large_conditions_of_waits_are_read_a_page_at_a_time(app: App, store: Store) -> None:
    count = 5
    paths = [f"wait{number}" for number in range(count)]
    await waiting(store, "default", *paths)
    await store.sql(f"""update run_waits set match = '{{"n": "{"x" * (MAX_PAGE_BYTES // 2)}"}}'""")
    found, more = await unsearched_waits(store.database)
    assert (len(found), more) == (1, True)
    event = await app.broadcast("order.paid", {"n": 1})
    stored = (await list_events(store.database, "default"))[0][0]
    assert stored.id == event.event_id
    last: OpenMatch | None = None
    seen: list[str] = []
    while page := await waiting_events.waits_for(store.database, stored, last):
        assert len(page) == 1
        seen += [wait.path for wait in page]
        last = page[-1]
    assert seen == paths
