"""An app that is configured again uses the new settings in every part, and refuses them while it is connected."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pydantic import SecretStr

from runlane import App, ConfigurationError, Context, Settings, Status
from runlane.llm.models import Model, ModelContext, ModelFailed


def _app() -> App:
    app = App()

    @app.task("double")
    async def double(ctx: Context, number: int) -> int:
        await ctx.checkpoint(number)
        return number * 2

    return app


def _settings(folder: Path, **options: object) -> Settings:
    folder.mkdir(exist_ok=True)
    url = SecretStr(f"sqlite:///{folder / 'runs.db'}")
    return Settings.model_validate({"database_url": url, "worker_health_port": 0, **options})


async def _double(app: App, settings: Settings, number: int) -> None:
    app.configure(settings)
    async with app:
        worker = await app.worker(concurrency=2)
        await worker.start()
        try:
            run = await app.wait((await app.enqueue("double", {"number": number})).run_id, timeout=30)
        finally:
            await worker.stop(grace_seconds=0)
    assert (run.status, run.result) == (Status.COMPLETED, 2 * number)


def test_workers_follow_the_settings_from_one_event_loop_to_the_next(tmp_path: Path) -> None:
    app = _app()
    for number in range(3):
        folder = tmp_path / str(number)
        asyncio.run(_double(app, _settings(folder), number))
        # A worker that held on to the first settings would look for its lease in a file that is gone.
        (folder / "runs.db").rename(folder / "gone.db")


async def test_workers_follow_the_settings_within_one_event_loop(tmp_path: Path) -> None:
    app = _app()
    for number in range(2):
        await _double(app, _settings(tmp_path / str(number)), number)


async def test_settings_are_refused_while_the_app_is_connected(tmp_path: Path) -> None:
    app = _app()
    first = _settings(tmp_path / "first")
    app.configure(first)
    async with app:
        with pytest.raises(ConfigurationError, match=r"connected .*first/runs\.db.*Call app\.close\(\) first"):
            app.configure(_settings(tmp_path / "second"))
        assert app.settings is first
    app.configure(_settings(tmp_path / "second"))
    assert app.settings is not first


def test_the_connection_of_blocking_calls_counts_as_well(tmp_path: Path) -> None:
    app = _app()
    app.configure(_settings(tmp_path / "first"))
    app.blocking(app.connect())
    with pytest.raises(ConfigurationError, match=r"app\.blocking\(app\.close\(\)\)"):
        app.configure(_settings(tmp_path / "second"))
    app.blocking(app.close())
    app.configure(_settings(tmp_path / "second"))
    app.blocking(app.connect())
    assert (tmp_path / "second" / "runs.db").exists()
    app.blocking(app.close())


async def test_settings_are_refused_while_the_app_connects(tmp_path: Path) -> None:
    app = _app()
    app.configure(_settings(tmp_path / "first"))
    connecting = asyncio.create_task(app.connect())
    await asyncio.sleep(0)
    with pytest.raises(ConfigurationError):
        app.configure(_settings(tmp_path / "second"))
    await connecting
    await app.close()


def test_a_connection_whose_event_loop_has_ended_does_not_count(tmp_path: Path) -> None:
    app = _app()
    app.configure(_settings(tmp_path / "first"))
    asyncio.run(_connect(app))
    app.configure(_settings(tmp_path / "second"))
    asyncio.run(_double(app, app.settings, 4))


async def _connect(app: App) -> None:
    await app.connect()


def _mine(name: str, scene: ModelContext) -> Model:
    raise ModelFailed("unknown_model", f"asked for {name}")


def test_models_follow_the_settings_and_registered_ones_stay(tmp_path: Path) -> None:
    app = _app()
    app.configure(_settings(tmp_path, default_model="scripted"))
    models = app.models
    models.register("mine", _mine)
    provider = {"base_url": "http://127.0.0.1:9/v1"}
    app.configure(_settings(tmp_path, default_model="acme:large", providers={"acme": provider}))
    assert app.models is models
    assert app.models.find(None, ModelContext())[0] == "acme:large"
    with pytest.raises(ModelFailed, match="asked for mine:large"):
        app.models.find("mine:large", ModelContext())
    app.configure(_settings(tmp_path, default_model="scripted"))
    with pytest.raises(ModelFailed, match="acme"):
        app.models.find("acme:large", ModelContext())


def test_settings_that_name_a_provider_like_a_registered_model_are_refused(tmp_path: Path) -> None:
    app = _app()
    before = _settings(tmp_path)
    app.configure(before)
    app.models.register("acme", _mine)
    with pytest.raises(ConfigurationError, match='"acme"'):
        app.configure(_settings(tmp_path, providers={"acme": {"base_url": "http://127.0.0.1:9/v1"}}))
    assert app.settings is before
