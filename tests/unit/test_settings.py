"""Settings come from the environment, and a bad one is reported by its variable and without secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from runlane import InvalidSettings, Settings
from runlane.settings import load_settings, variable_of

BAD = {
    "PUBLIC_URL": ["runs.example.com", "https://runs.example.com/?a=b"],
    "MCP_WAIT_SECONDS": ["0", "3601", "soon"],
    "MCP_AUTHORIZATION_SERVERS": ["login.example.com", "https://a.example.com, b"],
    "API_CORS_ORIGINS": ["chat.example.com", "https://chat.example.com/page", "https://a.example.com, b"],
    "MAX_LANES_PER_TENANT": ["-1", "10001", "few"],
    "MAX_SECRETS": ["0", "many"],
    "MAX_SECRETS_BYTES": ["1023", "4 MB"],
    "DATABASE_URL": ["mysql://h/x", "sqlite:x.db", "sqlite:///", "postgresql://host", "postgresql://h:port/x", "text"],
    "DEFINITIONS_SOURCE": ["two words", "-x", "x" * 201],
    "MEMORY_MODE": ["replicated", "direct", "cloud"],
    "MEMORY_SYNCHRONOUS": ["off", "sometimes"],
    "MEMORY_SUBMIT_SECONDS": ["-1", "11", "soon"],
    "MEMORY_NODE_URL": ["x" * 501],
    "MEMORY_LEASE_SECONDS": ["1", "86401"],
    "MEMORY_OUTAGE_SECONDS": ["-1", "86401"],
    "MEMORY_IDEMPOTENCY_HOURS": ["0", "long"],
    "MEMORY_COPY_DAYS": ["0", "long"],
    "MEMORY_COPY_BYTES": ["1000", "500 MB"],
    "MEMORY_COPIES": ["0", "many"],
    "PGBOUNCER": ["maybe"],
    "UI": ["maybe"],
    "ACTION_LINKS": ["maybe"],
    "UI_BASE_PATH": ["runlane", "/runlane/", "/a b", "/" + "x" * 200],
    "TRUSTED_PROXIES": ["proxy.example.com", "10.0.0.1/8", "10.0.0.0/8, x"],
    "PAUSED": ["maybe"],
    "WEBHOOKS": ["maybe"],
    "WEBHOOK_CONCURRENCY": ["0", "many"],
    "WEBHOOK_TIMEOUT_SECONDS": ["0", "long"],
    "WEBHOOK_RETENTION_DAYS": ["0", "long"],
    "MAX_WEBHOOK_ENDPOINTS": ["-1", "many"],
    "STORED_EVENTS_DAYS": ["0", "long"],
    "EVENT_ID_HOURS": ["0", "long"],
    "EVENTS_PER_MINUTE": ["0", "many"],
    "POSTGRES_WAKEUPS": ["perhaps"],
    "MCP_STDIO": ["perhaps"],
    "DATABASE_CONNECTIONS": ["1", "201", "many"],
    "DATABASE_TIMEOUT_SECONDS": ["0", "-1", "soon"],
    "CONCURRENCY": ["0", "10001", "1.5"],
    "GRACE_SECONDS": ["-1"],
    "CANCEL_GRACE_SECONDS": ["-1"],
    "WORKER_HEALTH_PORT": ["-1", "65536", "http"],
    "LEASE_SECONDS": ["1", "3601"],
    "HEARTBEAT_SECONDS": ["0.01"],
    "REAPER_SECONDS": ["0"],
    "SILENCE_SECONDS": ["0.1"],
    "TIMER_SECONDS": ["0"],
    "MAX_LOSSES": ["-1", "1001", "many"],
    "MAX_INPUT_BYTES": ["1023", "1MB"],
    "MAX_RESULT_BYTES": ["1"],
    "MAX_STEP_BYTES": ["1023", "4 MB"],
    "MAX_RUN_BYTES": ["65535", "-1"],
    "WORKER_TEXT_BYTES": ["1048575", "none"],
    "API_MAX_BODY_BYTES": ["1023", "16MB"],
    "API_MAX_HEAD_BYTES": ["1023", "1048577"],
    "API_HEAD_SECONDS": ["0", "3601"],
    "API_BODY_SECONDS": ["0", "3601"],
    "API_KEEP_ALIVE_SECONDS": ["0", "3601"],
    "API_MAX_CONNECTIONS": ["0"],
    "API_MAX_STREAMS_PER_KEY": ["0"],
    "API_MAX_SEARCHES_PER_KEY": ["0"],
    "METRICS_TENANTS": ["some"],
    "MIGRATIONS_DATABASE_URL": ["mysql://host/name"],
    "POD_DELETION_COST": ["some"],
    "POD_NAME": ["a pod", "a/b"],
    "OTLP_ENDPOINT": ["localhost:4318", "grpc://host"],
    "REDIS_PREFIX": ["a b", "x" * 65],
    "AUDIT_RETENTION_DAYS": ["0", "-3"],
    "RETENTION_DAYS": ["0", "-3"],
    "EVENTS_RETENTION_DAYS": ["0", "-3", "never"],
    "RETENTION_SECONDS": ["0"],
    "SLACK_SIGNING_SECRET": ["alone"],
    "SLACK_USERS": ["ann", "U1;U2", "U1,"],
    "TRACE_URL": ["traces.example.com/{trace_id}", "https://traces.example.com", "javascript://x/{trace_id}"],
    "SECRET_KEY": ["short", "ab" * 31, "A" * 42, "ä" * 43, ","],
    "DEFAULT_MODEL": ["x" * 201],
    "SCRIPTED_MODELS": ["perhaps"],
    "DRAIN_HANDOVER": ["never"],
    "STALL_SECONDS": ["0", "14", "soon"],
    "OUTBOUND_ALLOW": ["a b", "10.0.0.1/8", "x:0", "http://x"],
    "SANDBOX_CONDITION_SECONDS": ["0", "61"],
    "SANDBOX_SCRIPT_SECONDS": ["0", "601"],
    "SANDBOX_MEMORY_BYTES": ["1024", "lots"],
    "SANDBOX_OUTPUT_BYTES": ["1023"],
    "SANDBOX_PROCESSES": ["0", "65"],
    "PROVIDERS": [
        "{",
        "[]",
        '{"a": {}}',
        '{"A B": {"base_url": "https://x"}}',
        '{"openai": {"base_url": "https://x"}}',
        '{"a": {"base_url": "x"}}',
        '{"a": {"base_url": "https://x", "secret": "no name"}}',
        '{"a": {"base_url": "https://x", "key": "hunter2"}}',
        '{"a": {"base_url": "https://x", "prices": {"m": {"input_usd_per_million": -1, "output_usd_per_million": 1}}}}',
    ],
}
BAD_OF_PROVIDERS = (
    "OPENAI_BASE_URL",
    "ANTHROPIC_BASE_URL",
    "GOOGLE_GEMINI_BASE_URL",
    "OLLAMA_BASE_URL",
    "OPENROUTER_BASE_URL",
)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_a_bad_value_is_reported_by_its_variable(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"RUNLANE_{name}", value)
    with pytest.raises(InvalidSettings) as caught:
        load_settings()
    message = str(caught.value)
    assert message.startswith("The settings are not valid: ")
    assert f"RUNLANE_{name}" in message
    assert "pydantic" not in message
    assert "hunter2" not in message
    assert len(message) < 300


@pytest.mark.parametrize("name", BAD_OF_PROVIDERS)
def test_a_bad_address_of_a_provider_is_reported_by_its_usual_variable(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "localhost:11434")
    with pytest.raises(InvalidSettings, match=f": {name}: "):
        load_settings()


def test_every_setting_with_bounds_has_a_bad_value_here() -> None:
    files = {f"RUNLANE_{name}_URL_FILE" for name in ("DATABASE", "MIGRATIONS_DATABASE", "REDIS")}
    files |= {"RUNLANE_MEMORY_PATH", "RUNLANE_DEFINITIONS_DIR", "RUNLANE_GRAPHS_FILE", "RUNLANE_SECRET_KEY_FILE"}
    free = {"RUNLANE_MEMORY_EMBEDDING_MODEL", "RUNLANE_WORKER_HEALTH_HOST", "RUNLANE_REDIS_URL", *files}
    keys = {"OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "OLLAMA_API_KEY", "OPENROUTER_API_KEY"}
    bounded = {f"RUNLANE_{name}" for name in BAD} | set(BAD_OF_PROVIDERS)
    assert bounded | free | keys == {variable_of(name) for name in Settings.model_fields}


@pytest.mark.parametrize("variable", ["GOOGLE_API_KEY", "GEMINI_API_KEY"])
def test_keys_of_providers_have_their_usual_names_and_are_not_printed(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-hunter2")
    monkeypatch.setenv(variable, "g-hunter2")
    settings = load_settings()
    assert settings.openai_api_key is not None
    assert settings.openai_api_key.get_secret_value() == "sk-hunter2"
    assert settings.google_api_key is not None
    assert settings.google_api_key.get_secret_value() == "g-hunter2"
    assert "hunter2" not in f"{settings!r} {settings}"


def test_the_key_of_a_compatible_server_is_the_variable_called_like_its_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNLANE_PROVIDERS", '{"acme": {"base_url": "https://x/v1", "secret": "ACME_KEY"}}')
    acme = load_settings().providers["acme"]
    assert acme.api_key is None
    monkeypatch.setenv("ACME_KEY", "hunter2")
    assert acme.api_key is not None
    assert acme.api_key.get_secret_value() == "hunter2"
    assert "hunter2" not in repr(acme)


def test_several_bad_values_are_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNLANE_CONCURRENCY", "0")
    monkeypatch.setenv("RUNLANE_LEASE_SECONDS", "x")
    with pytest.raises(InvalidSettings, match=r"RUNLANE_CONCURRENCY.*RUNLANE_LEASE_SECONDS"):
        load_settings()


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="RUNLANE_CONCURENCY"):
        load_settings(concurency=3)


def test_a_lease_must_outlast_three_heartbeats() -> None:
    with pytest.raises(InvalidSettings, match=r"lease_seconds=5 must be at least three times heartbeat_seconds=2"):
        load_settings(lease_seconds=5, heartbeat_seconds=2)
    assert load_settings(lease_seconds=6, heartbeat_seconds=2).lease_seconds == 6


def test_an_empty_variable_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNLANE_DATABASE_URL", "")
    assert load_settings().sqlite_path == Path(".runlane/runlane.db")


def test_the_environment_is_read_and_given_values_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNLANE_CONCURRENCY", "7")
    assert load_settings().concurrency == 7
    assert load_settings(concurrency=8).concurrency == 8


def test_the_default_model_cannot_be_a_scripted_one_that_is_turned_off() -> None:
    for name in ("scripted", "scripted:x"):
        with pytest.raises(InvalidSettings, match="RUNLANE_SCRIPTED_MODELS"):
            load_settings(default_model=name, scripted_models=False)
    assert load_settings(default_model="scripted").scripted_models
    assert not load_settings(default_model="openai:gpt-5", scripted_models=False).scripted_models


def test_settings_cannot_be_changed() -> None:
    settings = load_settings()
    with pytest.raises(ValidationError):
        settings.concurrency = 3


@pytest.mark.parametrize(
    ("url", "path"),
    [("sqlite:///a/b.db", Path("a/b.db")), ("sqlite:////a/b.db", Path("/a/b.db")), ("postgresql://h/x", None)],
)
def test_the_file_of_a_sqlite_url(url: str, path: Path | None) -> None:
    assert load_settings(database_url=url).sqlite_path == path


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://app:hunter2@db.local:6432/shop", "postgresql://db.local:6432/shop"),
        ("postgres://app:hunter2@db.local/shop?password=hunter2", "postgres://db.local/shop"),
        ("postgresql:///shop", "postgresql://local socket/shop"),
        ("sqlite:///x.db", "x.db"),
    ],
)
def test_the_shown_database_has_no_password(url: str, shown: str) -> None:
    assert load_settings(database_url=url).shown_database == shown


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:hunter2@host",
        "postgresql://app:hunter2/x@host/shop",
        "postgresql://app:hunter2#x@host/shop",
        "postgresql://app:x@host:hunter2/shop",
        "postgresql://[app:hunter2@host/shop",
        "mysql://app:hunter2@host/shop",
        "hunter2",
    ],
)
def test_a_refused_url_never_prints_its_password(url: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        load_settings(database_url=url)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ValidationError) as raw:
        Settings(database_url=url)  # type: ignore[arg-type]
    assert "hunter2" not in str(raw.value)


def test_settings_do_not_print_the_password() -> None:
    settings = load_settings(database_url="postgresql://app:hunter2@host/shop")
    assert "hunter2" not in f"{settings!r} {settings}"


def test_every_setting_has_a_description_or_a_clear_name() -> None:
    undescribed: dict[str, Any] = {
        name: field for name, field in Settings.model_fields.items() if not field.description
    }
    assert not undescribed
