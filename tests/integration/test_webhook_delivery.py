"""Webhooks delivered by the real service to a real receiver: signatures, tries, bad receivers, refused addresses."""

from __future__ import annotations

import asyncio
import base64
import hmac
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import SecretStr
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from runlane import App, Context, Fail
from runlane.access.keyring import Keyring
from runlane.access.secrets import SecretVault
from runlane.addresses import parse_allow_list
from runlane.bus.memory import MemoryBus
from runlane.domain.webhook import MAX_TRIES, DeliveryStatus, WebhookEndpoint
from runlane.domain.webhook_events import WebhookType, schema_of
from runlane.errors import InvalidRequest, NoSecretKey, OutboundRefused
from runlane.maintenance.webhook_delivery import WebhookService
from runlane.outbound import Outbound
from runlane.settings import Settings
from runlane.store.access.audit import list_audit
from runlane.store.webhooks.claims import ClaimedDelivery
from runlane.store.webhooks.deliveries import list_deliveries, read_delivery, replay_delivery
from runlane.store.webhooks.endpoints import EndpointFields, find_endpoint
from runlane.store.webhooks.outbox import NewMessage, add_messages
from runlane.templates.json_schema import misfit
from runlane.webhooks.destination import check_destination
from runlane.webhooks.endpoints import WebhookManager
from runlane.webhooks.sender import WebhookSender
from tests.harness import eventually, settings_for
from tests.webhook_receiver import Answer, Received, WebhookReceiver

KEY = base64.b64encode(bytes(range(32))).decode()


async def no_secrets(tenant: str, names: Collection[str]) -> dict[str, str]:
    return {}


@pytest.fixture
async def receiver() -> AsyncGenerator[WebhookReceiver]:
    async with WebhookReceiver() as listening:
        yield listening


@pytest.fixture
def settings(sqlite_url: str) -> Settings:
    return settings_for(
        sqlite_url, outbound_allow="127.0.0.0/8", secret_key=KEY, webhook_timeout_seconds=2.0, timer_seconds=0.05
    )


class Hooks:
    """An app with its delivery service, and shortcuts."""

    def __init__(self, app: App, manager: WebhookManager, service: WebhookService) -> None:
        self.app = app
        self.manager = manager
        self.service = service

    async def endpoint(self, url: str, **fields: Any) -> tuple[WebhookEndpoint, str]:
        signature = fields.pop("signature", "hmac")
        given: dict[str, Any] = {"rate_per_second": 1000.0, **fields}
        made, secret = await self.manager.create(
            "default", EndpointFields(url=url, **given), signature=signature, actor="test"
        )
        return made, secret.secret or secret.public_key or ""

    async def send(self, count: int = 1) -> None:
        message = NewMessage("default", "run.completed", {"target": "job", "text": "grün"})
        database = await self.app.database()
        await database.transact(lambda session: add_messages(session, [message] * count))
        self.service.wake()

    async def log(self, number: int = 0) -> Any:
        """Return a delivery, the newest first."""
        database = await self.app.database()
        return await read_delivery(database, (await list_deliveries(database))[number].id)

    async def tried(self, tries: int = 1) -> Any:
        """Wait until the newest delivery has this many recorded tries."""

        async def enough() -> Any:
            log = await self.log()
            return log if len(log.attempts) >= tries else None

        return await eventually(enough, f"{tries} tries")

    async def make_due(self) -> None:
        from sqlalchemy import text

        from runlane.store.sql.database import read
        from runlane.store.sql.statement import Statement

        query = text("update webhook_deliveries set next_at = 1 where status = 'pending'")
        await read(await self.app.database(), Statement("test_make_due", query))
        self.service.wake()


@asynccontextmanager
async def delivering(settings: Settings, app: App | None = None) -> AsyncGenerator[Hooks]:
    app = app or App()
    app.configure(settings)
    async with app:
        database = await app.database()
        service = WebhookService(settings, database, MemoryBus())
        service.start()
        try:
            yield Hooks(app, WebhookManager(database, settings, Keyring(settings)), service)
        finally:
            await service.stop()


@pytest.fixture
async def hooks(settings: Settings) -> AsyncGenerator[Hooks]:
    async with delivering(settings) as made:
        yield made


async def test_the_independent_library_verifies_the_signature(hooks: Hooks, receiver: WebhookReceiver) -> None:
    _, secret = await hooks.endpoint(receiver.url())
    await hooks.send()
    log = await hooks.tried()
    (got,) = receiver.received
    assert Webhook(secret).verify(got.body, got.headers)["data"]["text"] == "grün"
    assert got.body.decode() == log.body
    assert got.id == log.message_id
    assert "." not in got.id
    assert got.headers["user-agent"].startswith("Runlane/")
    assert got.headers["content-type"] == "application/json"
    assert log.status is DeliveryStatus.DELIVERED
    assert (log.attempts[0].status_code, log.attempts[0].address) == (204, "127.0.0.1")
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(got.body + b" ", got.headers)


async def test_a_rotated_secret_overlaps_and_then_ends(hooks: Hooks, receiver: WebhookReceiver) -> None:
    endpoint, old = await hooks.endpoint(receiver.url())
    new = (await hooks.manager.rotate(endpoint.id, overlap_hours=24, actor="test")).secret
    assert new is not None
    await hooks.send()
    await eventually(lambda: receiver.received)
    got = receiver.received[0]
    assert len(got.headers["webhook-signature"].split()) == 2
    for secret in (old, new):
        Webhook(secret).verify(got.body, got.headers)
    last = (await hooks.manager.rotate(endpoint.id, overlap_hours=0, actor="test")).secret
    assert last is not None
    await hooks.send()
    await eventually(lambda: len(receiver.received) == 2)
    got = receiver.received[1]
    Webhook(last).verify(got.body, got.headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(new).verify(got.body, got.headers)
    # The first secret's overlap of a day continues.
    Webhook(old).verify(got.body, got.headers)
    assert (await hooks.manager.reveal(endpoint.id, actor="test")).secret == last


async def test_an_ed25519_signature_is_verified_by_the_public_key(hooks: Hooks, receiver: WebhookReceiver) -> None:
    endpoint, public = await hooks.endpoint(receiver.url(), signature="ed25519")
    assert public.startswith("whpk_")
    assert (await hooks.manager.reveal(endpoint.id, actor="test")).secret is None
    await hooks.send()
    await eventually(lambda: receiver.received)
    got = receiver.received[0]
    version, _, signature = got.headers["webhook-signature"].partition(",")
    assert version == "v1a"
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public.removeprefix("whpk_")))
    key.verify(base64.b64decode(signature), f"{got.id}.{got.headers['webhook-timestamp']}.".encode() + got.body)


async def test_headers_have_the_values_of_secrets_in_the_request_alone(
    hooks: Hooks, receiver: WebhookReceiver, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    value = "an-old-value-of-the-token"
    vault = SecretVault(await hooks.app.database(), settings)
    await vault.set("default", "TOKEN", value, actor="test")
    headers = {"Authorization": "Bearer {secret.TOKEN}", "X-Team": "orders"}
    endpoint, _ = await hooks.endpoint(receiver.url(), headers=headers)
    echoed = f"you sent {value}".encode()
    receiver.answer(Answer(500, {"location": f"/{value}"}, echoed))
    await hooks.send()
    log = await hooks.tried()
    assert receiver.received[0].headers["authorization"] == f"Bearer {value}"
    assert receiver.received[0].headers["x-team"] == "orders"
    assert log.attempts[0].request_headers == headers
    assert (await find_endpoint(await hooks.app.database(), endpoint.id)).headers == headers
    # A later message has the value of that moment.
    await vault.set("default", "TOKEN", "a-new-value-of-the-token", actor="test")
    receiver.answer(Answer(204))

    async def current() -> bool:
        await hooks.send()
        return receiver.received[-1].headers["authorization"] == "Bearer a-new-value-of-the-token"

    await eventually(current, "the new value")
    database = await hooks.app.database()
    stored = [await read_delivery(database, item.id) for item in await list_deliveries(database)]
    shown = repr((stored, await list_audit(database), caplog.text))
    assert value not in shown
    assert "a-new-value-of-the-token" not in shown


async def test_an_unknown_secret_fails_a_delivery_for_good_and_a_replay_repairs_it(
    hooks: Hooks, receiver: WebhookReceiver, settings: Settings
) -> None:
    await hooks.endpoint(receiver.url(), headers={"X-Key": "{secret.MISSING}"})
    await hooks.send()
    log = await hooks.tried()
    assert (log.status, log.attempts[0].error_kind, log.next_at_us) == (DeliveryStatus.FAILED, "header", None)
    assert 'The secret "MISSING", which the header "X-Key" refers to, does not exist.' in log.error
    assert receiver.received == []
    database = await hooks.app.database()
    vault = SecretVault(database, settings)
    await vault.set("default", "MISSING", "first line\nX-Other: injected", actor="test")

    async def replayed() -> Any:
        await replay_delivery(database, log.id, max_tries=1, actor="test")
        hooks.service.wake()
        newest = await hooks.tried()
        return newest if "printable ASCII" in newest.error else None

    newest = await eventually(replayed, "a refusal of the value")
    assert newest.status is DeliveryStatus.FAILED
    assert "injected" not in repr(newest)
    assert receiver.received == []
    await vault.set("default", "MISSING", "a-value-for-the-header", actor="test")

    async def repaired() -> bool:
        await replay_delivery(database, log.id, max_tries=1, actor="test")
        hooks.service.wake()
        await hooks.tried()
        return bool(receiver.received)

    await eventually(repaired, "a replay with the secret")
    assert receiver.received[0].headers["x-key"] == "a-value-for-the-header"


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ({"Host": "x"}, "set by Runlane or by the connection"),
        ({"Content-Type": "x"}, "set by Runlane"),
        ({"Webhook-Id": "x"}, "set by Runlane"),
        ({"Transfer-Encoding": "chunked"}, "set by Runlane"),
        ({"Proxy-Authorization": "{secret.A}"}, "set by Runlane"),
        ({"X Y": "x"}, "not a valid name"),
        ({"X-A": "a\r\nX-B: b"}, "printable ASCII"),
        ({"X-A": ""}, "printable ASCII"),
        ({"X-A": "é"}, "printable ASCII"),
        ({"X-A": "a", "x-a": "b"}, "given twice"),
        ({"X-A": "{secret .A}"}, "invalid reference"),
        ({"Authorization": "Bearer abcdef"}, "{secret.AUTHORIZATION}"),
        ({"X-A": "x" * 1001}, "1 to 1000"),
        ({f"X-{number}": "x" for number in range(21)}, "at most 20"),
    ],
)
async def test_headers_that_an_endpoint_may_not_have_are_refused(
    hooks: Hooks, headers: dict[str, str], problem: str
) -> None:
    made, _ = await hooks.endpoint("http://127.0.0.1:9/", headers={"X-A": "1"})
    with pytest.raises(InvalidRequest) as refused:
        await hooks.endpoint("http://127.0.0.1:9/", headers=headers)
    assert problem in str(refused.value)
    assert "abcdef" not in str(refused.value)
    with pytest.raises(InvalidRequest):
        await hooks.manager.change(made.id, EndpointFields(headers=headers), actor="test")
    assert (await find_endpoint(await hooks.app.database(), made.id)).headers == {"X-A": "1"}


async def test_a_run_calls_its_own_webhook_with_the_given_secret(settings: Settings, receiver: WebhookReceiver) -> None:
    app = App()

    @app.task("greet")
    async def greet(ctx: Context, name: str) -> str:
        return f"hello {name}"

    @app.task("broken", max_attempts=1)
    async def broken(ctx: Context) -> None:
        raise Fail("it broke")

    async with delivering(settings, app) as hooks:
        worker = await app.worker()
        await worker.start()
        secret = "whsec_" + base64.b64encode(bytes(32)).decode()
        done = await app.enqueue("greet", {"name": "Ada"}, webhook_url=receiver.url("/a"), webhook_secret=secret)
        await app.enqueue("broken", webhook_url=receiver.url("/b"))
        await app.enqueue_many([("greet", {"name": "Bo"})] * 2, webhook_url=receiver.url("/many"))
        await app.wait(done.run_id, timeout=30)

        async def arrived() -> bool:
            hooks.service.wake()
            return len(receiver.received) == 4

        await eventually(arrived, "four webhooks")
        await worker.stop()
    (got,) = receiver.of("/a")
    body = Webhook(secret).verify(got.body, got.headers)
    assert (body["type"], body["result"], body["run_id"]) == ("run.completed", "hello Ada", done.run_id)
    expected = hmac.digest(secret.encode(), got.body, "sha256").hex()
    assert got.headers["x-synapse-signature"] == f"sha256={expected}"
    (failed,) = receiver.of("/b")
    assert "webhook-signature" not in failed.headers
    assert "x-synapse-signature" not in failed.headers
    assert (failed.json["status"], failed.json["error"]) == ("failed", "it broke")
    assert len(receiver.of("/many")) == 2


async def test_the_default_secret_of_the_tenant_signs_the_webhooks_of_runs_without_one(
    settings: Settings, receiver: WebhookReceiver
) -> None:
    app = App()

    @app.task("greet")
    async def greet(ctx: Context, name: str) -> str:
        return f"hello {name}"

    async with delivering(settings, app) as hooks:
        worker = await app.worker()
        await worker.start()

        async def call(path: str, **options: Any) -> Received:
            await app.enqueue("greet", {"name": "Ada"}, webhook_url=receiver.url(path), **options)

            async def arrived() -> bool:
                hooks.service.wake()
                return bool(receiver.of(path))

            await eventually(arrived, "the webhook of the run")
            return receiver.of(path)[0]

        assert "webhook-signature" not in (await call("/before")).headers
        first = await hooks.manager.rotate_default("default", actor="test")
        got = await call("/first")
        assert Webhook(first.secret or "").verify(got.body, got.headers)["result"] == "hello Ada"
        second = await hooks.manager.rotate_default("default", overlap_hours=1, actor="test")
        assert (first.version, second.version) == (1, 2)
        got = await call("/both")
        for made in (second, first):
            assert Webhook(made.secret or "").verify(got.body, got.headers)
        last = await hooks.manager.rotate_default("default", overlap_hours=0, actor="test")
        own = "whsec_" + base64.b64encode(bytes(32)).decode()
        got = await call("/own", webhook_secret=own)
        assert Webhook(own).verify(got.body, got.headers)
        with pytest.raises(WebhookVerificationError):
            Webhook(last.secret or "").verify(got.body, got.headers)
        await worker.stop()


async def test_without_an_encryption_key_a_secret_is_refused_with_the_fix(
    sqlite_url: str, receiver: WebhookReceiver
) -> None:
    plain = settings_for(sqlite_url, outbound_allow="127.0.0.0/8")
    app = App()

    @app.task("noop")
    async def noop(ctx: Context) -> None: ...

    async with delivering(plain, app) as hooks:
        with pytest.raises(NoSecretKey, match="RUNLANE_SECRET_KEY"):
            await hooks.endpoint(receiver.url())
        with pytest.raises(NoSecretKey):
            await app.enqueue("noop", webhook_url=receiver.url(), webhook_secret="a secret of mine")
        assert await list_deliveries(await app.database()) == []
        with pytest.raises(InvalidRequest, match="without webhook_url"):
            await app.enqueue("noop", webhook_secret="a secret of mine")


async def test_a_new_encryption_key_takes_over_the_secrets_of_webhooks(
    settings: Settings, receiver: WebhookReceiver
) -> None:
    async with delivering(settings) as hooks:
        _, secret = await hooks.endpoint(receiver.url())
    new = base64.b64encode(bytes(range(1, 33))).decode()
    both = settings.model_copy(update={"secret_key": SecretStr(f"{new},{KEY}")})
    async with delivering(both) as hooks:
        rotated = await (await hooks.app.connect()).vault.rotate(actor="test")
        assert (rotated.rotated, rotated.unreadable) == (1, ())
    only_new = settings.model_copy(update={"secret_key": SecretStr(new)})
    async with delivering(only_new) as hooks:
        await hooks.send()
        await eventually(lambda: receiver.received)
        got = receiver.received[0]
        Webhook(secret).verify(got.body, got.headers)
    lost = settings.model_copy(update={"secret_key": SecretStr(KEY)})
    async with delivering(lost) as hooks:
        await hooks.send()
        log = await hooks.tried()
        assert (log.status, log.attempts[0].error_kind) == (DeliveryStatus.PENDING, "secret")
    assert len(receiver.received) == 1


async def test_failures_are_retried_with_the_same_id_until_one_succeeds(
    hooks: Hooks, receiver: WebhookReceiver
) -> None:
    await hooks.endpoint(receiver.url())
    receiver.answer(Answer(503, {"retry-after": "1800"}))
    await hooks.send()
    first = await hooks.tried()
    assert first.status is DeliveryStatus.PENDING
    # Retry-After is longer than the five seconds of the first wait.
    assert first.next_at_us - first.attempts[0].started_at_us > 1_700_000_000
    receiver.answer(Answer(200, body=b"thanks"))
    await hooks.make_due()
    log = await hooks.tried(2)
    assert log.status is DeliveryStatus.DELIVERED
    assert len({item.id for item in receiver.received}) == 1
    assert log.attempts[1].response_body == "thanks"
    assert log.attempts[0].response_headers["retry-after"] == "1800"


@pytest.mark.parametrize(("status", "least_seconds"), [(429, 29), (502, 29), (504, 29), (500, 3)])
async def test_a_receiver_that_is_overloaded_gets_a_longer_pause(
    hooks: Hooks, receiver: WebhookReceiver, status: int, least_seconds: int
) -> None:
    await hooks.endpoint(receiver.url())
    receiver.answer(Answer(status))
    await hooks.send()
    log = await hooks.tried()
    # The first wait is five seconds, a fifth more or less.
    pause_us = log.next_at_us - log.attempts[0].started_at_us
    assert least_seconds * 1_000_000 < pause_us
    assert (pause_us < 20_000_000) == (status == 500)


async def test_ten_tries_and_then_it_has_failed(hooks: Hooks, receiver: WebhookReceiver) -> None:
    endpoint, _ = await hooks.endpoint(receiver.url())
    receiver.answer(Answer(500))
    await hooks.send()
    for number in range(1, MAX_TRIES + 1):
        await hooks.tried(number)
        await hooks.make_due()
    log = await hooks.log()
    assert (log.status, log.tries, log.error) == (DeliveryStatus.FAILED, MAX_TRIES, "The endpoint answered 500.")
    assert len(receiver.received) == MAX_TRIES
    state = await find_endpoint(await hooks.app.database(), endpoint.id)
    assert (state.failures, state.health) == (MAX_TRIES, "degraded")


@pytest.mark.parametrize(
    ("answer", "status", "kind"),
    [
        (Answer(302, {"location": "http://169.254.169.254/"}), DeliveryStatus.PENDING, "redirect"),
        (Answer(410), DeliveryStatus.FAILED, "gone"),
        (Answer(hang=True), DeliveryStatus.PENDING, "timeout"),
        (Answer(500, flood=True), DeliveryStatus.PENDING, "status"),
        (Answer(200, flood=True), DeliveryStatus.DELIVERED, None),
        (Answer(200, drip=True), DeliveryStatus.DELIVERED, None),
    ],
    ids=["redirect", "gone", "hangs", "endless error", "endless success", "slow success"],
)
async def test_what_a_receiver_answers_decides(
    hooks: Hooks, receiver: WebhookReceiver, answer: Answer, status: DeliveryStatus, kind: str | None
) -> None:
    endpoint, _ = await hooks.endpoint(receiver.url())
    receiver.answer(answer)
    await hooks.send()
    log = await hooks.tried()
    assert (log.status, log.attempts[0].error_kind) == (status, kind)
    assert len(log.attempts[0].response_body or "") <= 2048
    assert len(receiver.received) == 1
    enabled = (await find_endpoint(await hooks.app.database(), endpoint.id)).enabled
    assert enabled is (kind != "gone")


async def test_a_receiver_that_cannot_be_reached_is_tried_again(hooks: Hooks, receiver: WebhookReceiver) -> None:
    await hooks.endpoint("http://127.0.0.1:9/hook")
    await hooks.send()
    log = await hooks.tried()
    assert (log.status, log.attempts[0].error_kind) == (DeliveryStatus.PENDING, "unreachable")


async def test_one_that_hangs_does_not_delay_another(hooks: Hooks, receiver: WebhookReceiver) -> None:
    await hooks.endpoint(receiver.url("/hangs"))
    await hooks.endpoint(receiver.url("/well"))
    receiver.answer(Answer(hang=True), "/hangs")
    await hooks.send(30)
    await eventually(lambda: len(receiver.of("/well")) == 30, "the messages of the other")
    assert len(receiver.of("/hangs")) <= 8


async def test_a_message_that_waits_for_its_rate_plans_one_pass(hooks: Hooks, receiver: WebhookReceiver) -> None:
    """However many passes there are meanwhile: each of them would plan another one, until they never pause."""
    await hooks.endpoint(receiver.url("/slow"), rate_per_second=0.01)
    await hooks.endpoint(receiver.url("/well"))
    planned: set[asyncio.TimerHandle] = set()
    for count in range(1, 6):
        await hooks.send()
        await eventually(lambda count=count: len(receiver.of("/well")) == count, "a message of the other")
        planned |= {handle} if (handle := hooks.service._again) is not None else set()
    assert len(receiver.of("/slow")) == 1
    assert len([handle for handle in planned if not handle.cancelled()]) == 1


async def test_a_test_message_is_answered_with_the_attempt(hooks: Hooks, receiver: WebhookReceiver) -> None:
    endpoint, secret = await hooks.endpoint(receiver.url())
    receiver.answer(Answer(500, body=b"no"))
    attempt = await hooks.manager.test(endpoint.id, actor="mara")
    assert (attempt.status_code, attempt.response_body, attempt.error_kind) == (500, "no", "status")
    (got,) = receiver.received
    assert Webhook(secret).verify(got.body, got.headers)["type"] == "test.ping"
    state = await find_endpoint(await hooks.app.database(), endpoint.id)
    assert (state.failures, (await hooks.log()).status) == (0, DeliveryStatus.FAILED)


async def test_messages_match_their_schemas(settings: Settings, receiver: WebhookReceiver) -> None:
    app = App()

    @app.task("greet")
    async def greet(ctx: Context) -> None: ...

    async with delivering(settings, app) as hooks:
        await hooks.endpoint(receiver.url())
        worker = await app.worker()
        await worker.start()
        await app.wait((await app.enqueue("greet")).run_id, timeout=30)

        async def arrived() -> bool:
            hooks.service.wake()
            return len(receiver.received) == 2

        await eventually(arrived, "two messages")
        await worker.stop()
    for got in receiver.received:
        assert misfit(got.json, schema_of(WebhookType(got.json["type"]))) is None


REFUSED_URLS = [
    "https://127.0.0.1/", "https://localhost/", "https://0.0.0.0/", "https://[::1]/", "https://[::ffff:127.0.0.1]/",
    "https://169.254.169.254/latest/meta-data", "https://10.1.2.3/", "https://2130706433/", "https://0x7f.1/",
    "https://0177.0.0.1/", "https://[64:ff9b::7f00:1]/", "https://192.168.1.1:8443/", "https://[fe80::1]/",
]  # fmt: skip


@pytest.mark.parametrize("url", REFUSED_URLS)
async def test_a_refused_address_fails_for_good(sqlite_url: str, url: str) -> None:
    settings = settings_for(sqlite_url, secret_key=KEY)
    sender = WebhookSender(settings, Keyring(settings), no_secrets)
    delivery = ClaimedDelivery(
        "whd_1", 1, 0, 10, "we_1", "default", "msg_1", "run.completed", None, url, "{}", False, False, 0
    )
    result = await sender.send(delivery, 0.0)
    await sender.close()
    assert (result.status, result.error_kind, result.delay_us) == (DeliveryStatus.FAILED, "refused", None)
    assert "RUNLANE_OUTBOUND_ALLOW" in (result.error or "")
    # The text is the same for every cause, so that it reveals nothing of the network.
    assert "loopback" not in (result.error or "")


async def test_a_name_that_resolves_to_another_address_later_is_refused(sqlite_url: str) -> None:
    """The guard resolves once and connects to an address that it has checked."""
    settings = settings_for(sqlite_url, secret_key=KEY)
    asked = 0

    async def resolve(host: str, port: int) -> list[str]:
        nonlocal asked
        asked += 1
        return ["127.0.0.1"]

    sender = WebhookSender(settings, Keyring(settings), no_secrets, Outbound(settings, resolve=resolve))
    delivery = ClaimedDelivery(
        "whd_1", 1, 0, 10, "we_1", "default", "msg_1", "t", None, "https://rebound.example/", "{}", False, False, 0
    )
    result = await sender.send(delivery, 0.0)
    await sender.close()
    assert (result.error_kind, asked) == ("refused", 1)


async def test_a_try_checks_scheme_and_port_again(settings: Settings, receiver: WebhookReceiver) -> None:
    """An operator may have removed what was allowed when the endpoint was created."""
    strict = settings.model_copy(update={"outbound_allow": "127.0.0.1:1"})
    sender = WebhookSender(strict, Keyring(strict), no_secrets, Outbound(settings))
    delivery = ClaimedDelivery(
        "whd_1", 1, 0, 10, "we_1", "default", "msg_1", "t", None, receiver.url(), "{}", False, False, 0
    )
    result = await sender.send(delivery, 0.0)
    await sender.close()
    assert (result.error_kind, receiver.received) == ("refused", [])


@pytest.mark.parametrize(
    "url", ["http://example.com/", "https://example.com:22/", "https://127.0.0.1/", "ftp://example.com"]
)
def test_an_endpoint_on_a_refused_destination_is_not_registered(url: str) -> None:
    with pytest.raises((OutboundRefused, InvalidRequest)):
        check_destination(url, parse_allow_list(""))


def test_an_operator_allows_hosts_and_ports() -> None:
    allowed = parse_allow_list("127.0.0.1:9000,internal.example")
    check_destination("http://127.0.0.1:9000/hook", allowed)
    check_destination("http://internal.example:1234/", allowed)
    check_destination("https://example.com:8443/", allowed)
    with pytest.raises(OutboundRefused):
        check_destination("http://127.0.0.1:9001/", allowed)


async def test_a_stopped_service_records_what_it_sent(settings: Settings, receiver: WebhookReceiver) -> None:
    async with delivering(settings) as hooks:
        await hooks.endpoint(receiver.url())
        await hooks.send(5)
        await eventually(lambda: receiver.received)
    async with delivering(settings) as hooks:
        hooks.service.wake()
        await eventually(lambda: len({item.id for item in receiver.received}) == 5)
    app = App()
    app.configure(settings)
    async with app:
        assert {item.status for item in await list_deliveries(await app.database())} <= {
            DeliveryStatus.DELIVERED, DeliveryStatus.PENDING
        }  # fmt: skip
