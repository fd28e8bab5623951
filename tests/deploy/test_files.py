"""The image, the compose file, the units and the roles follow their rules. `make deploy-check` runs the real tools."""

from __future__ import annotations

import configparser
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest
import yaml

from deploy.docker.slim import LEFT_OUT, read_entries, with_dependencies
from runlane.api.client_side import ProxyTrust
from runlane.settings import Settings, load_settings
from runlane.version import VERSION
from tests.deploy.test_observability_files import ROOT

DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
OWN = ("setup", "server", "worker")
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
_GRACE = [Settings.model_fields[name].default for name in ("grace_seconds", "cancel_grace_seconds")]
STOP_SECONDS = int(sum(_GRACE)) + 15


# --- the image


def instructions(name: str = "Dockerfile") -> list[str]:
    text = (DEPLOY / "docker" / name).read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    return [re.sub(r"\s+", " ", line).strip() for line in text.splitlines() if line.strip()]


def test_the_image_has_stages_a_numeric_user_and_no_shell_form() -> None:
    lines = instructions()
    stages = [line for line in lines if line.startswith("FROM ")]
    assert [line.split()[-1] for line in stages] == ["ui", "build", "system", "runtime"]
    assert stages[-1].split()[1] == "scratch", "files that an earlier layer has and a later one deletes are downloaded"
    final = lines[lines.index(stages[-1]) :]
    assert "USER 65532:65532" in final
    assert "STOPSIGNAL SIGTERM" in final
    assert 'ENTRYPOINT ["runlane"]' in final
    assert any(line.startswith("HEALTHCHECK ") and 'CMD ["runlane", "health"]' in line for line in final)
    assert not [line for line in final if line.startswith("RUN ")], "the last stage installs nothing"
    assert not [line for line in lines if line.startswith("ADD ")]
    assert not [line for line in lines if re.search(r"(password|token|secret)", line, re.IGNORECASE)]
    assert not [line for line in lines if ":latest" in line]
    assert any("PYTHONDONTWRITEBYTECODE=1" in line for line in final)


def test_the_image_has_the_labels_of_its_origin() -> None:
    (labels,) = (line for line in instructions() if line.startswith("LABEL "))
    found = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', labels))
    arguments = ("created", "revision", "source", "version")
    assert {name: found[name] for name in arguments} == {name: f"${{{name.upper()}}}" for name in arguments}
    assert found["licenses"] == "Apache-2.0"
    release = (ROOT / ".github/workflows/release.yaml").read_text()
    assert [name for name in arguments if f"--build-arg {name.upper()}=" not in release] == []


def test_a_package_is_copied_with_what_it_depends_on() -> None:
    status = """\
Package: tool
Pre-Depends: base (>= 1)
Depends: library:any (>= 2.0~rc), missing | other, absent
Recommends: documentation

Package: base

Package: library
Depends: deep

Package: deep
Depends: tool

Package: other

Package: documentation
"""
    entries = read_entries(status)
    assert with_dependencies(["tool"], entries) == {"tool", "base", "library", "deep", "other"}
    assert with_dependencies([], entries) == set()
    with pytest.raises(SystemExit, match="Not installed: mistyped"):
        with_dependencies(["tool", "mistyped"], entries)


@pytest.mark.parametrize(
    ("path", "left_out"),
    [
        ("/usr/share/doc/tar/copyright", True),
        ("/usr/local/lib/python3.13/test/test_os.py", True),
        ("/usr/local/lib/python3.13/site-packages/pip/__init__.py", True),
        ("/usr/local/bin/pip3", True),
        ("/usr/local/lib/python3.13/lib-dynload/_testcapi.cpython-313-x86_64-linux-gnu.so", True),
        ("/etc/resolv.conf", True),
        ("/usr/share/zoneinfo/right/Europe/Berlin", True),
        ("/usr/sbin/zic", True),
        ("/usr/local/lib/python3.13/site.py", False),
        ("/usr/local/lib/python3.13/unittest/case.py", False),
        ("/usr/local/bin/python3.13", False),
        ("/usr/share/zoneinfo/Europe/Berlin", False),
        ("/etc/passwd", False),
    ],
)
def test_what_the_image_leaves_out(path: str, left_out: bool) -> None:
    assert (LEFT_OUT.search(path) is not None) == left_out


def test_the_build_context_is_a_list_of_what_is_needed() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    copied = {word for line in instructions() if line.startswith("COPY ") and "--from" not in line
              for word in line.split()[1:-1]}  # fmt: skip
    allowed = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    assert all(any(name == rule or name.startswith(f"{rule}/") for rule in allowed) for name in copied), copied


def test_the_example_image_is_based_on_this_version() -> None:
    assert f"ARG BASE_IMAGE=runlane:{VERSION}" in instructions("app.Dockerfile")


# --- compose


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_every_service_is_hardened(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert service["pids_limit"]
    assert service["logging"]["options"]["max-size"]
    assert service["stop_grace_period"]
    assert service["restart"] == ("no" if name == "setup" else "unless-stopped")
    if name in OWN:
        assert service["tmpfs"] == ["/tmp:size=64m,mode=1777"]
    assert re.search(r":[\w.${-]*\d", service["image"]), "pinned to a version"
    if name != "proxy":
        assert all(str(port).startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_there_is_no_default_password() -> None:
    text = (DEPLOY / "compose/compose.yaml").read_text()
    for variable in re.findall(r"\$\{(\w*(?:PASSWORD|SECRET)\w*)([^}]*)\}", text):
        assert variable[1].startswith(":?"), variable[0]


def test_runlane_stops_in_time_and_waits_for_the_schema() -> None:
    services = COMPOSE["services"]
    for name in OWN:
        assert services[name]["stop_grace_period"] == f"{STOP_SECONDS}s"
        assert services[name]["image"].endswith(f":{VERSION}}}")
    for name in ("server", "worker"):
        assert services[name]["depends_on"]["setup"] == {"condition": "service_completed_successfully"}
        assert "runlane_app:" in services[name]["environment"]["RUNLANE_DATABASE_URL"]
        # Migrations need the owner; nothing else does.
        assert "OWNER_PASSWORD" not in str(services[name])
    # The server that prepares the database listens on a socket only; `setup` must not start before the real one.
    probe = services["postgres"]["healthcheck"]["test"]
    assert probe[:4] == ["CMD", "pg_isready", "-h", "127.0.0.1"]
    assert services["setup"]["depends_on"]["postgres"] == {"condition": "service_healthy"}
    assert "runlane_owner:" in services["setup"]["environment"]["RUNLANE_DATABASE_URL"]
    assert "container_name" not in services["worker"], "--scale worker=8 must work"
    assert "noeviction" in services["valkey"]["command"]
    assert COMPOSE["networks"]["back"] == {"internal": True}
    assert set(services["postgres"]["networks"]) == {"back"}


def test_postgres_of_compose_fits_into_its_memory() -> None:
    """A container that exceeds its limit is killed, with every connection, as soon as the buffers are filled."""
    size = {"kB": 2**10, "MB": 2**20, "GB": 2**30}
    service = COMPOSE["services"]["postgres"]
    lines = (
        line.partition("#")[0].partition("=") for line in (DEPLOY / "postgres/postgresql.conf").read_text().splitlines()
    )
    settings = {name.strip(): value.strip() for name, _, value in lines if value}
    given = [word.removeprefix("--").partition("=") for word in service["command"][1:]]
    settings |= {name.replace("-", "_"): value for name, _, value in given}

    def of(name: str) -> int:
        return int(settings[name][:-2]) * size[settings[name][-2:]]

    limit = int(service["mem_limit"].removesuffix("g")) * 2**30
    vacuum = int(settings["autovacuum_max_workers"]) * of("maintenance_work_mem")
    # The rest is for connections, the buffer of the write-ahead log and cached files.
    assert of("shared_buffers") + vacuum <= limit / 2
    assert of("effective_cache_size") <= limit


def test_the_dashboard_works_behind_the_proxy() -> None:
    """A change must come from the origin that the browser sees, which only a trusted proxy can report."""
    value = COMPOSE["services"]["server"]["environment"]["RUNLANE_TRUSTED_PROXIES"]
    (networks,) = re.findall(r"\$\{TRUSTED_PROXIES:-(.*)\}", value)
    headers = [(b"host", b"runs.example.com"), (b"x-forwarded-proto", b"https"), (b"x-forwarded-for", b"203.0.113.9")]
    trust = ProxyTrust(load_settings(trusted_proxies=networks))
    # Docker gives networks addresses of these ranges.
    for address in ("172.18.0.5", "192.168.16.3"):
        side = trust.read({"type": "http", "scheme": "http", "client": (address, 1), "headers": headers})
        assert (side.origin, side.secure, side.address) == ("https://runs.example.com", True, "203.0.113.9")
    forged = trust.read({"type": "http", "scheme": "http", "client": ("198.51.100.7", 1), "headers": headers})
    assert (forged.origin, forged.address) == ("http://runs.example.com", "198.51.100.7")
    assert set(COMPOSE["services"]["proxy"]["networks"]) & set(COMPOSE["services"]["server"]["networks"])


def test_passwords_are_created_once_and_are_private(tmp_path: Path) -> None:
    script = tmp_path / "init.sh"
    script.write_text((DEPLOY / "compose/init.sh").read_text())
    first = subprocess.run(["sh", str(script)], capture_output=True, text=True, check=True)
    env = tmp_path / ".env"
    content = env.read_text()
    values = dict(line.split("=", 1) for line in content.splitlines() if "=" in line and not line.startswith("#"))
    wanted = set(re.findall(r"\$\{(\w+):\?", (DEPLOY / "compose/compose.yaml").read_text()))
    assert wanted == set(values)
    assert all(re.fullmatch(r"[0-9a-f]{64}", value) for value in values.values())
    assert len(set(values.values())) == len(values)
    assert stat.S_IMODE(env.stat().st_mode) == 0o600
    assert not any(value in first.stdout for value in values.values())
    assert values["APP_PASSWORD"] in (tmp_path / "secrets/userlist.txt").read_text()
    # The file is mounted into a container with another user; other users of the machine cannot reach it.
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    mounted = [mount for service in COMPOSE["services"].values() for mount in service.get("volumes", ())]
    assert not [mount for mount in mounted if mount.startswith("./secrets:")]
    subprocess.run(["sh", str(script)], capture_output=True, check=True)
    assert env.read_text() == content


def test_the_key_of_compose_is_a_valid_secret_key(tmp_path: Path) -> None:
    from runlane.settings import parse_secret_keys

    script = tmp_path / "init.sh"
    script.write_text((DEPLOY / "compose/init.sh").read_text())
    subprocess.run(["sh", str(script)], capture_output=True, check=True)
    (line,) = (line for line in (tmp_path / ".env").read_text().splitlines() if line.startswith("RUNLANE_SECRET_KEY="))
    assert len(parse_secret_keys(line.partition("=")[2])) == 1


# --- systemd


def unit(path: Path) -> dict[str, list[str]]:
    """Return the settings of the service of a unit."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = line
        elif "=" in line and not line.startswith("#") and section == "[Service]":
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_units_are_hardened_and_read_secrets_from_files(path: Path) -> None:
    service = unit(path)
    for key in ("DynamicUser", "NoNewPrivileges", "PrivateTmp", "PrivateDevices", "LockPersonality"):
        assert service[key] == ["yes"]
    assert service["ProtectSystem"] == ["strict"]
    assert service["CapabilityBoundingSet"] == [""]
    assert service["SystemCallFilter"][0] == "@system-service"
    assert all(
        credential.split(":")[1].startswith("/etc/runlane/credentials/") for credential in service["LoadCredential"]
    )
    assert "RUNLANE_DATABASE_URL_FILE=%d/database-url" in service["Environment"][0]


def test_units_stop_in_time() -> None:
    running = [unit(path) for path in UNITS if "migrate" not in path.name]
    assert len(running) == 2
    for service in running:
        assert service["Type"] == ["notify"]
        assert service["TimeoutStopSec"] == [str(STOP_SECONDS)]
        assert service["KillSignal"] == ["SIGTERM"]
        assert service["KillMode"] == ["mixed"]
        assert service["Restart"] == ["always"]


def test_a_database_that_starts_late_keeps_no_process_down() -> None:
    """A failed dependency would: `Restart=` does not apply to a unit whose start was never tried."""
    for path in UNITS:
        lines = path.read_text().splitlines()
        assert not [line for line in lines if line.startswith(("Requires=", "BindsTo=", "Requisite="))]
        if "migrate" in path.name:
            assert unit(path)["Restart"] == ["on-failure"]
            continue
        assert any(line.startswith("Wants=") and "runlane-migrate.service" in line for line in lines)
        assert any(line.startswith("After=") and "runlane-migrate.service" in line for line in lines)


def test_the_units_start_with_the_machine() -> None:
    """The page enables what the target belongs to, and the target that the units belong to."""
    page = (ROOT / "docs/how-to/systemd.md").read_text()
    (line,) = (line for line in page.splitlines() if line.startswith("systemctl enable "))
    enabled = {word for word in line.split() if word.startswith("runlane")}
    assert enabled == {"runlane.target", "runlane-server.service", "runlane-worker@media.service"}
    targets = {path.name: re.findall(r"^WantedBy=(.*)$", path.read_text(), re.MULTILINE)
               for path in (DEPLOY / "systemd").glob("runlane*")}  # fmt: skip
    assert targets["runlane.target"] == ["multi-user.target"]
    assert targets["runlane-server.service"] == targets["runlane-worker@.service"] == ["runlane.target"]


@pytest.mark.parametrize("failing", [None, "runlane-worker@a.service"])
def test_a_rolling_restart_waits_for_each_unit_and_ends_at_a_failure(tmp_path: Path, failing: str | None) -> None:
    units = ["runlane-server.service", "runlane-worker@a.service", "runlane-worker@b.service"]
    systemctl = tmp_path / "systemctl"
    listed = "".join(f"echo '{unit} loaded active running'\n" for unit in units)
    systemctl.write_text(f"""#!/bin/sh
case "$1" in
    list-units) {listed} ;;
    restart) test "$2" != "{failing}" && echo "$2" >> "{tmp_path}/restarted" ;;
esac
""")
    systemctl.chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    script = str(DEPLOY / "systemd/rolling-restart.sh")
    done = subprocess.run(["sh", script], env={"PATH": path}, capture_output=True, text=True, check=False)
    restarted = (tmp_path / "restarted").read_text().split()
    # A unit that does not become ready leaves the others in service.
    assert (done.returncode == 0, restarted) == ((True, units) if failing is None else (False, units[:1]))


def test_sandboxed_code_runs_without_writable_and_executable_memory() -> None:
    """MemoryDenyWriteExecute of the units: the kernel refuses such memory to the process and its children."""
    program = """
import asyncio, ctypes, mmap, sys
PR_SET_MDWE = 65
if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_MDWE, 1, 0, 0, 0) == 0:
    try:
        mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        sys.exit("such memory is still allowed")
    except PermissionError:
        pass
from runlane.sandbox.sandbox import Sandbox
async def main():
    sandbox = Sandbox()
    print(await sandbox.expression("sum(state.rows)", {"rows": [1, 2, 3]}))
    await sandbox.close()
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "6"), done.stderr


# --- Postgres


async def test_the_roles_have_the_least_privilege(empty_postgres: str) -> None:
    from runlane.store.sql.migrate import upgrade
    from tests.harness import settings_for

    roles = (DEPLOY / "postgres/roles.sql").read_text()
    connection = await cast("Any", asyncpg).connect(empty_postgres)
    try:
        await connection.execute(roles)
        await upgrade(settings_for(empty_postgres))
        # The view of the autoscaler exists now; and the file may be run again.
        await connection.execute(roles)
        await connection.execute((DEPLOY / "postgres/tables.sql").read_text())
        await connection.execute("set role runlane_app")
        await connection.fetch("select count(*) from runs")
        await connection.execute("delete from runs")
        for refused in (
            "create table public.own (a int)",
            "alter table runs add column own int",
            "drop table runs",
            "truncate runs",
            "create index on runs (id)",
            "create role other",
            "create schema other",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(refused)
        await connection.execute("reset role; set role runlane_scaler")
        await connection.fetch("select coalesce(sum(wanted_slots), 0) from runlane_scaling")
        for refused in ("select 1 from runs", "select 1 from api_keys", "delete from runs"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(refused)
        await connection.execute("reset role; set role runlane_reader")
        await connection.fetch("select 1 from runs")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("delete from runs")
        await connection.execute("reset role")
    finally:
        for role in ("runlane_app", "runlane_scaler", "runlane_reader"):
            await connection.execute(f"drop owned by {role}; drop role {role}")
        await connection.close()


def test_pgbouncer_is_in_transaction_mode() -> None:
    config = configparser.ConfigParser(inline_comment_prefixes=None, comment_prefixes=(";",), interpolation=None)
    config.read(DEPLOY / "postgres/pgbouncer.ini")
    own = config["pgbouncer"]
    assert own["pool_mode"] == "transaction"
    assert own["auth_type"] == "scram-sha-256"
    assert float(own["query_wait_timeout"]) <= Settings.model_fields["database_timeout_seconds"].default
