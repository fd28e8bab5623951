"""Real proxies in front of a server, with the configurations of the documentation and of the compose file.

Events pass while the run that emits them continues, and a browser that signs in through the proxy may change something.
`make deploy-check` runs it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from tests.server_process import ServerProcess, command, free_port, serving

from deploy.checks.tools import find

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/behind-a-proxy.md").read_text()
TASKS = """
import asyncio
from pathlib import Path
from runlane import App, Context

app = App()

@app.task("gated")
async def gated(ctx: Context, gates: list[str]) -> None:
    for number, gate in enumerate(gates):
        await ctx.log(f"before gate {number}")
        while not Path(gate).exists():
            await asyncio.sleep(0.02)
"""


@dataclass
class Published:
    """A server as browsers see it: behind a proxy, at another port."""

    url: str
    key: str
    folder: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[ServerProcess, str]]:
    """Yield a server with a key, which trusts the proxies of this machine."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "tasks.py").write_text(TASKS)
    variables = {"RUNLANE_DATABASE_URL": f"sqlite:///{folder}/runs.db", "RUNLANE_TRUSTED_PROXIES": "127.0.0.1"}
    created = command(folder, "keys", "create", "admin", "--role", "platform_admin", "--json", **variables)
    with serving(folder, variables, "serve", "tasks:app", "--worker") as process:
        yield process, json.loads(created.stdout)["key"]


def blocks_of(page: str) -> list[str]:
    return re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def nginx(folder: Path, port: int, upstream: int) -> list[str]:
    """Return the command of nginx with both blocks of the page: the whole site, and the site below a path."""
    site, prefixed = (block for block in blocks_of(PAGE) if "proxy_pass" in block)
    site = re.sub(r"    server 10\.0\.0\.12:8765;\n", "", site).replace("10.0.0.11:8765", f"127.0.0.1:{upstream}")
    site = site.replace("listen 443 ssl;", f"listen 127.0.0.1:{port};")
    site = site.rstrip().removesuffix("}") + prefixed + "}\n"
    places = "".join(f"{name}_temp_path {folder};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    config = f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log {folder}/error.log;\n"
    config += f"events {{}}\nhttp {{\naccess_log off;\n{places}{site}}}\n"
    (folder / "nginx.conf").write_text(config)
    return [find("nginx") or "nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]


def caddy(folder: Path, port: int, upstream: int) -> list[str]:
    """Return the command of Caddy with the file of compose."""
    text = (ROOT / "deploy/compose/Caddyfile").read_text().replace("server:8765", f"127.0.0.1:{upstream}")
    text = text.replace("{$DOMAIN:localhost}", f"http://127.0.0.1:{port}")
    (folder / "Caddyfile").write_text(f"{{\n\tadmin off\n}}\n{text}")
    return [find("caddy") or "caddy", "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]


@pytest.fixture(params=[nginx, caddy], ids=["nginx", "caddy"])
def published(
    request: pytest.FixtureRequest, server: tuple[ServerProcess, str], tmp_path: Path
) -> Generator[Published]:
    begin: Callable[[Path, int, int], list[str]] = request.param
    process, key = server
    port = free_port()
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "XDG_DATA_HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    with (tmp_path / "log").open("wb") as log:
        proxy = subprocess.Popen(begin(tmp_path, port, process.port), env=environment, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while not _responds(url):
            assert proxy.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.05)
        yield Published(url, key, tmp_path)
    finally:
        proxy.terminate()
        proxy.wait(30)


def _responds(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/health", timeout=5, trust_env=False).status_code == 200
    except httpx2.HTTPError:
        return False


def test_events_pass_while_their_run_continues(published: Published) -> None:
    # Events that exist when the stream begins come with its head; those after them must pass one by one.
    gates = [published.folder / f"gate-{number}" for number in range(4)]
    headers = {"Authorization": f"Bearer {published.key}"}
    with httpx2.Client(base_url=published.url, headers=headers, timeout=60, trust_env=False) as client:
        body = {"input": {"gates": [str(gate) for gate in gates]}}
        run = client.post("/api/v2/tasks/gated/run", json=body).json()["run_id"]
        seen: list[str] = []
        with client.stream("GET", f"/api/v2/runs/{run}/stream") as answer:
            for line in answer.iter_lines():
                seen.append(line)
                # A proxy that buffers would hold this event back until the run ends, which waits for the gate.
                if found := re.search(r"before gate (\d)", line):
                    gates[int(found[1])].touch()
        assert any('"type":"done"' in line for line in seen), seen
        assert client.get(f"/api/v2/runs/{run}").json()["status"] == "completed"


@pytest.mark.parametrize("published", [nginx], indirect=True)
def test_the_dashboard_works_below_a_path(published: Published) -> None:
    page = httpx2.get(f"{published.url}/runlane/ui/", timeout=60, trust_env=False)
    assert page.status_code == 200
    (script,) = re.findall(r'<script type="module"[^>]* src="([^"]+)"', page.text)
    place = httpx2.URL(f"{published.url}/runlane/ui/").join(script)
    assert place.path.startswith("/runlane/ui/")
    assert httpx2.get(place, timeout=60, trust_env=False).status_code == 200
    _sign_in_and_change(published, "/runlane")


def test_a_browser_signs_in_and_changes_something(published: Published) -> None:
    _sign_in_and_change(published, "")


def _sign_in_and_change(published: Published, prefix: str) -> None:
    # The server must take the origin of the page, which only the headers of the proxy report, for its own.
    headers = {"Origin": published.url, "X-Runlane-UI": "1"}
    url = f"{published.url}{prefix}/api/v2"
    with httpx2.Client(headers=headers, timeout=60, trust_env=False) as client:
        assert client.post(f"{url}/ui/session", json={"key": published.key}).status_code == 204
        started = client.post(f"{url}/tasks/gated/run", json={"input": {"gates": []}})
        assert started.status_code == 202, started.text
        foreign = client.post(f"{url}/tasks/gated/run", json={}, headers={"Origin": "https://elsewhere.example"})
        assert foreign.status_code == 403
