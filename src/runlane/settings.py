"""Settings: one frozen object, read from the environment here and nowhere else.

Each field is RUNLANE_ + its name in capitals. Rules between fields are checked at start, so that a worker
that could only fail later refuses to start now.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from runlane.addresses import parse_allow_list
from runlane.errors import InvalidSettings

EMBEDDED_FILE = Path(".runlane") / "runlane.db"
DEFINITIONS_FOLDER = Path("definitions")


class Settings(BaseSettings):
    """What a process may be told. Durations are in seconds unless the name says otherwise."""

    # Inputs stay out of errors: one of them may be a URL with a password.
    model_config = SettingsConfigDict(
        env_prefix="RUNLANE_", frozen=True, extra="forbid", env_ignore_empty=True, hide_input_in_errors=True
    )

    database_url: SecretStr | None = Field(
        default=None,
        description="postgresql://user@host/name or sqlite:///path. Without it: the file .runlane/runlane.db.",
    )
    pgbouncer: bool = Field(
        default=False,
        description="Set it behind PgBouncer in transaction mode: no prepared statements, no session locks. "
        "A dead worker is then noticed when its lease ends, not within a second.",
    )
    redis_url: SecretStr | None = Field(
        default=None,
        description="redis://, rediss://, redis+sentinel://host:port,host:port/service or redis+cluster://host:port,… "
        "Makes processes wake each other at once and streams live; nothing is lost without it.",
    )
    definitions_dir: Path | None = Field(
        default=None,
        description="The folder with definitions. Without it: definitions in the current folder, if it is there.",
    )
    redis_prefix: str = Field(default="runlane", pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="Of every key.")
    database_connections: int = Field(default=8, ge=2, le=200, description="At most, per process; +1 for liveness.")
    database_timeout_seconds: float = Field(default=10.0, gt=0, description="For one statement or one connect.")

    concurrency: int = Field(default=50, ge=1, le=10_000, description="Runs that one worker executes at once.")
    grace_seconds: float = Field(default=30.0, ge=0, description="How long a stopping worker lets runs finish.")
    cancel_grace_seconds: float = Field(
        default=30.0,
        ge=0,
        description="How long cancelled code may take to stop before its run ends without it.",
    )
    worker_health_host: str = Field(default="127.0.0.1", description="0.0.0.0 for probes from another host.")
    worker_health_port: int | None = Field(
        default=None, ge=0, le=65535, description="9000, or a free port if 9000 is taken; 0 for no endpoint."
    )

    lease_seconds: float = Field(default=15.0, ge=2, le=3600, description="A worker silent for so long is gone.")
    heartbeat_seconds: float = Field(default=0.5, ge=0.05, description="How often a worker renews its lease.")
    reaper_seconds: float = Field(default=0.5, ge=0.05, description="How often vanished workers are looked for.")
    silence_seconds: float = Field(
        default=1.0, ge=0.2, description="With its liveness lock free, a worker silent for so long is gone."
    )
    timer_seconds: float = Field(default=0.25, ge=0.02, description="How often due runs are looked for.")

    max_input_bytes: int = Field(default=1024 * 1024, ge=1024, description="Of one run's input, as JSON.")
    max_result_bytes: int = Field(default=16 * 1024 * 1024, ge=1024, description="Of a result or checkpoint.")
    api_max_body_bytes: int = Field(
        default=16 * 1024 * 1024, ge=1024, description="Of one HTTP request; it is enforced while reading."
    )
    otlp_endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://",
        description="Where spans are sent (OTLP over HTTP), such as http://localhost:4318. Without it: no tracing.",
    )
    default_model: str | None = Field(
        default=None, max_length=200, description="For steps and agents that name none, such as scripted."
    )
    outbound_allow: str | None = Field(
        default=None,
        max_length=20_000,
        description="What tools and MCP servers may reach although it is not public: names, name:port, addresses and "
        "networks, such as 127.0.0.1:8080,10.0.0.0/8,internal.example.",
    )
    sandbox_condition_seconds: float = Field(
        default=2.0, gt=0, le=60, description="Computing time of a condition or expression of an orchestration."
    )
    sandbox_script_seconds: float = Field(
        default=10.0, gt=0, le=600, description="Computing time of a transform step's script."
    )
    sandbox_memory_bytes: int = Field(
        default=128 * 1024 * 1024, ge=8 * 1024 * 1024, description="Of one condition, script or Python tool."
    )
    sandbox_output_bytes: int = Field(
        default=4 * 1024 * 1024, ge=1024, description="Of the value of a condition, script or Python tool, as JSON."
    )
    sandbox_processes: int = Field(
        default=2, ge=1, le=64, description="At most, per worker; conditions and scripts beyond it wait their turn."
    )
    retention_days: float = Field(
        default=30.0,
        gt=0,
        description="Finished runs are deleted after this. Dead letters stay three times as long.",
    )
    audit_retention_days: float = Field(
        default=400.0, gt=0, description="Entries of the audit log are deleted after this."
    )
    events_retention_days: float | None = Field(
        default=None,
        gt=0,
        description="Events of finished runs are deleted after this, all but the last one. "
        "Without it they are kept as long as their run.",
    )
    retention_seconds: float = Field(default=60.0, gt=0, description="How often retention looks for old runs.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.lease_seconds < 3 * self.heartbeat_seconds:
            raise ValueError(
                f"lease_seconds={self.lease_seconds:g} must be at least three times "
                f"heartbeat_seconds={self.heartbeat_seconds:g}, or one late heartbeat loses every run"
            )
        return self

    @field_validator("database_url")
    @classmethod
    def _check_url(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            check_database_url(url.get_secret_value())
        return url

    @field_validator("outbound_allow")
    @classmethod
    def _check_allowed(cls, text: str | None) -> str | None:
        parse_allow_list(text or "")
        return text

    @property
    def sqlite_path(self) -> Path | None:
        """The database file, or None when the database is Postgres."""
        if self.database_url is None:
            return EMBEDDED_FILE
        url = self.database_url.get_secret_value()
        return Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:") else None

    @property
    def shown_database(self) -> str:
        """The database for logs and errors, without a password."""
        if self.sqlite_path is not None:
            return str(self.sqlite_path)
        assert self.database_url is not None  # noqa: S101 - sqlite_path is None only with a URL
        parts = urlsplit(self.database_url.get_secret_value())
        host = parts.hostname or "local socket"
        return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}"


def load_settings(**overrides: Any) -> Settings:
    """The settings of this process; what is given here wins over the environment."""
    try:
        return Settings(**overrides)
    except ValidationError as error:
        problems = "; ".join(
            f"{_environment_name(item['loc'])}: {item['msg'].removeprefix('Value error, ')}"
            for item in error.errors(include_url=False, include_input=False)
        )
        raise InvalidSettings(f"The settings are not valid: {problems}.") from None


def check_database_url(url: str) -> None:
    """Refuse a URL that no driver of ours could use, without printing what may be a password."""
    scheme, separator, _ = url.partition(":")
    if scheme in ("postgresql", "postgres") and separator:
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError:
            # What urlsplit complains about is often a piece of a password with a slash or a # in it.
            raise ValueError(
                "the URL cannot be read. Form: postgresql://user:password@host:5432/name, "
                "with / # ? @ and : in the password written as %2F %23 %3F %40 and %3A"
            ) from None
        if not parts.path.strip("/") and "dbname=" not in (parts.query or ""):
            raise ValueError("the URL names no database. Form: postgresql://user:password@host:5432/name")
        return
    if url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        return
    raise ValueError("the URL must begin with postgresql:// or sqlite:/// (three slashes and a path)")


def _environment_name(location: tuple[int | str, ...]) -> str:
    return f"RUNLANE_{str(location[0]).upper()}" if location else "RUNLANE_*"
