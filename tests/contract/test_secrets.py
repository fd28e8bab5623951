"""Secrets in the database and the vault over them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runlane.access import secrets as vaults
from runlane.access.keyring import Keyring, key_id_of, new_key
from runlane.access.secrets import SecretVault
from runlane.catalog.missing_secrets import missing_secrets
from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.domain.secret import MAX_BYTES
from runlane.errors import InvalidRequest, NoSecretKey, NotFound, SecretQuotaExceeded, SecretUnreadable, Unavailable
from runlane.redaction import LOGS, REDACTED, Redactor
from runlane.settings import Settings, load_settings, parse_secret_keys
from runlane.store.access import secrets as store_module
from runlane.store.access.audit import list_audit
from runlane.store.access.secrets import count_by_key, delete_secret, list_secrets, read_sealed
from runlane.store.access.tenants import create_tenant, delete_tenant
from runlane.store.orchestration.steps import StepOutcome, StepRecord
from runlane.store.orchestration.waits import NewWait
from runlane.store.queue.committer import Committer
from runlane.store.queue.record import AttemptOutcome, Finish, RecordEntry
from runlane.store.queue.redaction import redacted
from tests.harness import Store, completed, entry_of

ACTOR = "cli:tester"
CANARY = "canary-5f2b9c-secret"


def with_keys(store: Store, *keys: str) -> Settings:
    return store.settings.model_copy(update={"secret_key": load_settings(secret_key=",".join(keys)).secret_key})


def id_of(key: str) -> str:
    return key_id_of(parse_secret_keys(key)[0])


@pytest.fixture
def key() -> str:
    return new_key()


@pytest.fixture
def vault(store: Store, key: str) -> SecretVault:
    return SecretVault(store.database, with_keys(store, key))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_a_secrets_life(store: Store, vault: SecretVault, key: str) -> None:
    old, made = await vault.set("default", "TOKEN", CANARY, actor=ACTOR)
    assert (old, made.version, made.key_id, made.updated_by) == (None, 1, id_of(key), ACTOR)
    assert await vault.values("default", ["TOKEN", "NONE"]) == {"TOKEN": CANARY}
    before, changed = await vault.set("default", "TOKEN", f"{CANARY}-2", actor=ACTOR)
    assert (before, changed.version, changed.created_at_us) == (made, 2, made.created_at_us)
    assert changed.updated_at_us > made.updated_at_us
    assert await list_secrets(store.database, "default") == [changed]
    assert await delete_secret(store.database, "default", "TOKEN", actor=ACTOR) == changed
    with pytest.raises(NotFound, match="runlane secrets list"):
        await delete_secret(store.database, "default", "TOKEN", actor=ACTOR)
    entries = [(entry.action, entry.old, entry.new) for entry in await list_audit(store.database)]
    kept = {"key_id": id_of(key)}
    assert entries == [
        ("secret.delete", kept | {"version": 2}, None),
        ("secret.set", kept | {"version": 1}, kept | {"version": 2}),
        ("secret.set", None, kept | {"version": 1}),
    ]


async def test_no_value_is_in_the_database(store: Store, vault: SecretVault, key: str) -> None:
    await vault.set("default", "TOKEN", CANARY, actor=ACTOR)
    await vault.set("default", "TOKEN", f"{CANARY}-2", actor=ACTOR)
    await delete_secret(store.database, "default", "TOKEN", actor=ACTOR)
    await vault.set("default", "TOKEN", CANARY, actor=ACTOR)
    everything = repr(await store.contents())
    assert id_of(key) in everything
    assert not Redactor([CANARY, f"{CANARY}-2"]).occurs(everything)


async def test_tenants_have_secrets_of_their_own(store: Store, vault: SecretVault) -> None:
    await create_tenant(store.database, "acme", actor=ACTOR)
    await vault.set("acme", "TOKEN", "value of acme", actor=ACTOR)
    await vault.set("default", "TOKEN", "value of default", actor=ACTOR)
    assert await vault.values("acme", ["TOKEN"]) == {"TOKEN": "value of acme"}
    assert await vault.values("default", ["TOKEN"]) == {"TOKEN": "value of default"}
    with pytest.raises(NotFound, match='No tenant "acne"'):
        await vault.set("acne", "TOKEN", CANARY, actor=ACTOR)
    await delete_tenant(store.database, "acme", actor=ACTOR)
    assert await list_secrets(store.database, "acme") == []
    assert len(await list_secrets(store.database, "default")) == 1


async def test_lists_come_in_pages_by_name(store: Store, vault: SecretVault) -> None:
    for number in (3, 1, 2, 5, 4):
        await vault.set("default", f"N{number}", CANARY, actor=ACTOR)
    first = await list_secrets(store.database, "default", limit=3)
    rest = await list_secrets(store.database, "default", after=first[-1].name, limit=3)
    assert [secret.name for secret in (*first, *rest)] == ["N1", "N2", "N3", "N4", "N5"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("9LIVES", CANARY),
        ("", CANARY),
        ("a b", CANARY),
        ("x" * 129, CANARY),
        ("TOKEN", "1234567"),
        ("TOKEN", "aaaaaaaaaaaaaaaa"),
        ("TOKEN", "ab1-" * (MAX_BYTES // 4) + "x"),
        ("TOKEN", "\ud800 half a pair"),
    ],
)
async def test_values_that_cannot_be_stored_or_redacted_are_refused(
    store: Store, vault: SecretVault, name: str, value: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await vault.set("default", name, value, actor=ACTOR)
    assert value not in str(caught.value)
    assert await store.count("secrets") == await store.count("audit") == 0


async def test_the_longest_value_is_kept(vault: SecretVault) -> None:
    longest = "ab1-" * (MAX_BYTES // 4)
    await vault.set("default", "LONG", longest, actor=ACTOR)
    await vault.set("default", "ODD", 'nul \0 and \n and "quotes"', actor=ACTOR)
    found = await vault.values("default", ["LONG", "ODD"])
    assert found == {"LONG": longest, "ODD": 'nul \0 and \n and "quotes"'}


async def test_without_a_key_nothing_is_stored(store: Store) -> None:
    vault = SecretVault(store.database, store.settings)
    with pytest.raises(NoSecretKey):
        await vault.set("default", "TOKEN", CANARY, actor=ACTOR)
    with pytest.raises(NoSecretKey):
        await vault.rotate(actor=ACTOR)
    assert await store.count("secrets") == 0


async def test_a_change_is_seen_soon_and_values_are_read_once_meanwhile(
    store: Store, vault: SecretVault, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0

    async def counted(*args: Any) -> Any:
        nonlocal reads
        reads += 1
        return await read_sealed(*args)

    monkeypatch.setattr(vaults, "read_sealed", counted)
    clock = Clock()
    worker = SecretVault(store.database, with_keys(store, key), clock)
    await vault.set("default", "TOKEN", CANARY, actor=ACTOR)
    found = await asyncio.gather(*(worker.values("default", ["TOKEN", "LATER"]) for _ in range(50)))
    assert found == [{"TOKEN": CANARY}] * 50
    assert reads == 1
    await vault.set("default", "TOKEN", f"{CANARY}-2", actor=ACTOR)
    await vault.set("default", "LATER", f"{CANARY}-3", actor=ACTOR)
    assert await worker.values("default", ["TOKEN"]) == {"TOKEN": CANARY}
    clock.now += vaults.KEEP_SECONDS + 0.01
    assert vaults.KEEP_SECONDS < 2
    assert await worker.values("default", ["TOKEN", "LATER"]) == {"TOKEN": f"{CANARY}-2", "LATER": f"{CANARY}-3"}
    await delete_secret(store.database, "default", "TOKEN", actor=ACTOR)
    clock.now += vaults.KEEP_SECONDS + 0.01
    assert await worker.values("default", ["TOKEN"]) == {}
    assert reads == 3


async def test_secrets_stay_available_through_a_short_outage_of_the_database(
    store: Store, vault: SecretVault, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any) -> Any:
        raise Unavailable("away")

    clock = Clock()
    worker = SecretVault(store.database, with_keys(store, key), clock)
    await vault.set("default", "TOKEN", CANARY, actor=ACTOR)
    await worker.values("default", ["TOKEN"])
    monkeypatch.setattr(vaults, "read_sealed", away)
    clock.now += vaults.AWAY_SECONDS - 1
    assert await worker.values("default", ["TOKEN"]) == {"TOKEN": CANARY}
    with pytest.raises(Unavailable):
        await worker.values("default", ["TOKEN", "OTHER"])
    clock.now += 2
    with pytest.raises(Unavailable):
        await worker.values("default", ["TOKEN"])


async def test_values_are_hidden_once_they_are_read(store: Store, vault: SecretVault, key: str) -> None:
    await vault.set("default", "TOKEN", CANARY, actor=ACTOR)
    LOGS.forget_all()
    await SecretVault(store.database, with_keys(store, key)).values("default", ["TOKEN"])
    assert LOGS.clean(CANARY) == REDACTED


async def test_rows_that_were_changed_or_swapped_do_not_open(store: Store, vault: SecretVault, key: str) -> None:
    await create_tenant(store.database, "acme", actor=ACTOR)
    for tenant, name in (("default", "A"), ("default", "B"), ("acme", "A"), ("default", "GOOD")):
        await vault.set(tenant, name, f"{CANARY}-{tenant}-{name}", actor=ACTOR)
    rows = {(row["tenant"], row["name"]): row["value"] for row in await store.sql("select * from secrets")}
    swaps = {
        ("default", "A"): rows["default", "B"],
        ("default", "B"): rows["acme", "A"],
        ("acme", "A"): rows["default", "A"],
    }
    for (tenant, name), value in swaps.items():
        await store.sql(
            "update secrets set value = :value where tenant = :tenant and name = :name returning name",
            value=value,
            tenant=tenant,
            name=name,
        )
    worker = SecretVault(store.database, with_keys(store, key))
    for tenant, name in swaps:
        with pytest.raises(SecretUnreadable, match=f'The secret "{name}" of tenant "{tenant}" cannot be authenticated'):
            await worker.values(tenant, [name])
    assert await worker.values("default", ["GOOD"]) == {"GOOD": f"{CANARY}-default-GOOD"}
    with pytest.raises(SecretUnreadable, match=f"encrypted with the key {id_of(key)}"):
        await SecretVault(store.database, with_keys(store, new_key())).values("default", ["GOOD"])


async def test_rotation_goes_through_everything_and_may_be_repeated(
    store: Store, vault: SecretVault, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vaults, "AT_ONCE", 3)
    await create_tenant(store.database, "acme", actor=ACTOR)
    for tenant in ("acme", "default"):
        for number in range(7):
            await vault.set(tenant, f"N{number}", f"{CANARY}-{tenant}-{number}", actor=ACTOR)
    fresh = new_key()
    both = SecretVault(store.database, with_keys(store, fresh, key))
    one = await both.rotate(actor=ACTOR, tenant="acme")
    assert (one.key_id, one.rotated, one.unreadable) == (id_of(fresh), 7, ())
    assert await count_by_key(store.database) == {id_of(fresh): 7, id_of(key): 7}
    assert (await both.rotate(actor=ACTOR)).rotated == 7
    assert (await both.rotate(actor=ACTOR)).rotated == 0
    assert await count_by_key(store.database) == {id_of(fresh): 14}
    alone = SecretVault(store.database, with_keys(store, fresh))
    for tenant in ("acme", "default"):
        names = [f"N{number}" for number in range(7)]
        wanted = {name: f"{CANARY}-{tenant}-{number}" for number, name in enumerate(names)}
        assert await alone.values(tenant, names) == wanted
    versions = {secret.version for secret in await list_secrets(store.database, "acme")}
    assert versions == {1}
    entries = await list_audit(store.database, action="secret.rotate", limit=100)
    assert len(entries) == 14
    assert (entries[0].old, entries[0].new) == ({"key_id": id_of(key)}, {"key_id": id_of(fresh)})


async def test_rotation_leaves_what_it_cannot_decrypt_and_reports_it(
    store: Store, vault: SecretVault, key: str
) -> None:
    await SecretVault(store.database, with_keys(store, new_key())).set("default", "LOST", CANARY, actor=ACTOR)
    await vault.set("default", "KEPT", CANARY, actor=ACTOR)
    before = await read_sealed(store.database, "default", ["LOST"])
    done = await SecretVault(store.database, with_keys(store, new_key(), key)).rotate(actor=ACTOR)
    assert (done.rotated, [item.name for item in done.unreadable]) == (1, ["LOST"])
    assert await read_sealed(store.database, "default", ["LOST"]) == before


async def test_rotation_under_load_loses_no_value(
    store: Store, vault: SecretVault, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values that are set while it runs stay, and readers of any key get a value that was set."""
    monkeypatch.setattr(vaults, "AT_ONCE", 2)
    names = [f"N{number}" for number in range(12)]
    for name in names:
        await vault.set("default", name, f"{CANARY}-{name}-0", actor=ACTOR)
    fresh = new_key()
    writers = [SecretVault(store.database, with_keys(store, *keys)) for keys in ((key, fresh), (fresh, key))]

    async def write(number: int) -> None:
        for turn in range(1, 6):
            for name in names[number::2]:
                await writers[number].set("default", name, f"{CANARY}-{name}-{turn}", actor=ACTOR)

    async def rotate() -> None:
        for _ in range(5):
            await SecretVault(store.database, with_keys(store, fresh, key)).rotate(actor=ACTOR)

    async def read_on() -> None:
        for _ in range(20):
            found = await SecretVault(store.database, with_keys(store, fresh, key)).values("default", names)
            assert all(value.startswith(f"{CANARY}-{name}-") for name, value in found.items())

    async with asyncio.timeout(60):
        await asyncio.gather(write(0), write(1), rotate(), rotate(), read_on())
    both = SecretVault(store.database, with_keys(store, fresh, key))
    await both.rotate(actor=ACTOR)
    assert await count_by_key(store.database) == {id_of(fresh): 12}
    assert await both.values("default", names) == {name: f"{CANARY}-{name}-5" for name in names}


async def test_an_interrupted_rotation_continues(
    store: Store, vault: SecretVault, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vaults, "AT_ONCE", 2)
    for number in range(6):
        await vault.set("default", f"N{number}", f"{CANARY}-{number}", actor=ACTOR)
    fresh, batches, reseal = new_key(), 0, store_module.reseal

    async def broken(*args: Any, **options: Any) -> int:
        nonlocal batches
        batches += 1
        if batches == 2:
            raise Unavailable("away")
        return await reseal(*args, **options)

    monkeypatch.setattr(vaults, "reseal", broken)
    both = SecretVault(store.database, with_keys(store, fresh, key))
    with pytest.raises(Unavailable):
        await both.rotate(actor=ACTOR)
    assert await count_by_key(store.database) == {id_of(fresh): 2, id_of(key): 4}
    assert len(await both.values("default", [f"N{number}" for number in range(6)])) == 6
    assert (await both.rotate(actor=ACTOR)).rotated == 4


async def test_missing_secrets_are_reported_where_definitions_are_stored(store: Store, vault: SecretVault) -> None:
    tool = {
        "name": "issues",
        "tool_type": "http",
        "method": "GET",
        "url": "https://api.example.com/issues",
        "headers": {"Authorization": "Bearer {secret.GITHUB_TOKEN}", "X-Api-Key": "{secret.OTHER}"},
    }
    loaded = parse_bodies({"tools": [tool]})
    loaded.raise_errors()
    await vault.set("default", "OTHER", CANARY, actor=ACTOR)
    (problem,) = await missing_secrets(store.database, "default", loaded.definitions)
    assert "GITHUB_TOKEN is not set" in problem.message
    report = await sync_definitions(store.database, "default", loaded, actor=ACTOR, dry_run=True)
    assert [warning.message for warning in report.warnings] == [problem.message]
    await vault.set("default", "GITHUB_TOKEN", CANARY, actor=ACTOR)
    assert await missing_secrets(store.database, "default", loaded.definitions) == []


async def test_nothing_that_an_attempt_stores_has_secrets_in_it(store: Store, key: str) -> None:
    redactor = Redactor([CANARY])
    await store.add()
    claimed = await store.claim_one()
    text = f'{{"x":"a {CANARY} b"}}'
    committer = Committer(store.database, lambda lanes: None)
    await committer.start()
    entry = entry_of(
        claimed,
        Finish(AttemptOutcome.FAILED, completed().status, result=text, error=text, state=text),
        events=[("log", text)],
        checkpoint=text,
        progress=0.5,
        progress_note=f"at {CANARY}",
        steps=[StepRecord("a", 1, "a", "task", StepOutcome.DONE, output=text, error=text, input=text)],
        waits=[NewWait("b", "human", "b", "b", text)],
    )
    try:
        recorded = await committer.record(redacted(entry, redactor), asyncio.get_running_loop().time() + 60)
    finally:
        await committer.stop()
    assert CANARY not in repr(recorded)
    contents = await store.contents() | {"waits": await store.sql("select * from run_waits")}
    assert CANARY not in repr(contents)
    assert repr(contents).count("a [redacted] b") >= 8
    assert isinstance(entry, RecordEntry)
    assert entry.events == [("log", text)]


async def test_the_keyring_of_a_vault_is_that_of_the_settings(vault: SecretVault, key: str) -> None:
    assert isinstance(vault.keyring, Keyring)
    assert vault.keyring.key_ids == [id_of(key)]


async def test_logs_forget_the_value_that_was_replaced_and_the_one_that_was_deleted(
    store: Store, vault: SecretVault, key: str
) -> None:
    clock = Clock()
    worker = SecretVault(store.database, with_keys(store, key), clock)
    await vault.set("default", "TOKEN", CANARY, actor=ACTOR)
    await worker.values("default", ["TOKEN"])
    await vault.set("default", "TOKEN", "another-value", actor=ACTOR)
    assert LOGS.clean(f"{CANARY} another-value") == f"{CANARY} {REDACTED}"
    # Another process sees the change when it reads the value again.
    LOGS.forget_all()
    LOGS.learn_secret(("default", "TOKEN"), CANARY)
    clock.now += vaults.KEEP_SECONDS + 1
    await worker.values("default", ["TOKEN"])
    assert LOGS.clean(f"{CANARY} another-value") == f"{CANARY} {REDACTED}"
    await delete_secret(store.database, "default", "TOKEN", actor=ACTOR)
    clock.now += vaults.KEEP_SECONDS + 1
    assert await worker.values("default", ["TOKEN"]) == {}
    assert LOGS.clean("another-value") == "another-value"
    await vault.set("default", "TOKEN", CANARY, actor=ACTOR)
    await vault.delete("default", "TOKEN", actor=ACTOR)
    assert LOGS.clean(CANARY) == CANARY


def limited(store: Store, key: str, **limits: int) -> SecretVault:
    return SecretVault(store.database, with_keys(store, key).model_copy(update=limits))


async def test_a_tenant_has_so_many_secrets_and_no_more(store: Store, key: str) -> None:
    vault = limited(store, key, max_secrets=3)
    for name in "ABC":
        await vault.set("default", name, CANARY, actor=ACTOR)
    with pytest.raises(SecretQuotaExceeded, match=r"has 3 secrets and may have 3.*RUNLANE_MAX_SECRETS\.") as refused:
        await vault.set("default", "D", CANARY, actor=ACTOR)
    assert (refused.value.code, refused.value.http_status) == ("secret_quota_exceeded", 409)
    # A new value of an existing one, and the secrets of another tenant, are not counted against it.
    assert (await vault.set("default", "C", f"{CANARY}-2", actor=ACTOR))[1].version == 2
    await create_tenant(store.database, "acme", actor=ACTOR)
    await vault.set("acme", "D", CANARY, actor=ACTOR)
    await vault.delete("default", "A", actor=ACTOR)
    await vault.set("default", "D", CANARY, actor=ACTOR)
    assert [secret.name for secret in await list_secrets(store.database, "default")] == ["B", "C", "D"]


async def test_of_several_callers_that_set_the_last_secret_at_once_one_succeeds(store: Store, key: str) -> None:
    vault = limited(store, key, max_secrets=3)
    setting = [vault.set("default", f"S{number}", CANARY, actor=ACTOR) for number in range(8)]
    outcomes = await asyncio.gather(*setting, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert len(refused) == 5
    assert {type(error) for error in refused} == {SecretQuotaExceeded}
    assert len(await list_secrets(store.database, "default")) == 3


async def test_the_values_of_a_tenant_have_so_many_bytes_together(store: Store, key: str) -> None:
    vault = limited(store, key, max_secrets_bytes=10_000)
    long = "0123456789" * 400
    await vault.set("default", "A", long, actor=ACTOR)
    await vault.set("default", "B", long, actor=ACTOR)
    with pytest.raises(SecretQuotaExceeded, match=r"would have 1200\d bytes.*10000.*RUNLANE_MAX_SECRETS_BYTES\."):
        await vault.set("default", "C", long, actor=ACTOR)
    with pytest.raises(SecretQuotaExceeded):
        await vault.set("default", "B", long * 2, actor=ACTOR)
    await vault.set("default", "C", long[:1900], actor=ACTOR)
    # With a lower quota than before, what is there can be replaced by what is not longer.
    lower = limited(store, key, max_secrets=1, max_secrets_bytes=5000)
    await lower.set("default", "A", "9876543210" * 400, actor=ACTOR)
    with pytest.raises(SecretQuotaExceeded):
        await lower.set("default", "A", "9876543210" * 410, actor=ACTOR)
