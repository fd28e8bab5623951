"""A real PgBouncer in transaction mode, with the settings of deploy/postgres/pgbouncer.ini."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from tests.server_process import free_port

SAMPLE = Path(__file__).parents[1] / "deploy/postgres/pgbouncer.ini"
# Debian installs it where users have no commands.
PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
_START_SECONDS = 30


def configuration(server_port: int, port: int, users: Path) -> str:
    """Return the shipped settings with the addresses of this test; its servers have no passwords."""
    text = SAMPLE.read_text()
    text = re.sub(r"^runlane = .*$", f"* = host=127.0.0.1 port={server_port}", text, flags=re.MULTILINE)
    for key, value in {
        "listen_addr": "127.0.0.1",
        "listen_port": port,
        "auth_type": "trust",
        "auth_file": users,
    }.items():
        text = re.sub(rf"^{key} = .*$", f"{key} = {value}", text, flags=re.MULTILINE)
    return text + "unix_socket_dir =\n"


@contextmanager
def pgbouncer_for(url: str, *users: str) -> Generator[str]:
    """Run PgBouncer in front of the server of a URL; yield the URL through it."""
    assert PROGRAM is not None, "PgBouncer is not installed. On Debian: apt-get install pgbouncer"
    parts = urlsplit(url)
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="runlane-pgbouncer-") as name:
        home = Path(name)
        names = {parts.username or "app", *users}
        (home / "users.txt").write_text("".join(f'"{user}" ""\n' for user in sorted(names)))
        (home / "pgbouncer.ini").write_text(configuration(parts.port or 5432, port, home / "users.txt"))
        account: list[str] = []
        if os.geteuid() == 0:
            # It refuses to run as root.
            nobody = pwd.getpwnam("nobody")
            os.chown(home, nobody.pw_uid, nobody.pw_gid)
            account = ["-u", "nobody"]
        with (home / "log").open("wb") as log:
            process = subprocess.Popen([PROGRAM, *account, str(home / "pgbouncer.ini")], stdout=log, stderr=log)
        try:
            _wait(port, process, home / "log")
            yield urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.port}", f":{port}")))
        finally:
            process.terminate()
            process.wait(30)


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"PgBouncer does not listen: {log.read_text()}")
