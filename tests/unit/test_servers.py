"""The servers that the suite starts: they start anywhere, survive a crash, and leave nothing."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest
import redis

from runlane.testing import (
    ExternalPostgres,
    ExternalRedis,
    MissingBinaryError,
    PostgresServer,
    RedisServer,
    ServerError,
    account,
    binaries,
    local,
    postgres_for_tests,
    redis_for_tests,
)
from runlane.testing.account import ServerAccount

DURABLE_REDIS = {"appendonly": "yes", "appendfsync": "always"}
both_kinds = pytest.mark.parametrize("kind", [PostgresServer, RedisServer])


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


async def connect(url: str) -> asyncpg.Connection:
    return cast("asyncpg.Connection", await asyncpg.connect(url))


async def query(url: str, statement: str) -> str:
    connection = await connect(url)
    try:
        return str(cast("Any", await connection.fetchval(statement)))
    finally:
        await connection.close()


def redis_client(server: RedisServer | ExternalRedis) -> redis.Redis:
    return redis.Redis.from_url(server.url, decode_responses=True)


def home_of(server: PostgresServer | RedisServer) -> Path:
    assert server._home is not None
    return server._home


def is_process(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_listening(port: int) -> bool:
    with socket.socket() as link:
        return link.connect_ex(("127.0.0.1", port)) == 0


async def test_postgres_serves_and_keeps_its_data_over_a_restart() -> None:
    with PostgresServer() as server:
        port, pid = server.port, server.pid
        await query(server.url, "create table kept as select 7 as n")
        server.restart()
        assert server.port == port
        assert server.pid != pid
        assert await query(server.url, "select n from kept") == "7"


async def test_postgres_recovers_after_a_kill() -> None:
    with PostgresServer() as server:
        port, pid = server.port, server.pid
        await query(server.url, "create table kept as select 7 as n")
        held = await connect(server.url)
        server.kill()
        assert not is_process(pid)
        assert not is_listening(port)
        with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError)):
            await held.fetchval("select 1")
        await held.close(timeout=5)
        server.start()
        assert server.port == port
        assert await query(server.url, "select n from kept") == "7"


def test_redis_serves_and_recovers_after_a_restart_and_a_kill() -> None:
    with RedisServer(DURABLE_REDIS) as server:
        port = server.port
        with redis_client(server) as client:
            client.set("kept", "7")
        server.restart()
        assert server.port == port
        server.kill()
        assert not is_listening(port)
        server.start()
        assert server.port == port
        with redis_client(server) as client:
            assert client.get("kept") == "7"


async def test_options_reach_the_server() -> None:
    with PostgresServer({"fsync": "on", "work_mem": "5MB"}) as server:
        assert await query(server.url, "show fsync") == "on"
        assert await query(server.url, "show work_mem") == "5MB"
        assert await query(server.url, "show listen_addresses") == "127.0.0.1"


@both_kinds
def test_stop_leaves_no_process_and_no_directory(kind: type[PostgresServer | RedisServer]) -> None:
    server = kind().start()
    pid, port, home = server.pid, server.port, home_of(server)
    watcher = server._lifeline
    assert watcher is not None
    server.stop()
    assert not is_process(pid)
    assert not is_process(watcher._watcher.pid)
    assert not is_listening(port)
    assert not home.exists()
    server.stop()


@both_kinds
def test_a_server_that_never_started_can_be_stopped_but_not_killed(
    kind: type[PostgresServer | RedisServer],
) -> None:
    server = kind()
    server.stop()
    with pytest.raises(ServerError, match=r"Call start\(\) first"):
        server.kill()
    with pytest.raises(ServerError, match=r"before start\(\)"):
        _ = server.url


@both_kinds
def test_two_servers_have_ports_of_their_own(kind: type[PostgresServer | RedisServer]) -> None:
    with kind() as one, kind() as other:
        assert one.port != other.port
        assert one.pid != other.pid
        assert one.start() is one


@both_kinds
def test_a_first_start_moves_away_from_a_port_that_was_taken(
    kind: type[PostgresServer | RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    with kind() as first:
        free = local._free_port()
        ports = iter([first.port, free])
        monkeypatch.setattr(local, "_free_port", lambda: next(ports))
        with kind() as second:
            assert second.port == free


@both_kinds
def test_a_server_that_died_by_itself_starts_again(kind: type[PostgresServer | RedisServer]) -> None:
    with kind() as server:
        port, pid = server.port, server.pid
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        server.start()
        assert server.port == port
        assert server.pid != pid


async def test_databases_are_made_copied_and_dropped_below_a_running_loop(postgres: PostgresServer) -> None:
    url = postgres.create_database('odd "name"')
    await query(url, "create table kept as select 7 as n")
    copy = postgres.create_database("copy", template='odd "name"')
    assert await query(copy, "select n from kept") == "7"
    held = await connect(copy)
    postgres.drop_database("copy")
    postgres.drop_database("copy")
    postgres.drop_database('odd "name"')
    await held.close(timeout=5)
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await query(copy, "select 1")


def test_a_failed_start_shows_the_log_and_leaves_nothing() -> None:
    server = PostgresServer({"no_such_setting": "1"})
    with pytest.raises(ServerError, match="no_such_setting"):
        server.start()
    assert server._home is None
    assert server._lifeline is None


def test_stop_does_not_wait_for_a_forked_process_that_shares_our_pipe() -> None:
    server = RedisServer().start()
    lifeline = server._lifeline
    assert lifeline is not None
    assert lifeline._watcher.stdin is not None
    shared = os.dup(lifeline._watcher.stdin.fileno())
    try:
        server.stop()
    finally:
        os.close(shared)


def test_programs_on_the_machine_are_used_without_the_wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bindir, program = binaries.find_postgres(), binaries.find_redis()
    (tmp_path / "redis-server").symlink_to(program)
    pg_config = tmp_path / "pg_config"
    pg_config.write_text(f"#!/bin/sh\necho '{bindir}'\n")
    pg_config.chmod(0o755)
    hide_wheels(monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert binaries.find_postgres() == bindir
    with RedisServer() as server, redis_client(server) as client:
        assert server._program == tmp_path / "redis-server"
        assert client.ping()


def test_the_newest_of_debians_versions_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for version, names in {"9": "postgres initdb", "17": "postgres initdb", "18": "initdb"}.items():
        place = tmp_path / version / "bin"
        place.mkdir(parents=True)
        for name in names.split():
            (place / name).touch(mode=0o755)
    hide_wheels(monkeypatch)
    monkeypatch.setattr(binaries, "DEBIAN_POSTGRES", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert binaries.find_postgres() == tmp_path / "17" / "bin"


def hide_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_spec(name: str) -> None:
        return None

    monkeypatch.setattr(binaries, "find_spec", no_spec)


@both_kinds
def test_missing_programs_are_named_with_the_cure(
    kind: type[PostgresServer | RedisServer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hide_wheels(monkeypatch)
    monkeypatch.setattr(binaries, "DEBIAN_POSTGRES", tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingBinaryError, match=r"pip install .*TEST_(DATABASE|REDIS)_URL"):
        kind().start()
    assert list(tmp_path.iterdir()) == []


async def test_without_a_usable_account_root_takes_a_user_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account, "ACCOUNTS", ())
    if os.geteuid() == 0 and not namespaces_work():
        with pytest.raises(ServerError, match="Run the tests as an ordinary user"):
            PostgresServer().start()
        return
    with PostgresServer() as server:
        assert await query(server.url, "select 7") == "7"
        assert bool(server._account.prefix) is (os.geteuid() == 0)


async def test_programs_out_of_reach_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_account() -> Iterator[ServerAccount]:
        return iter(())

    monkeypatch.setattr(account, "_candidates", no_account)
    with PostgresServer() as server:
        assert await query(server.url, "select 7") == "7"
        home = home_of(server)
        assert server._bindir.is_relative_to(home) is (os.geteuid() == 0)
    assert not home.exists()


def namespaces_work() -> bool:
    command = ["unshare", "-U", "--map-user=1000", "true"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


async def test_an_external_postgres_is_used_and_left_alone(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_DATABASE_URL", f"{postgres.url}?application_name=outside")
    with postgres_for_tests() as server:
        assert isinstance(server, ExternalPostgres)
        assert server.start().port == postgres.port
        url = server.create_database("outside")
        assert await query(url, "select current_database() || current_setting('application_name')") == (
            "outsideoutside"
        )
        server.drop_database("outside")
        for forbidden in (server.kill, server.restart):
            with pytest.raises(ServerError, match="Unset TEST_DATABASE_URL"):
                forbidden()
        server.stop()
    assert await query(postgres.url, "select 7") == "7"


def test_an_external_redis_is_used_and_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with RedisServer() as own:
        monkeypatch.setenv("TEST_REDIS_URL", own.url)
        with redis_for_tests() as server:
            assert isinstance(server, ExternalRedis)
            with pytest.raises(ServerError, match="Unset TEST_REDIS_URL"):
                server.kill()
        with redis_client(server) as client:
            assert client.ping()


async def test_without_an_external_server_tests_get_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_DATABASE_URL", raising=False)
    monkeypatch.delenv("TEST_REDIS_URL", raising=False)
    with postgres_for_tests() as server, redis_for_tests() as cache:
        assert isinstance(server, PostgresServer)
        assert isinstance(cache, RedisServer)
        assert await query(server.url, "select 7") == "7"


OWNER = """
import signal
from runlane.testing import PostgresServer, RedisServer
servers = [PostgresServer().start(), RedisServer().start()]
for server in servers:
    print(server.port, server._home, flush=True)
signal.pause()
"""


def test_servers_do_not_outlive_a_killed_owner() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        started = [owner.stdout.readline().split() for _ in range(2)]
        owner.kill()
    deadline = time.monotonic() + 60
    for port, home in started:
        # The directory goes last, when the server has ended.
        while Path(home).exists():
            assert time.monotonic() < deadline, f"{home} is still there"
            time.sleep(0.01)
        assert not is_listening(int(port))
