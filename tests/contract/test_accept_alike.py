"""Runs that differ in little are stored by a small statement, with the same rows as by the other statements."""

from __future__ import annotations

from typing import Any

import pytest

from runlane.domain.tenant import TenantLimits
from runlane.store.access.tenants import create_tenant
from runlane.store.queue.accept import NewRun, accept_alone
from runlane.store.queue.accept_alike import accept_alike, are_alike
from runlane.store.queue.lanes import declare_lanes, move_kinds
from tests.harness import Store, new_run

on_postgres = pytest.mark.parametrize("settings", ["postgres"], indirect=True)

_SHAPES: list[dict[str, Any]] = [
    {},
    {"priority": 7, "max_attempts": 9, "max_losses": 2, "on_dead": "block"},
    {"delay_us": 600_000_000, "plan": '{"version":1}'},
    {"hold": True, "target": "moved"},
]
_READ = (
    "select runs.*, run_inputs.*, run_events.*, accepted_at - rank as boost, due_at - accepted_at as wait, "
    "run_events.at - accepted_at as event_after from runs join run_inputs on run_inputs.run_id = runs.id "
    "join run_events on run_events.run_id = runs.id where runs.id = '{}'"
)
_OWN = {"id", "run_id", "rank", "accepted_at", "due_at", "at", "input"}


async def _row(store: Store, run: NewRun) -> dict[str, Any]:
    (row,) = await store.sql(_READ.format(run.id))
    assert row["input"] == run.input
    return {name: value for name, value in dict(row).items() if name not in _OWN}


@on_postgres
@pytest.mark.parametrize("shape", _SHAPES)
async def test_the_rows_are_those_of_a_run_that_is_stored_alone(store: Store, shape: dict[str, Any]) -> None:
    await declare_lanes(store.database, ["elsewhere"])
    await move_kinds(store.database, ["moved"], "elsewhere", actor="test")
    alike = [new_run(input=f'{{"n":{n}}}', trace="a trace", **shape) for n in range(3)]
    alone = new_run(trace="a trace", **shape)
    assert are_alike(alike)
    verdicts = await accept_alike(store.database, alike)
    single = await accept_alone(store.database, [alone])
    assert verdicts is not None
    assert single is not None
    assert [run.id for run in alike] == list(verdicts)
    expected = single[alone.id]
    assert {(item.status, item.lane) for item in verdicts.values()} == {(expected.status, expected.lane)}
    wanted = await _row(store, alone)
    assert [await _row(store, run) for run in alike] == [wanted] * 3


@pytest.mark.parametrize(
    "field",
    [{"target": "b"}, {"lane": "b"}, {"priority": 1}, {"max_attempts": 8}, {"max_losses": 8}, {"delay_us": 8},
     {"hold": True}, {"on_dead": "block"}, {"tenant": "b"}, {"plan": "{}"}],
)  # fmt: skip
def test_a_run_with_another_value_is_not_alike(field: dict[str, Any]) -> None:
    assert are_alike([new_run(), new_run(input="{}", trace="b")])
    assert not are_alike([new_run(), new_run(**field)])


@on_postgres
async def test_nothing_is_stored_for_a_tenant_with_limits(store: Store) -> None:
    await create_tenant(store.database, "small", limits=TenantLimits(max_queued=5), actor="test")
    assert await accept_alike(store.database, [new_run(tenant="small") for _ in range(2)]) is None
    assert await store.count("runs") == 0


@on_postgres
async def test_nothing_is_stored_when_one_of_the_runs_exists(store: Store) -> None:
    stored = new_run()
    assert await accept_alone(store.database, [stored]) is not None
    assert await accept_alike(store.database, [new_run(), stored]) is None
    assert await store.count("runs") == 1
    assert await store.count("run_inputs") == 1
