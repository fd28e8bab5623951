"""Settings: one frozen object, read from the environment here and nowhere else.

Each field is RUNLANE_ + its name in capitals, but for keys and addresses of model providers: those have the names that
everybody knows. Rules between fields are checked at start, so that a worker that could only fail later refuses to start
now.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from runlane.addresses import parse_allow_list
from runlane.errors import InvalidSettings, nearest
from runlane.redaction import LOGS

EMBEDDED_FILE = Path(".runlane") / "runlane.db"
# Made by itself beside the embedded file, and used only with it.
EMBEDDED_KEY_FILE = Path(".runlane") / "secret.key"
SECRET_KEY_BYTES: Final = 32
# Read by the command line and not part of the settings of a process.
CLIENT_VARIABLES: Final = ("RUNLANE_URL", "RUNLANE_API_KEY")
DEFINITIONS_FOLDER = Path("definitions")
SCRIPTED: Final = "scripted"
# Prefixes of models that are ours, so that no other provider may be called like them.
OWN_PROVIDERS: Final = ("anthropic", "google", "ollama", "openai", "openai-chat", "openrouter", SCRIPTED)

Url = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/]+", max_length=2000)]
ProviderName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,39}$")]


class Price(BaseModel):
    """What a model costs."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    input_usd_per_million: float = Field(ge=0)
    output_usd_per_million: float = Field(ge=0)


class CompatibleProvider(BaseModel):
    """A server that speaks the chat completions API. `secret` names its key; without it none is sent."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    base_url: Url
    secret: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")
    prices: dict[str, Price] = Field(default_factory=dict[str, Price])

    @property
    def api_key(self) -> SecretStr | None:
        """The key of this process: the variable that is called like the secret."""
        value = os.environ.get(self.secret) if self.secret is not None else None
        return SecretStr(value) if value else None


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
    definitions_source: str | None = Field(
        default=None,
        max_length=200,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:/@-]*$",
        description="The name of the project that definitions come from; a sync changes and removes only those of its "
        "source. Without it: the name of the project folder.",
    )
    redis_prefix: str = Field(default="runlane", pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="Of every key.")
    database_connections: int = Field(default=8, ge=2, le=200, description="At most, per process; +1 for liveness.")
    database_timeout_seconds: float = Field(default=10.0, gt=0, description="For one statement or one connect.")

    concurrency: int = Field(default=50, ge=1, le=10_000, description="Runs that one worker executes at once.")
    grace_seconds: float = Field(default=30.0, ge=0, description="How long a stopping worker lets runs finish.")
    drain_handover: Literal["late", "immediate"] = Field(
        default="late",
        description="When a stopping worker hands orchestrations back: late, when the grace period is nearly over, or "
        "immediate, after the step that is under way.",
    )
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
    stall_seconds: float | None = Field(
        default=None,
        gt=0,
        description="A worker whose event loop stands still for longer gives its runs up. Without it: four leases.",
    )
    reaper_seconds: float = Field(default=0.5, ge=0.05, description="How often vanished workers are looked for.")
    silence_seconds: float = Field(
        default=1.0, ge=0.2, description="With its liveness lock free, a worker silent for so long is gone."
    )
    timer_seconds: float = Field(default=0.25, ge=0.02, description="How often due runs are looked for.")

    max_losses: int = Field(
        default=10,
        ge=0,
        le=1000,
        description="Workers that may be lost under a run before it fails. Tasks and definitions can ask for less, not "
        "for more.",
    )
    max_lanes_per_tenant: int = Field(
        default=50,
        ge=0,
        le=10_000,
        description="New lanes that the definitions of one tenant may name. Lanes that exist do not count.",
    )
    max_input_bytes: int = Field(default=1024 * 1024, ge=1024, description="Of one run's input, as JSON.")
    max_result_bytes: int = Field(default=16 * 1024 * 1024, ge=1024, description="Of a result or checkpoint.")
    max_step_bytes: int = Field(
        default=4 * 1024 * 1024,
        ge=1024,
        description="Of one rendered text, prompt or set of arguments, and of one step's output, in an orchestration.",
    )
    max_run_bytes: int = Field(
        default=256 * 1024 * 1024,
        ge=64 * 1024,
        description="Of the events and step records that one attempt at an orchestration run writes.",
    )
    worker_text_bytes: int = Field(
        default=256 * 1024 * 1024,
        ge=1024 * 1024,
        description="That the orchestration runs of one worker hold at once: states, rendered text, events that are "
        "not stored yet. One tenant holds at most half of it.",
    )
    api_max_body_bytes: int = Field(
        default=16 * 1024 * 1024, ge=1024, description="Of one HTTP request; it is enforced while reading."
    )
    api_max_head_bytes: int = Field(
        default=32 * 1024,
        ge=1024,
        le=1024 * 1024,
        description="Of a request's line and headers; each header counts 32 bytes more than its text. Beyond it: 431.",
    )
    api_head_seconds: float = Field(
        default=10.0, gt=0, le=3600, description="For a request's line and headers to arrive. Beyond it: 408."
    )
    api_body_seconds: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="A request body that arrives at less than 1024 bytes per second over this time: 408.",
    )
    api_keep_alive_seconds: int = Field(
        default=75,
        ge=1,
        le=3600,
        description="An idle connection is closed after this. It should be more than what a proxy in front uses.",
    )
    api_max_connections: int = Field(
        default=10_000,
        ge=1,
        description="Per process, or fewer if the limit on open files is lower. Beyond it idle connections are closed; "
        "if none is idle: 503, except for /health and /ready.",
    )
    api_max_streams_per_key: int = Field(
        default=5_000,
        ge=1,
        description="Open event streams and long polls of one API key, per process. Beyond it: 429.",
    )
    api_max_searches_per_key: int = Field(
        default=4, ge=1, description="Searches for a text in runs at once, of one API key, per process. Beyond it: 429."
    )
    otlp_endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://",
        description="Where spans are sent (OTLP over HTTP), such as http://localhost:4318. Without it: no tracing.",
    )
    secret_key: SecretStr | None = Field(
        default=None,
        description="Keeps secrets: 32 bytes as base64 or hex (runlane secrets new-key makes one). Several with commas "
        "between them, to change it: the first one encrypts, all of them decrypt.",
    )
    secret_key_file: Path | None = Field(
        default=None, description="A file with the key instead; several keys in lines of their own."
    )
    max_secrets: int = Field(default=500, ge=1, description="Secrets that one tenant may have.")
    max_secrets_bytes: int = Field(
        default=4 * 1024 * 1024, ge=1024, description="Of the values of one tenant's secrets, together."
    )
    default_model: str | None = Field(
        default=None, max_length=200, description="For steps and agents that name none, such as scripted."
    )
    scripted_models: bool = Field(
        default=True,
        description="Allow models called scripted…, whose answers are in the definitions. With false, sync refuses "
        "them and runs that ask one fail.",
    )
    providers: dict[ProviderName, CompatibleProvider] = Field(
        default_factory=dict[str, CompatibleProvider],
        description='Servers with the chat completions API, as JSON: {"acme": {"base_url": "https://…", "secret": '
        '"ACME_KEY"}} makes models called acme:NAME.',
    )
    openai_api_key: SecretStr | None = Field(
        default=None, validation_alias="openai_api_key", description="For models called openai:… and openai-chat:…"
    )
    openai_base_url: Url = Field(
        default="https://api.openai.com/v1",
        validation_alias="openai_base_url",
        description="Of OpenAI, or a proxy to it.",
    )
    anthropic_api_key: SecretStr | None = Field(
        default=None, validation_alias="anthropic_api_key", description="For models called anthropic:…"
    )
    anthropic_base_url: Url = Field(
        default="https://api.anthropic.com",
        validation_alias="anthropic_base_url",
        description="Of Anthropic, or a proxy to it.",
    )
    google_api_key: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("google_api_key", "gemini_api_key"),
        description="For models called google:…; GEMINI_API_KEY is read as well.",
    )
    google_base_url: Url = Field(
        default="https://generativelanguage.googleapis.com",
        validation_alias=AliasChoices("google_gemini_base_url", "google_base_url"),
        description="Of the Gemini API, or a proxy to it.",
    )
    ollama_base_url: Url = Field(
        default="http://localhost:11434/v1",
        validation_alias="ollama_base_url",
        description="For models called ollama:…",
    )
    ollama_api_key: SecretStr | None = Field(
        default=None, validation_alias="ollama_api_key", description="If that server wants one."
    )
    openrouter_api_key: SecretStr | None = Field(
        default=None, validation_alias="openrouter_api_key", description="For models called openrouter:…"
    )
    openrouter_base_url: Url = Field(
        default="https://openrouter.ai/api/v1", validation_alias="openrouter_base_url", description="Of OpenRouter."
    )
    outbound_allow: str | None = Field(
        default=None,
        max_length=20_000,
        description="What tools and MCP servers may reach although it is not public: names, name:port, addresses and "
        "networks, such as 127.0.0.1:8080,10.0.0.0/8,internal.example.",
    )
    mcp_stdio: bool = Field(
        default=False,
        description="Lets definitions of MCP servers start programs on this worker's machine. Only for workers whose "
        "definitions all come from people who may do so; `runlane dev` sets it.",
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
        default=4,
        ge=1,
        le=64,
        description="At most, per worker. One tenant uses all but one; scripts and Python tools leave one more free "
        "for conditions.",
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
        if self.stall_seconds is not None and self.stall_seconds < self.lease_seconds:
            raise ValueError(
                f"RUNLANE_STALL_SECONDS={self.stall_seconds:g} must be at least lease_seconds={self.lease_seconds:g}, "
                "or a worker gives up runs that its lease still covers"
            )
        return self

    @field_validator("providers")
    @classmethod
    def _check_names(cls, providers: dict[str, CompatibleProvider]) -> dict[str, CompatibleProvider]:
        for name in providers:
            if name in OWN_PROVIDERS:
                raise ValueError(f'"{name}" is a provider already; choose another name')
        return providers

    @model_validator(mode="after")
    def _check_one_secret_key(self) -> Self:
        if self.secret_key is not None and self.secret_key_file is not None:
            raise ValueError("RUNLANE_SECRET_KEY and RUNLANE_SECRET_KEY_FILE are both set; keep one of them")
        return self

    @model_validator(mode="after")
    def _check_default_model(self) -> Self:
        if not self.scripted_models and (self.default_model or "").partition(":")[0] == SCRIPTED:
            raise ValueError(
                f'RUNLANE_DEFAULT_MODEL="{self.default_model}" is a scripted model, and RUNLANE_SCRIPTED_MODELS is '
                "false; choose another default model"
            )
        return self

    @field_validator("secret_key")
    @classmethod
    def _check_secret_key(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None:
            parse_secret_keys(key.get_secret_value())
        return key

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
        settings = Settings(**overrides)
    except ValidationError as error:
        problems = "; ".join(
            f"{_environment_name(item['loc'])}: {item['msg'].removeprefix('Value error, ')}"
            for item in error.errors(include_url=False, include_input=False)
        )
        raise InvalidSettings(f"The settings are not valid: {problems}.") from None
    except SettingsError as error:
        # Told without the value: it may hold anything.
        field = next((name for name in Settings.model_fields if f'"{name}"' in str(error)), "*")
        raise InvalidSettings(f"The settings are not valid: {variable_of(field)}: it is not valid JSON.") from None
    hide(settings)
    return settings


def hide(settings: Settings) -> None:
    """Have passwords and keys that are in the settings replaced in the logs and traces of this process."""
    keys = [provider.api_key for provider in settings.providers.values()]
    for value in (*(value for _, value in settings), *keys):
        if isinstance(value, SecretStr):
            for text in _hidden(value):
                LOGS.learn(text)


def _hidden(value: SecretStr) -> Iterator[str]:
    text = value.get_secret_value()
    if "://" not in text:
        yield from re.split(r"[\s,]+", text)
        return
    try:
        parts = urlsplit(text)
        username, password, host = parts.username or "", parts.password or "", parts.hostname or ""
    except ValueError:
        return
    # One that is also the user's or the database's name hides nothing, and to replace it everywhere would hide much.
    yield from {password, unquote(password)} - {username, host, parts.path.strip("/")}


def parse_secret_keys(text: str) -> list[bytes]:
    """The keys in a text, between commas or line ends; ValueError, which tells nothing of them, for what is none."""
    keys = [_parse_key(part) for part in re.split(r"[\s,]+", text) if part]
    if not keys:
        raise ValueError("there is no key in it. Make one: runlane secrets new-key")
    return keys


def _parse_key(text: str) -> bytes:
    with contextlib.suppress(ValueError):
        if re.fullmatch(r"[0-9A-Fa-f]{64}", text):
            return bytes.fromhex(text)
        key = base64.b64decode(text.translate(str.maketrans("-_", "+/")) + "=" * (-len(text) % 4), validate=True)
        if len(key) == SECRET_KEY_BYTES:
            return key
    raise ValueError("a key must be 32 bytes as base64 or hex. Make one: runlane secrets new-key")


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    field = Settings.model_fields.get(name)
    alias = field.validation_alias if field is not None else None
    if isinstance(alias, AliasChoices):
        alias = alias.choices[0]
    return alias.upper() if isinstance(alias, str) else f"RUNLANE_{name.upper()}"


def unknown_variables(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the variables that look like settings and are none, each with a hint at the nearest known name."""
    known = [*map(variable_of, Settings.model_fields), *CLIENT_VARIABLES]
    return [
        (name, nearest(name, known))
        for name in sorted(environment)
        if name.startswith("RUNLANE_") and name not in known
    ]


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
    if not location:
        return "RUNLANE_*"
    first, *inner = (str(part) for part in location)
    variable = next((known for name in Settings.model_fields if (known := variable_of(name)) == first.upper()), None)
    return ".".join([variable or variable_of(first), *inner])
