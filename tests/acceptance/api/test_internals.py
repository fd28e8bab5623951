"""What the server reveals about itself: its health, and nothing about its internals."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from runlane.api import write_probe
from runlane.errors import StorageRefused, Unavailable
from runlane.store.sql.database import read
from runlane.store.sql.statement import Statement
from tests.acceptance.api.serving import Api, copy_of, serving
from tests.acceptance.api.shop import app as shop
from tests.acceptance.api.test_runs import problem_of
from tests.harness import eventually, settings_for

_SECRET_TEXT = "The database postgresql://db.internal:5432/app cannot be reached: relation runs, /var/lib/x"


@pytest.mark.parametrize(("error", "status"), [(Unavailable, 503), (StorageRefused, 500)])
async def test_a_failure_names_no_internals_to_callers(
    idle_api: Api, monkeypatch: pytest.MonkeyPatch, error: type[Unavailable | StorageRefused], status: int
) -> None:
    async def fail(raw: str | None) -> None:
        raise error(_SECRET_TEXT)

    monkeypatch.setattr(idle_api.parts.authenticator, "identify", fail)
    for answer in (await idle_api.get("/runs"), await idle_api.post("/tasks/greet/run", {})):
        assert answer.status_code == status
        body = answer.json()
        assert body["detail"] == body["message"]
        for word in ("postgresql", "db.internal", "5432", "relation", "/var"):
            assert word not in answer.text
    if error is Unavailable:
        assert int(answer.headers["retry-after"]) >= 1


async def test_errors_for_missing_records_name_no_settings(idle_api: Api) -> None:
    problem = problem_of(await idle_api.get("/runs/run_none"), 404, "run_not_found")
    assert problem["message"] == 'The run "run_none" does not exist. Check the id and the retention time.'


async def test_a_server_whose_database_refuses_writes_is_not_ready(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_probe, "PROBE_SECONDS", 0.05)
    async with serving(copy_of(shop, settings_for(sqlite_url))) as api:

        async def ready() -> bool:
            return (await api.client.get("/ready")).status_code == 200

        async def not_ready() -> bool:
            answer = await api.client.get("/ready")
            return answer.status_code == 503 and answer.json()["problems"] == ["the database does not accept writes"]

        await eventually(ready, "a server that is ready")
        for event in ("insert", "update"):
            await _run(
                api, f"create trigger full_{event} before {event} on api_answers begin select raise(abort, 'full'); end"
            )
        await eventually(not_ready, "a server that is not ready")
        assert (await api.client.get("/health")).status_code == 200
        for event in ("insert", "update"):
            await _run(api, f"drop trigger full_{event}")
        await eventually(ready, "a server that is ready again")


async def _run(api: Api, sql: str) -> None:
    from sqlalchemy import text

    await read(api.parts.database, Statement("raw", text(sql)))


async def test_the_reference_page_runs_its_own_script_alone(idle_api: Api) -> None:
    answer = await idle_api.client.get("/docs")
    policy = answer.headers["content-security-policy"]
    (script,) = re.findall(r"<script>(.*?)</script>", answer.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
