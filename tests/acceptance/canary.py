"""Helpers of the searches for canaries: a collector of spans, a worker with a log file, and the places to search."""

from __future__ import annotations

import base64
import json
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, quote_plus

from sqlalchemy import text

from runlane.settings import Settings
from runlane.store.sql.database import Database, read
from runlane.store.sql.schema import metadata
from runlane.store.sql.statement import Statement
from tests import forking
from tests.server_process import environment


class Collector:
    """Keeps the bytes that OpenTelemetry exports."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        received = self.received

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.append(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def working(folder: Path, variables: dict[str, str]) -> Generator[Path]:
    """Run a worker process until the end of the block; yield the file with its output."""
    log = folder / "worker.log"
    with log.open("wb") as out:
        process = forking.Popen(
            [sys.executable, "-m", "runlane", "worker", "tasks:app"],
            cwd=folder,
            env=environment(**variables),
            stdout=out,
            stderr=out,
        )
        try:
            yield log
        finally:
            process.terminate()
            try:
                process.wait(60)
            finally:
                process.kill()
                process.wait()


def variables_for(settings: Settings) -> dict[str, str]:
    """Return the variables that make a process use the same database and Redis."""
    assert settings.database_url is not None
    variables = {"RUNLANE_DATABASE_URL": settings.database_url.get_secret_value()}
    if settings.redis_url is not None:
        variables |= {
            "RUNLANE_REDIS_URL": settings.redis_url.get_secret_value(),
            "RUNLANE_REDIS_PREFIX": settings.redis_prefix,
        }
    return variables


def forms(value: str) -> set[str]:
    """Return the forms in which a value may appear. Of base64, the part that does not depend on its surroundings."""
    raw = value.encode()
    escaped = json.dumps(value)[1:-1]
    inner = base64.b64encode(raw).decode().rstrip("=")[:-1]
    return {
        value,
        inner,
        inner.translate(str.maketrans("+/", "-_")),
        base64.b64encode(b"user:" + raw).decode()[8:-4],
        escaped,
        json.dumps(escaped)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        quote(value, safe=""),
        quote(value),
        quote_plus(value),
        repr(value)[1:-1],
    }


def leaks(output: str | bytes, *values: str) -> list[str]:
    """Return the values of which a form occurs in the output."""
    whole = output if isinstance(output, str) else output.decode("utf-8", "replace")
    return [value for value in values if any(form in whole for form in forms(value))]


async def tables(database: Database) -> Mapping[str, str]:
    """Return the contents of every table."""
    contents: dict[str, str] = {}
    for table in metadata.sorted_tables:
        rows = await read(database, Statement("all", text(f"select * from {table.name}")))
        contents[f"the table {table.name}"] = "\n".join(str(value) for row in rows for value in dict(row).values())
    return contents
