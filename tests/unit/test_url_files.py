"""URLs with passwords are read from files, and their errors name the variable and not the password."""

from __future__ import annotations

from pathlib import Path

import pytest

from runlane.errors import InvalidSettings
from runlane.settings import load_settings


def test_a_url_is_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "url"
    file.write_text("postgresql://app:pa55@db/runs\n")
    monkeypatch.setenv("RUNLANE_DATABASE_URL_FILE", str(file))
    settings = load_settings()
    assert settings.database_url is not None
    assert settings.database_url.get_secret_value() == "postgresql://app:pa55@db/runs"
    assert "pa55" not in repr(settings)


@pytest.mark.parametrize("content", [None, "", "mysql://app:pa55@db/runs"])
def test_a_wrong_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None) -> None:
    file = tmp_path / "url"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("RUNLANE_DATABASE_URL_FILE", str(file))
    with pytest.raises(InvalidSettings) as caught:
        load_settings()
    assert "RUNLANE_" in str(caught.value)
    assert "pa55" not in str(caught.value)


def test_a_url_and_its_file_are_not_given_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "url"
    file.write_text("redis://a")
    monkeypatch.setenv("RUNLANE_REDIS_URL_FILE", str(file))
    monkeypatch.setenv("RUNLANE_REDIS_URL", "redis://b")
    with pytest.raises(InvalidSettings, match="RUNLANE_REDIS_URL and RUNLANE_REDIS_URL_FILE are both set"):
        load_settings()


def test_migrations_may_use_another_role_and_no_pgbouncer() -> None:
    given = load_settings(
        database_url="postgresql://app@pgbouncer/runs",
        migrations_database_url="postgresql://owner@db/runs",
        pgbouncer=True,
    )
    own = given.for_migrations()
    assert own.database_url is not None
    assert own.database_url.get_secret_value() == "postgresql://owner@db/runs"
    assert not own.pgbouncer
    assert load_settings(database_url="sqlite:///a.db").for_migrations().shown_database == "a.db"
