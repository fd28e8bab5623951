"""The record of a running `runlane dev`, so that commands in its folder find it on any port.

`.runlane/dev.json` holds the address, the process id and an instance id. The record of a killed process
is ignored: the process does not exist, or the server at its address does not answer with its instance id.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

from runlane.api.identity import Identity, project_id
from runlane.private_files import make_file, make_folder
from runlane.settings import EMBEDDED_FILE

RECORD: Final = EMBEDDED_FILE.parent / "dev.json"
_TIMEOUT_SECONDS: Final = 2.0
_MAX_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class DevServer:
    """A `runlane dev` of the current folder."""

    url: str
    pid: int
    instance: str
    database: str


def write_record(server: DevServer) -> None:
    """Record the address of this process. The file is replaced atomically, so that no command reads half of it."""
    make_folder(RECORD.parent)
    draft = RECORD.with_suffix(f".{server.pid}.tmp")
    make_file(draft)
    draft.write_text(json.dumps(asdict(server)), encoding="utf-8")
    draft.replace(RECORD)


def remove_record(instance: str) -> None:
    """Remove the record of this process; that of a later one stays."""
    found = _read()
    if found is not None and found.instance == instance:
        with contextlib.suppress(OSError):
            RECORD.unlink()


def find_dev_server() -> DevServer | None:
    """Return the `runlane dev` of the current folder, if one runs."""
    found = _read()
    if found is None or not _is_alive(found.pid):
        return None
    identity = read_identity(found.url)
    return found if identity is not None and identity.instance == found.instance else None


def read_identity(url: str) -> Identity | None:
    """Return the identity of the `runlane dev` at a URL of this machine; None if none answers there."""
    # Imported here, because most commands, and every worker, call no server.
    import http.client

    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/health")
        answer = json.loads(connection.getresponse().read(_MAX_BYTES))
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    dev = cast("dict[str, Any]", answer).get("dev") if isinstance(answer, dict) else None
    try:
        return None if dev is None else Identity(str(dev["instance"]), str(dev["project"]))
    except (KeyError, TypeError):
        return None


def is_of_this_folder(identity: Identity) -> bool:
    """Return whether a server is `runlane dev` of the current folder or of one that contains it."""
    here = Path.cwd().resolve()
    return identity.project in {project_id(folder) for folder in (here, *here.parents)}


def _read() -> DevServer | None:
    try:
        record = json.loads(RECORD.read_text(encoding="utf-8"))
        return DevServer(str(record["url"]), int(record["pid"]), str(record["instance"]), str(record["database"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        # The process exists and belongs to another user.
        return True
    return True
