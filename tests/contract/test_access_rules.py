"""Access rules in both databases: they allow and hide the same threads, alone and in searches."""

from __future__ import annotations

from runlane.domain.access_rule import AccessRule
from runlane.domain.text import dump_json
from runlane.store.threads.thread_search import ThreadFilter, count_threads, search_threads
from runlane.store.threads.visibility import thread_visibility
from tests.harness import Store
from tests.threads import add_thread
from tests.unit.test_access_rule import FILTERS


async def test_the_databases_apply_filters_alike(store: Store) -> None:
    for number, (_, allowed, hidden) in enumerate(FILTERS):
        await add_thread(store, f"{number}-allowed", metadata=dump_json(allowed))
        await add_thread(store, f"{number}-hidden", metadata=dump_json(hidden))
        # Another tenant's thread with the same metadata is never found.
        await add_thread(store, f"{number}-other", "other", metadata=dump_json(allowed))
    for number, (given, _, _) in enumerate(FILTERS):
        rule = AccessRule.parse(given)
        assert rule is not None
        ids = [f"{number}-{name}" for name in ("allowed", "hidden", "other")]
        found = await thread_visibility(store.database, "default", ids, rule)
        assert found == {ids[0]: True, ids[1]: False}, given
        wanted = ThreadFilter(ids=ids, rule=rule)
        searched = await search_threads(store.database, "default", wanted)
        assert [thread.id for thread in searched.threads] == ids[:1], given
        assert await count_threads(store.database, "default", wanted) == 1, given


async def test_a_rule_without_alternatives_hides_everything(store: Store) -> None:
    await add_thread(store, "t1", metadata='{"a": "x"}')
    rule = AccessRule.parse({"$and": [{"a": "x"}, {"a": "y"}]})
    assert rule is not None
    assert await thread_visibility(store.database, "default", ["t1"], rule) == {"t1": False}
    assert (await search_threads(store.database, "default", ThreadFilter(rule=rule))).threads == []
