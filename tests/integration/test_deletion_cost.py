"""A worker annotates its pod over a real TLS connection, only when its load changed, and survives errors."""

from __future__ import annotations

import asyncio
import datetime
import json
import ssl
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from runlane.errors import ConfigurationError
from runlane.settings import load_settings
from runlane.worker.deletion_cost import ANNOTATION, DeletionCost, Pod
from tests.harness import eventually


class ApiServer:
    """The part of Kubernetes' API server that patches pods."""

    def __init__(self, account: Path) -> None:
        self.costs: list[str] = []
        self.requests: list[tuple[str, str | None, str | None]] = []
        self.statuses: list[int] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_PATCH(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                status = outer.statuses.pop(0) if outer.statuses else 200
                outer.requests.append((self.path, self.headers["authorization"], self.headers["content-type"]))
                if status == 200:
                    outer.costs.append(body["metadata"]["annotations"][ANNOTATION])
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*_certificate(account))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.port = self._server.server_address[1]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _certificate(account: Path) -> tuple[Path, Path]:
    """Write a certificate for loopback as the cluster's authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "api")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (account / "ca.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = account / "key.pem"
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return account / "ca.crt", private


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("token-1\n")
    (tmp_path / "namespace").write_text("jobs\n")
    return tmp_path


@pytest.fixture
def api_server(account: Path) -> Generator[ApiServer]:
    server = ApiServer(account)
    yield server
    server.close()


def pod(api_server: ApiServer, account: Path) -> Pod:
    environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(api_server.port)}
    return Pod.of(load_settings(pod_name="worker-1"), environment, account)


async def test_the_cost_follows_the_load(api_server: ApiServer, account: Path) -> None:
    active = 0
    turns = 0

    def count() -> int:
        nonlocal turns
        turns += 1
        return active

    service = DeletionCost(pod(api_server, account), count, seconds=0.01)
    service.start()
    await eventually(lambda: api_server.costs == ["0"], "the cost of an idle worker")
    before = turns
    await eventually(lambda: turns > before + 3, "further looks at the load")
    assert api_server.costs == ["0"]
    active = 3
    await eventually(lambda: api_server.costs == ["0", "4"], "the cost of a busy worker")
    (account / "token").write_text("token-2\n")
    active = 0
    await eventually(lambda: api_server.costs == ["0", "4", "0"], "the cost of an idle worker")
    await service.stop()
    path = "/api/v1/namespaces/jobs/pods/worker-1"
    kind = "application/merge-patch+json"
    assert api_server.requests == [
        (path, "Bearer token-1", kind), (path, "Bearer token-1", kind), (path, "Bearer token-2", kind),
    ]  # fmt: skip


async def test_an_error_is_retried(api_server: ApiServer, account: Path) -> None:
    api_server.statuses = [403, 500]
    service = DeletionCost(pod(api_server, account), lambda: 1, seconds=0.01)
    service.start()
    await eventually(lambda: api_server.costs == ["2"], "the cost after two errors")
    await service.stop()


async def test_another_certificate_is_refused(api_server: ApiServer, account: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for name in ("token", "namespace"):
        (other / name).write_text((account / name).read_text())
    _certificate(other)
    problem = await asyncio.to_thread(pod(api_server, other).annotate, 1)
    assert problem is not None
    assert "certificate verify failed" in problem
    assert api_server.requests == []


def test_a_process_outside_of_kubernetes_is_told_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no service account"):
        Pod.of(load_settings(), {}, tmp_path)
