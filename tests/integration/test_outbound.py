"""The guarded client against real servers: what it refuses, follows, drops, counts and times."""

from __future__ import annotations

import asyncio
import datetime
import gzip
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from runlane.addresses import parse_allow_list
from runlane.errors import (
    OutboundError,
    OutboundRefused,
    OutboundTimeout,
    OutboundTooLarge,
    OutboundUnreachable,
)
from runlane.outbound import Outbound, OutboundLimits, Resolve
from runlane.outbound.guard import Guard
from runlane.settings import load_settings
from tests.integration.http_server import Answering, Request, Writer, plain, redirect, serving

CANARY = "canary-4711"


def outbound(allow: str = "", resolve: Resolve | None = None, tls: ssl.SSLContext | None = None) -> Outbound:
    settings = load_settings(outbound_allow=allow)
    return (
        Outbound(settings, ssl_context=tls) if resolve is None else Outbound(settings, resolve=resolve, ssl_context=tls)
    )


def resolving(**names: Sequence[str]) -> Resolve:
    async def resolve(host: str, _port: int) -> Sequence[str]:
        return names[host.replace(".", "_")]

    return resolve


LOOPBACK_FORMS = [
    "127.0.0.1",
    "127.1",
    "127.0.1",
    "127.255.0.9",
    "2130706433",
    "0x7f000001",
    "0x7f.0.0.1",
    "0177.0.0.1",
    "017700000001",
    "0",
    "0.0.0.0",
    "localhost",
    "LOCALHOST",
    "[::1]",
    "[::]",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::127.0.0.1]",
    "[64:ff9b::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b:1::7f00:1]",
    "[2002:7f00:1::]",
    "[2001:0:53aa:64c:0:0:80ff:fffe]",
    "[fe80::1]",
    "[fc00::1]",
    "[ff02::1]",
    "169.254.169.254",
    "[fd00:ec2::254]",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "240.0.0.1",
    "198.18.0.1",
]


@pytest.mark.parametrize("host", LOOPBACK_FORMS)
async def test_no_form_of_an_inner_host_is_called(host: str) -> None:
    async with serving(plain()) as server:
        calling = outbound()
        with pytest.raises(OutboundRefused) as caught:
            await calling.request("GET", f"http://{host}:{server.port}/{CANARY}")
        async with calling.client() as client:
            with pytest.raises((OutboundRefused, httpx2.InvalidURL)):
                await client.get(f"http://{host}:{server.port}/")
        # Not only because of what httpx2 makes of it.
        with pytest.raises(OutboundRefused):
            await Guard(parse_allow_list("")).connect(host, server.port, timeout=5)
        assert server.connections == 0
        assert caught.value.code == "outbound_refused"
        assert CANARY not in str(caught.value)
        await calling.close()


@pytest.mark.parametrize(
    "host", ["[fe80::1%25eth0]", "[fe80::1%eth0]", "[::1%25lo]", "localhost.", "①②⑦.⓪.⓪.①", "127。0。0。1"]
)
async def test_zones_and_dressed_up_digits_are_refused(host: str) -> None:
    async with serving(plain()) as server:
        calling = outbound()
        with pytest.raises(OutboundError) as caught:
            await calling.request("GET", f"http://{host}:{server.port}/")
        assert caught.value.code in ("outbound_refused", "outbound_unreachable")
        assert server.connections == 0


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://x.example/",
        "gopher://x.example/",
        "ws://x.example/",
        "wss://x.example/",
        "unix:///run/docker.sock",
        "http+unix://%2Frun%2Fdocker.sock/",
        "//x.example/",
        "/path",
        "",
        "http://",
        "http:///path",
        "http://x.example:99999/",
        "http://user:pw@x.example/",
        "http://a b/",
        "javascript:alert(1)",
    ],
)
async def test_only_plain_http_is_called(url: str) -> None:
    with pytest.raises(OutboundRefused) as caught:
        await outbound(resolve=resolving(x_example=["127.0.0.1"])).request("GET", url)
    assert "pw" not in str(caught.value)


async def test_the_environment_names_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(plain()) as proxy, serving(plain(b"direct")) as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url())
        calling = outbound(f"127.0.0.1:{server.port}")
        assert (await calling.request("GET", server.url())).body == b"direct"
        async with calling.client() as client:
            assert (await client.get(server.url())).content == b"direct"
        await calling.close()
        assert proxy.connections == 0


async def test_allowed_addresses_are_called() -> None:
    async with serving(plain(b"hello")) as server:
        for allow in (f"127.0.0.1:{server.port}", "127.0.0.1", "127.0.0.0/8", f"10.0.0.0/8,127.0.0.1:{server.port}"):
            calling = outbound(allow)
            assert (await calling.request("GET", server.url("/x?y=1"))).text == "hello"
            await calling.close()
        with pytest.raises(OutboundRefused, match="RUNLANE_OUTBOUND_ALLOW"):
            await outbound(f"127.0.0.1:{server.port + 1}").request("GET", server.url())


async def test_an_allowed_name_is_called_wherever_it_leads_and_others_are_not() -> None:
    async with serving(plain(b"hello")) as server:
        names = resolving(internal_example=["127.0.0.1"], evil_example=["127.0.0.1"])
        calling = outbound(f"internal.example:{server.port}", names)
        assert (await calling.request("GET", server.url(host="internal.example"))).text == "hello"
        assert server.requests[0].headers["host"] == f"internal.example:{server.port}"
        for host in ("evil.example", "127.0.0.1"):
            with pytest.raises(OutboundRefused):
                await calling.request("GET", server.url(host=host))
        await calling.close()


@pytest.mark.parametrize(
    "addresses",
    [["8.8.8.8", "127.0.0.1"], ["127.0.0.1", "8.8.8.8"], ["2606:4700::1", "::1"], ["1.1.1.1", "x"]],
)
async def test_one_bad_address_among_several_is_enough(addresses: list[str]) -> None:
    calling = outbound(resolve=resolving(mixed_example=addresses))
    with pytest.raises(OutboundRefused):
        await calling.request("GET", "http://mixed.example/")


async def test_a_name_that_changes_its_address_leads_nowhere_else() -> None:
    """The address that was checked is the one that is called, and each new connection is checked again."""
    lookups = 0

    async def rebinding(_host: str, _port: int) -> Sequence[str]:
        nonlocal lookups
        lookups += 1
        # First an address that may be called, then the one that the attacker is after.
        return ["127.0.0.2"] if lookups == 1 else ["127.0.0.1"]

    async with serving(plain(b"inner", headers={"connection": "close"})) as inner:
        calling = outbound("127.0.0.2", rebinding)
        limits = OutboundLimits(connect_seconds=5)
        # Nothing listens at the checked address, and the other one is not tried.
        with pytest.raises(OutboundUnreachable):
            await calling.request("GET", inner.url(host="rebind.example"), limits=limits)
        assert lookups == 1
        with pytest.raises(OutboundRefused):
            await calling.request("GET", inner.url(host="rebind.example"), limits=limits)
        assert lookups == 2
        assert inner.connections == 0


async def test_another_address_of_a_name_is_tried_when_the_first_is_down() -> None:
    async with serving(plain(b"up")) as server:
        calling = outbound("127.0.0.0/8", resolving(two_example=["127.0.0.9", "127.0.0.1"]))
        assert (await calling.request("GET", server.url(host="two.example"))).text == "up"
        await calling.close()


async def test_a_name_that_is_not_known_cannot_be_reached() -> None:
    async def unknown(_host: str, _port: int) -> Sequence[str]:
        raise OSError("no such name")

    async def none(_host: str, _port: int) -> Sequence[str]:
        return []

    for resolve in (unknown, none):
        with pytest.raises(OutboundUnreachable) as caught:
            await outbound(resolve=resolve).request("GET", "http://gone.example/x?key=canary")
        assert str(caught.value) == "http://gone.example cannot be reached, or broke off its response."


@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://[::ffff:169.254.169.254]/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://2852039166/",
        "http://10.0.0.1/",
        "http://localhost/",
        "//127.0.0.2/",
        "file:///etc/passwd",
        "ftp://127.0.0.1/",
        "gopher://127.0.0.1:6379/_FLUSHALL",
        "http://[bad/",
    ],
)
async def test_redirects_are_checked_like_the_first_request(location: str) -> None:
    async with serving(redirect(location)) as server:
        calling = outbound(f"127.0.0.1:{server.port}")
        with pytest.raises(OutboundRefused):
            await calling.request("GET", server.url())
        async with calling.client() as client:
            with pytest.raises(OutboundRefused):
                await client.get(server.url(), follow_redirects=True)
        await calling.close()
        assert len(server.requests) == 2


async def test_redirects_have_an_end() -> None:
    async with serving(redirect("/again")) as server:
        calling = outbound(f"127.0.0.1:{server.port}")
        with pytest.raises(OutboundRefused, match="more than 5 times"):
            await calling.request("GET", server.url())
        await calling.close()
        assert len(server.requests) == 6


SECRETS = {
    "authorization": f"Bearer {CANARY}",
    "cookie": f"session={CANARY}",
    "x-api-key": CANARY,
    "idempotency-key": "k1",
    "proxy-authorization": CANARY,
}


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
async def test_another_origin_gets_no_credentials(status: str) -> None:
    async with serving(plain(b"there")) as other:
        async with serving(redirect(other.url("/new"), status)) as server:
            calling = outbound("127.0.0.1")
            answer = await calling.request(
                "POST", server.url("/old"), headers={**SECRETS, "content-type": "application/json"}, content=b"{}"
            )
            await calling.close()
        assert answer.text == "there"
        assert server.requests[0].headers["x-api-key"] == CANARY
        (last,) = other.requests
        assert CANARY not in str(last.headers)
        assert not set(SECRETS) & set(last.headers)
        assert last.headers["host"] == f"127.0.0.1:{other.port}"
        kept = status[:3] in ("307", "308")
        assert (last.method, last.body) == (("POST", b"{}") if kept else ("GET", b""))
        assert ("content-type" in last.headers) == kept


async def test_another_host_or_name_for_the_same_server_is_another_origin() -> None:
    async def answer(request: Request, writer: Writer) -> None:
        if request.headers["host"].startswith("one.example"):
            await redirect(f"http://two.example:{server.port}/")(request, writer)
        else:
            await plain()(request, writer)

    async with serving(answer) as server:
        calling = outbound("127.0.0.1", resolving(one_example=["127.0.0.1"], two_example=["127.0.0.1"]))
        await calling.request("GET", server.url(host="one.example"), headers=SECRETS)
        await calling.close()
        assert [CANARY in str(request.headers) for request in server.requests] == [True, False]


async def test_the_same_origin_keeps_its_credentials() -> None:
    async def answer(request: Request, writer: Writer) -> None:
        await (plain() if request.target == "/new" else redirect("/new"))(request, writer)

    async with serving(answer) as server:
        calling = outbound("127.0.0.1")
        await calling.request("GET", server.url("/old"), headers=SECRETS)
        await calling.close()
        assert [request.headers["x-api-key"] for request in server.requests] == [CANARY, CANARY]


async def test_requests_keep_no_cookies() -> None:
    async with serving(plain(headers={"set-cookie": "a=b; Path=/"})) as server:
        calling = outbound("127.0.0.1")
        for _ in range(2):
            await calling.request("GET", server.url())
        await calling.close()
        assert all("cookie" not in request.headers for request in server.requests)
        assert server.connections == 1, "connections are used again"


def _endless(piece: bytes, head: bytes = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n") -> Answering:
    async def answer(_request: Request, writer: Writer) -> None:
        writer.write(head)
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    return answer


BOMB = gzip.compress(b"\0" * 50_000_000)


@pytest.mark.parametrize(
    "answer",
    [
        plain(b"x" * 2001),
        plain(b"x" * 2001, sized=False, headers={"connection": "close"}),
        plain(BOMB, headers={"content-encoding": "gzip"}),
        plain(gzip.compress(b"x" * 2001), headers={"content-encoding": "x-gzip"}),
        _endless(b"x" * 1000),
        plain(b"", headers={f"x-{number}": "y" * 1000 for number in range(80)}),
        _endless(b"x" * 1000, b"HTTP/1.1 200 OK\r\nx: "),
    ],
    ids=["declared", "closing", "bomb", "packed", "endless", "headers", "endless header"],
)
async def test_an_answer_that_is_too_large_is_stopped(answer: Answering) -> None:
    async with serving(answer) as server:
        calling = outbound("127.0.0.1")
        with pytest.raises(OutboundTooLarge) as caught:
            await calling.request("GET", server.url(), limits=OutboundLimits(max_body_bytes=2000))
        assert caught.value.code == "outbound_too_large"
        async with calling.client(OutboundLimits(max_body_bytes=2000)) as client:
            with pytest.raises((OutboundTooLarge, httpx2.RemoteProtocolError)):
                await client.get(server.url())
        await calling.close()


async def test_packed_answers_are_unpacked() -> None:
    text = b"hello " * 100_000
    async with serving(plain(gzip.compress(text), headers={"content-encoding": "gzip"})) as server:
        calling = outbound("127.0.0.1")
        answer = await calling.request("GET", server.url())
        assert answer.body == text
        assert server.requests[0].headers["accept-encoding"] == "gzip"
        async with calling.client() as client:
            assert (await client.get(server.url(), headers={"accept-encoding": "br, zstd"})).content == text
        assert {request.headers["accept-encoding"] for request in server.requests} == {"gzip"}
        exact = await calling.request("GET", server.url(), limits=OutboundLimits(max_body_bytes=len(text)))
        assert len(exact.body) == len(text)
        await calling.close()


@pytest.mark.parametrize(
    "answer",
    [
        plain(b"x", headers={"content-encoding": "br"}),
        plain(b"x", headers={"content-encoding": "gzip, gzip"}),
        plain(b"this is not packed", headers={"content-encoding": "gzip"}),
        plain(gzip.compress(b"x" * 1000)[:-10], headers={"content-encoding": "gzip"}),
        plain(b"", "SSH-2.0"),
    ],
)
async def test_answers_that_are_none(answer: Answering) -> None:
    async with serving(answer) as server:
        calling = outbound("127.0.0.1")
        with pytest.raises(OutboundUnreachable) as caught:
            await calling.request("GET", server.url(), headers=SECRETS)
        assert CANARY not in str(caught.value)
        await calling.close()


async def _silent(_request: Request, _writer: Writer) -> None:
    await asyncio.sleep(3600)


async def _dripping_head(_request: Request, writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x: y\r\n")
        await writer.drain()
        await asyncio.sleep(0.02)


async def _dripping_body(_request: Request, writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def _forever_informing(_request: Request, writer: Writer) -> None:
    while True:
        writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("answer", [_silent, _dripping_head, _dripping_body, _forever_informing])
async def test_the_total_time_is_bounded(answer: Answering) -> None:
    async with serving(answer) as server:
        calling = outbound("127.0.0.1")
        limits = OutboundLimits(total_seconds=0.5)
        with pytest.raises(OutboundTimeout) as caught:
            await calling.request("GET", server.url(), limits=limits)
        assert caught.value.code == "outbound_timeout"
        async with calling.client(limits) as client:
            with pytest.raises(OutboundTimeout):
                await client.get(server.url())
        await calling.close()


async def test_silence_is_bounded_too() -> None:
    async with serving(_silent) as server:
        calling = outbound("127.0.0.1")
        with pytest.raises(OutboundTimeout):
            await calling.request("GET", server.url(), limits=OutboundLimits(read_seconds=0.3, total_seconds=None))
        await calling.close()


async def test_a_resolver_that_hangs_is_not_waited_for() -> None:
    async def hanging(_host: str, _port: int) -> Sequence[str]:
        await asyncio.sleep(3600)
        return []

    with pytest.raises(OutboundTimeout):
        await outbound(resolve=hanging).request("GET", "http://x.example/", limits=OutboundLimits(connect_seconds=0.2))


async def test_headers_that_http_does_not_allow_are_not_quoted() -> None:
    async with serving(plain()) as server:
        calling = outbound("127.0.0.1")
        for value in (f"{CANARY}\r\nx: y", f"{CANARY}\n", f"\0{CANARY}"):
            with pytest.raises(OutboundRefused) as caught:
                await calling.request("GET", server.url(), headers={"x-key": value})
            assert CANARY not in str(caught.value)
        assert server.requests == []
        await calling.close()


async def test_streams_without_an_end_can_be_read() -> None:
    async def events(_request: Request, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        for number in range(3):
            writer.write(f"data: {number}\n\n".encode())
            await writer.drain()
        writer.close()

    async with serving(events) as server:
        calling = outbound("127.0.0.1")
        async with (
            calling.client(OutboundLimits(total_seconds=None, max_body_bytes=None), headers={"x-own": "1"}) as client,
            client.stream("GET", server.url()) as response,
        ):
            lines = [line async for line in response.aiter_lines() if line]
        assert lines == ["data: 0", "data: 1", "data: 2"]
        assert server.requests[0].headers["x-own"] == "1"


def _certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return what a server of this name has, and what a client needs that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    (folder / "cert.pem").write_bytes(pem)
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return server, ssl.create_default_context(cadata=pem.decode())


async def test_tls_checks_the_name_and_not_the_address(tmp_path: Path) -> None:
    theirs, ours = _certificate(tmp_path, "good.example")
    names = resolving(good_example=["127.0.0.1"], other_example=["127.0.0.1"])
    async with serving(plain(b"safe"), tls=theirs) as server:
        url: Callable[[str], str] = lambda host: f"https://{host}:{server.port}/"  # noqa: E731
        calling = outbound("127.0.0.1", names, ours)
        assert (await calling.request("GET", url("good.example"))).text == "safe"
        for host in ("other.example", "127.0.0.1"):
            with pytest.raises(OutboundUnreachable, match="certificate"):
                await calling.request("GET", url(host))
        untrusting = outbound("127.0.0.1", names)
        with pytest.raises(OutboundUnreachable, match="certificate"):
            await untrusting.request("GET", url("good.example"))
        await calling.close()
        await untrusting.close()
        assert len(server.requests) == 1


async def test_closing_twice_is_harmless() -> None:
    calling = outbound()
    await calling.close()
    await calling.close()
