"""A real server with a worker and some runs, as the browser tests and `python -m tests.ui.site` use it."""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from tests.server_process import ServerProcess, command, serving

_Value = TypeVar("_Value")
WORKSHOP: Final = Path(__file__).parent / "workshop"
WAIT_SECONDS: Final = 60.0


@dataclass
class Site:
    """A running server, and its API as a program sees it."""

    server: ServerProcess
    folder: Path
    variables: Mapping[str, str]
    key: str | None = None

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def ui(self) -> str:
        """The address of the dashboard."""
        return f"{self.url}/ui"

    def call(self, method: str, path: str, body: Any = None, **more_headers: str) -> Any:
        """Send a request to the API and return its JSON."""
        headers = {"Content-Type": "application/json", **more_headers}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api/v2{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def run_task(self, name: str, **body: Any) -> str:
        """Start a run of a task and return its id."""
        return self.call("POST", f"/tasks/{name}/run", body)["run_id"]

    def orchestrate(self, name: str, message: str, **body: Any) -> str:
        """Start a run of an orchestration and return its id."""
        return self.call("POST", f"/orchestrations/{name}/run", {"message": message, **body})["run_id"]

    def run_agent(self, name: str, message: str) -> str:
        """Start a run of an agent and return its id."""
        return self.call("POST", f"/agents/{name}/run", {"message": message})["run_id"]

    def get_run(self, run_id: str) -> dict[str, Any]:
        return self.call("GET", f"/runs/{run_id}")

    def wait_for(self, run_id: str, *statuses: str) -> dict[str, Any]:
        """Return the run when it has one of these statuses."""
        return wait_until(lambda: self._in(run_id, statuses), f"{run_id} to be {statuses}")

    def _in(self, run_id: str, statuses: tuple[str, ...]) -> dict[str, Any] | None:
        run = self.get_run(run_id)
        return run if run["status"] in statuses else None


def wait_until(condition: Callable[[], _Value | None], what: str) -> _Value:
    """Return the value of a condition once it has one."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        found = condition()
        if found is not None:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {WAIT_SECONDS} seconds for {what}")


def prepare_folder(folder: Path) -> dict[str, str]:
    """Copy the tasks and definitions into a folder and return the settings of its server."""
    shutil.copytree(WORKSHOP, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return {"RUNLANE_DATABASE_URL": f"sqlite:///{folder / 'runlane.db'}", "RUNLANE_DEFAULT_MODEL": "scripted"}


@contextmanager
def open_site(folder: Path, *, port: int | None = None, **settings: str) -> Generator[Site]:
    """Run `runlane dev` in a folder: API, dashboard and worker in one process, open on this machine."""
    variables = {**prepare_folder(folder), **settings}
    with serving(folder, variables, "dev", "tasks:app", port=port) as server:
        yield Site(server, folder, variables)


@contextmanager
def keyed_site(folder: Path, *, port: int | None = None, **settings: str) -> Generator[Site]:
    """Run `runlane serve --worker` in a folder: a server that needs keys. The site has one of a platform admin."""
    variables = {**prepare_folder(folder), **settings}
    key = create_key(folder, variables, "boss", "platform_admin")
    with serving(folder, variables, "serve", "tasks:app", "--worker", port=port) as server:
        yield Site(server, folder, variables, key)


def sync(site: Site) -> None:
    """Store the definitions of the folder, which `runlane serve` does not read by itself."""
    stored = command(site.folder, "sync", **site.variables)
    assert stored.returncode == 0, stored.stderr


def create_key(folder: Path, variables: Mapping[str, str], name: str, role: str, tenant: str = "default") -> str:
    """Create a key with a command and return it."""
    made = command(folder, "keys", "create", name, "--role", role, "--tenant", tenant, "--json", **variables)
    assert made.returncode == 0, made.stderr
    return json.loads(made.stdout)["key"]


def populate(site: Site) -> dict[str, str]:
    """Start one run of each kind, wait until each has the state that a reader looks at, and return their ids."""
    runs = {
        "completed": site.run_task("resize", input={"picture": "harbour.png"}, tags=["nightly"]),
        "failed": site.run_task("charge", input={"order": "A-17", "amount": 12.5}),
        "running": site.run_task("slow", input={}, tags=["nightly", "customer=7"]),
        "held": site.run_task("resize", input={"picture": "held.png"}, hold=True),
        "scheduled": site.run_task("resize", input={"picture": "later.png"}, delay_seconds=3600),
        "blocked_by": site.run_task("slow", input={}, ordering_key="user:7"),
        "blocked": site.run_task("slow", input={}, ordering_key="user:7"),
        "report": site.orchestrate("report", "the old lighthouse"),
        "published": site.orchestrate("report", "the harbour"),
        "broken": site.orchestrate("broken", "a division"),
        "agent": site.run_agent("helper", "Please confirm my order."),
    }
    site.wait_for(runs["published"], "paused")
    site.call("POST", f"/runs/{runs['published']}/resume", {"response": {"decision": "publish"}, "step": "approval"})
    for name, status in (
        *(("completed", "completed"), ("failed", "failed"), ("running", "running"), ("blocked", "blocked")),
        *(("report", "paused"), ("published", "completed"), ("broken", "failed"), ("agent", "paused")),
    ):
        site.wait_for(runs[name], status)
    return runs


def main() -> None:
    """Serve a populated site until it is interrupted."""
    import argparse
    import signal
    import sys
    import tempfile

    parser = argparse.ArgumentParser(description="Serve the site of the browser tests.")
    parser.add_argument("--port", type=int, default=8123)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    with tempfile.TemporaryDirectory() as folder, open_site(Path(folder), port=options.port) as site:
        try:
            for name, run_id in populate(site).items():
                print(f"{name:12} {site.ui}/runs/{run_id}", flush=True)
            while True:
                time.sleep(3600)
        finally:
            # Its runs would delay an orderly end.
            site.server.kill()


if __name__ == "__main__":
    main()
