"""Which variants of a test the suite executes.

PgBouncer changes how connections are used and not what statements mean, so its variant runs in the modules where that
matters: locks, leases, batches, and the statements of the hot paths.

A test of the HTTP API has a variant for SQLite and one for Postgres with Redis. Both execute the same code of the
interface, the contract suite compares the stores, and `tests/contract/test_prepared_statements.py` has both databases
accept every statement. So `make test` (TEST_DATABASES=one) executes one variant of each such test, half of them on
either database. The same holds for tests of models, tools and commands. `make soak ARGS=tests`, and pytest for chosen
files, execute both.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import PurePath
from typing import Final, NamedTuple
from zlib import crc32

import pytest

PGBOUNCER: Final = "postgres-pgbouncer"
ONE_DATABASE: Final = os.environ.get("TEST_DATABASES") == "one"
API: Final = "tests/acceptance/api/"

MODULES_FOR_PGBOUNCER: Final = frozenset(
    {
        "test_accept",
        "test_claim",
        "test_claim_edges",
        "test_commit_in_doubt",
        "test_committer",
        "test_faults",
        "test_interleavings",
        "test_many_lanes",
        "test_plans",
        "test_quarantine",
        "test_reaper",
        "test_record",
        "test_takeover",
        "test_tenant_slots",
    }
)

# Their promises depend on the database or on the bus: SQL that is composed for each request, notices between
# processes, several servers on one database, outages, and what a tenant can see.
API_ON_BOTH: Final = frozenset(
    {
        "test_access",
        "test_agent_auth_filters",
        "test_agent_gaps",
        "test_agent_items",
        "test_agent_sockets",
        "test_agent_thread_streams",
        "test_browser_sessions",
        "test_edges",
        "test_fast_path",
        "test_finding",
        "test_floods",
        "test_idle_followers",
        "test_isolation",
        "test_late_readers",
        "test_lists",
        "test_live",
        "test_memory_forwarding",
        "test_metrics",
        "test_no_oracle",
        "test_queries",
        "test_search_bounds",
        "test_stream",
        "test_stream_tokens",
        "test_worker_drain",
    }
)

# Outside the API: their promises are about models, tools, steps, addresses and commands.
ON_EITHER: Final = frozenset(
    {
        "tests/acceptance/test_canary_agents.py",
        "tests/acceptance/test_commands.py",
        "tests/acceptance/test_events_cli.py",
        "tests/acceptance/test_memory_cli.py",
        "tests/acceptance/test_secrets_cli.py",
        "tests/acceptance/test_threads_cli.py",
        "tests/acceptance/test_webhook_receivers.py",
        "tests/chaos/test_agent_limits.py",
        "tests/chaos/test_agent_memory.py",
        "tests/chaos/test_compaction.py",
        "tests/integration/test_agent_memory.py",
        "tests/integration/test_agents.py",
        "tests/integration/test_awaited_calls.py",
        "tests/integration/test_compaction.py",
        "tests/integration/test_graphs.py",
        "tests/integration/test_mcp_runs.py",
        "tests/integration/test_model_bounds.py",
        "tests/integration/test_orchestrations.py",
        "tests/integration/test_recorded_models.py",
        "tests/integration/test_refused_addresses.py",
        "tests/integration/test_scripted_models.py",
        "tests/integration/test_tasks.py",
        "tests/integration/test_tool_bounds.py",
    }
)

# The fixtures and arguments whose value may be a database.
_PARAMETERS: Final = ("settings", "shell", "canary_settings", "kind", "backend")
_DATABASES: Final = frozenset({"sqlite", "postgres", "postgres-redis", PGBOUNCER})


class Variant(NamedTuple):
    """A collected test: its id, and the database that its settings are of, if they have several."""

    id: str
    database: str | None

    @property
    def file(self) -> str:
        return self.id.partition("::")[0]

    @property
    def module(self) -> str:
        return PurePath(self.file).stem

    @property
    def is_on_either(self) -> bool:
        """Whether one of its databases is enough."""
        return self.file in ON_EITHER or (self.file.startswith(API) and self.module not in API_ON_BOTH)

    @property
    def name_for_all(self) -> str:
        """The id without the database; unchanged if the test is executed on all of its databases."""
        if self.database is None or not self.is_on_either:
            return self.id
        test, _, parameters = self.id.partition("[")
        return f"{test}[{parameters.replace(self.database, '*', 1)}"


def choose_items(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests to execute, in their order."""
    chosen = choose([Variant(item.nodeid, _database_of(item)) for item in items], one_database=ONE_DATABASE)
    return [item for item in items if item.nodeid in chosen]


def choose(variants: Iterable[Variant], *, one_database: bool) -> set[str]:
    """Return the ids of the variants to execute. The choice is the same in every process and every run."""
    found = [variant for variant in variants if PGBOUNCER not in variant.id or variant.module in MODULES_FOR_PGBOUNCER]
    if not one_database:
        return {variant.id for variant in found}
    by_name: defaultdict[str, list[str]] = defaultdict(list)
    for variant in found:
        by_name[variant.name_for_all].append(variant.id)
    return {sorted(ids)[crc32(name.encode()) % len(ids)] for name, ids in by_name.items()}


def _database_of(item: pytest.Item) -> str | None:
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return None
    chosen = [item.callspec.params.get(name) for name in _PARAMETERS]
    return next((database for database in chosen if isinstance(database, str) and database in _DATABASES), None)
