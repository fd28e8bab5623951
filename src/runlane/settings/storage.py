"""Settings of storage: database, bus, definitions, secrets, retention."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from runlane.settings.group import SettingsGroup
from runlane.settings.secret_keys import parse_secret_keys
from runlane.settings.url_files import read_url_files

EMBEDDED_FILE = Path(".runlane") / "runlane.db"
# Created automatically beside the embedded file, and used only with it.
EMBEDDED_KEY_FILE = Path(".runlane") / "secret.key"
DEFINITIONS_FOLDER = Path("definitions")


class StorageSettings(SettingsGroup):
    """The places in which runs, definitions and secrets are stored, and their retention."""

    database_url: SecretStr | None = Field(
        default=None,
        description="postgresql://user@host/name or sqlite:///path. Default: the file .runlane/runlane.db.",
    )
    database_url_file: Path | None = Field(
        default=None, description="A file that contains the URL of the database instead, such as a mounted secret."
    )
    migrations_database_url: SecretStr | None = Field(
        default=None,
        description="The database for `runlane db`, if it is reached in another way: past PgBouncer, or as the role "
        "that owns the tables. Default: RUNLANE_DATABASE_URL.",
    )
    migrations_database_url_file: Path | None = Field(
        default=None, description="A file that contains the URL for `runlane db` instead."
    )
    pgbouncer: bool = Field(
        default=False,
        description="Set to true behind PgBouncer in transaction mode: no prepared statements, no session locks. "
        "A dead worker is then detected when its lease expires, not within a second.",
    )
    database_connections: int = Field(
        default=8, ge=2, le=200, description="Maximum number of connections per process, plus one for liveness."
    )
    database_timeout_seconds: float = Field(
        default=10.0, gt=0, description="Timeout of one statement or one connection attempt."
    )
    paused: bool = Field(
        default=False,
        description="Start servers that only read: they refuse every change and do no maintenance, and workers do not "
        "start. For a restored database, until runlane db recovered has prepared it.",
    )
    redis_url: SecretStr | None = Field(
        default=None,
        description="redis://, rediss://, redis+sentinel://host:port,host:port/service or redis+cluster://host:port,… "
        "Wakes other processes immediately and makes streams live; no data is lost without it.",
    )
    redis_url_file: Path | None = Field(default=None, description="A file that contains the URL of Redis instead.")
    redis_prefix: str = Field(
        default="runlane", pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="Prefix of every Redis key."
    )
    postgres_wakeups: bool = Field(
        default=True,
        description="Without Redis, wake other processes by LISTEN and NOTIFY, on one more connection per process. "
        "Has no effect behind PgBouncer; processes poll then.",
    )
    definitions_dir: Path | None = Field(
        default=None,
        description="The definitions folder. Default: definitions in the current folder, if it exists.",
    )
    graphs_file: Path | None = Field(
        default=None,
        description="The file with LangGraph graphs. Default: aegra.json or langgraph.json in the current folder, if "
        "it exists.",
    )
    definitions_source: str | None = Field(
        default=None,
        max_length=200,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:/@-]*$",
        description="The project that definitions come from; a sync changes and removes only definitions of its own "
        "source. Default: the name of the project folder.",
    )
    secret_key: SecretStr | None = Field(
        default=None,
        description="Encrypts secrets: 32 bytes as base64 or hex (runlane secrets new-key creates one). To rotate it, "
        "give several keys separated by commas: the first one encrypts, all of them decrypt.",
    )
    secret_key_file: Path | None = Field(
        default=None, description="A file that contains the key instead; several keys on separate lines."
    )
    max_secrets: int = Field(default=500, ge=1, description="Maximum number of secrets of one tenant.")
    max_secrets_bytes: int = Field(
        default=4 * 1024 * 1024, ge=1024, description="Maximum total size of one tenant's secret values."
    )
    retention_days: float = Field(
        default=30.0,
        gt=0,
        description="Finished runs are deleted after this time. Handled dead letters are kept three times as long, "
        "others at least 180 days.",
    )
    audit_retention_days: float = Field(
        default=400.0, gt=0, description="Audit log entries are deleted after this time."
    )
    events_retention_days: float | None = Field(
        default=None,
        gt=0,
        description="Events of finished runs, except the last one, are deleted after this time. "
        "Default: kept as long as their run.",
    )
    stored_events_days: float = Field(
        default=7.0, gt=0, description="Events of tenants, which start triggers, are deleted after this time."
    )
    event_id_hours: float = Field(
        default=24.0, gt=0, description="For how long a repeated event is recognized by the sender's id."
    )
    events_per_minute: int = Field(
        default=6000, ge=1, le=10_000_000, description="Maximum number of events that a tenant may send in a minute."
    )
    webhook_retention_days: float = Field(
        default=30.0,
        gt=0,
        description="Webhook messages, their deliveries and attempts are deleted after this time, delivered or not.",
    )
    retention_seconds: float = Field(default=60.0, gt=0, description="How often expired runs are deleted.")

    @model_validator(mode="before")
    @classmethod
    def _read_urls(cls, given: dict[str, Any]) -> dict[str, Any]:
        return read_url_files(given)

    @model_validator(mode="after")
    def _check_one_secret_key(self) -> Self:
        if self.secret_key is not None and self.secret_key_file is not None:
            raise ValueError("RUNLANE_SECRET_KEY and RUNLANE_SECRET_KEY_FILE are both set; keep one of them")
        return self

    @field_validator("secret_key")
    @classmethod
    def _check_secret_key(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None:
            parse_secret_keys(key.get_secret_value())
        return key

    @field_validator("database_url", "migrations_database_url")
    @classmethod
    def _check_url(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            _check_database_url(url.get_secret_value())
        return url

    @property
    def sqlite_path(self) -> Path | None:
        """The database file, or None when the database is Postgres."""
        if self.database_url is None:
            return EMBEDDED_FILE
        url = self.database_url.get_secret_value()
        return Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:") else None

    def for_migrations(self) -> Self:
        """Return the settings with the database of `runlane db`, which is reached without PgBouncer."""
        url = self.migrations_database_url
        return self if url is None else self.model_copy(update={"database_url": url, "pgbouncer": False})

    @property
    def wakes_through_postgres(self) -> bool:
        """Whether processes wake each other through Postgres, whose notifications PgBouncer does not pass on."""
        return self.redis_url is None and self.sqlite_path is None and self.postgres_wakeups and not self.pgbouncer

    @property
    def shown_database(self) -> str:
        """The database for logs and errors, without a password."""
        if self.sqlite_path is not None:
            return str(self.sqlite_path)
        assert self.database_url is not None  # noqa: S101 - sqlite_path is None only with a URL
        parts = urlsplit(self.database_url.get_secret_value())
        host = parts.hostname or "local socket"
        return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}"


def _check_database_url(url: str) -> None:
    """Reject a URL that no supported driver accepts. The message does not contain the URL: it may hold a password."""
    scheme, separator, _ = url.partition(":")
    if scheme in ("postgresql", "postgres") and separator:
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError:
            # The message of urlsplit often contains a part of a password that has a slash or a # in it.
            raise ValueError(
                "the URL cannot be parsed. Form: postgresql://user:password@host:5432/name, "
                "with / # ? @ and : in the password written as %2F %23 %3F %40 and %3A"
            ) from None
        if not parts.path.strip("/") and "dbname=" not in (parts.query or ""):
            raise ValueError("the URL does not name a database. Form: postgresql://user:password@host:5432/name")
        return
    if url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        return
    raise ValueError("the URL must begin with postgresql:// or sqlite:/// (three slashes and a path)")
