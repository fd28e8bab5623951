"""Settings of the suite are loaded once and reused; no test gets the values of another."""

from __future__ import annotations

from pathlib import Path

import pytest

from runlane.access.keyring import new_key
from runlane.errors import InvalidSettings
from runlane.redaction import LOGS
from runlane.settings import Settings, load_settings
from tests.harness import settings_for

FILE = "sqlite:///one.db"


def _plain(settings: Settings) -> dict[str, object]:
    return {name: str(value) for name, value in settings if name != "database_url"}


def test_settings_have_the_values_of_their_own_test() -> None:
    one, other = new_key(), new_key()
    first = settings_for(FILE, secret_key=one, redis_prefix="a", grace_seconds=0.2)
    second = settings_for("sqlite:///other.db", secret_key=other, redis_prefix="b", grace_seconds=0.2)
    for settings, path, key, prefix in ((first, "one.db", one, "a"), (second, "other.db", other, "b")):
        assert settings.sqlite_path == Path(path)
        assert settings.secret_key is not None
        assert settings.secret_key.get_secret_value() == key
        assert settings.redis_prefix == prefix
        assert key not in LOGS.clean(f"the key {key}")
    assert settings_for(FILE, grace_seconds=0.2).secret_key is None


def test_settings_equal_those_that_are_loaded_each_time() -> None:
    fields = {"grace_seconds": 0.2, "timer_seconds": 0.02, "redis_prefix": "a"}
    settings_for("sqlite:///other.db", **fields)
    loaded = load_settings(database_url=FILE, worker_health_port=0, **fields)
    assert settings_for(FILE, **fields) == loaded
    assert _plain(settings_for(FILE)) != _plain(loaded)


def test_settings_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_for(FILE, timer_seconds=0.5).grace_seconds != 7
    monkeypatch.setenv("RUNLANE_GRACE_SECONDS", "7")
    assert settings_for(FILE, timer_seconds=0.5).grace_seconds == 7


def test_overrides_are_validated() -> None:
    with pytest.raises(InvalidSettings):
        settings_for(FILE, grace_seconds="soon")
    with pytest.raises(InvalidSettings, match="needs Postgres"):
        settings_for(FILE, memory_mode="direct")
    assert settings_for("postgresql://app@127.0.0.1/suite", memory_mode="direct").memory_mode == "direct"
