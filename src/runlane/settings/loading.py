"""The settings of this process: read, validated, and their secrets kept out of its logs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import unquote, urlsplit

from pydantic import AliasChoices, SecretStr, ValidationError, model_validator
from pydantic_settings import SettingsError

from runlane.errors import InvalidSettings, nearest
from runlane.redaction import LOGS
from runlane.settings.api import ApiSettings
from runlane.settings.dashboard import DashboardSettings
from runlane.settings.memory import MemoryMode, MemorySettings
from runlane.settings.providers import ProviderSettings
from runlane.settings.storage import EMBEDDED_FILE, StorageSettings
from runlane.settings.worker import WorkerSettings

# Read by the command line; not settings of a process.
CLIENT_VARIABLES: Final = ("RUNLANE_URL", "RUNLANE_API_KEY")


class Settings(StorageSettings, MemorySettings, WorkerSettings, ApiSettings, DashboardSettings, ProviderSettings):
    """The settings of a process. Durations are in seconds unless the name has another unit."""

    @model_validator(mode="after")
    def _check_memory_mode(self) -> Self:
        if self.memory_mode in ("replicated", "direct") and self.sqlite_path is not None:
            raise ValueError(f"RUNLANE_MEMORY_MODE={self.memory_mode} needs Postgres: set RUNLANE_DATABASE_URL")
        if self.memory_mode == "replicated" and self.memory_path is None:
            raise ValueError("RUNLANE_MEMORY_MODE=replicated needs a file: set RUNLANE_MEMORY_PATH")
        return self

    @property
    def memory_mode_in_force(self) -> MemoryMode:
        """The mode of memory that `auto` stands for, or the one that is set."""
        if self.memory_mode != "auto":
            return self.memory_mode
        if self.sqlite_path is not None:
            return "local"
        return "direct" if self.memory_path is None else "replicated"

    @property
    def memory_outage_in_force(self) -> float:
        """For how long an API key is accepted for the contents of memories without a check; 0 in other modes."""
        if self.memory_mode_in_force != "replicated":
            return 0.0
        wanted = self.memory_outage_seconds
        return self.memory_lease_seconds if wanted is None else min(wanted, self.memory_lease_seconds)

    @property
    def memory_file(self) -> Path:
        """The memory file."""
        if self.memory_path is not None:
            return self.memory_path
        beside = self.sqlite_path or EMBEDDED_FILE
        return beside.with_name(f"{beside.stem}-memory.db")


def load_settings(**overrides: Any) -> Settings:
    """Return the settings of this process; `overrides` take precedence over the environment."""
    try:
        settings = Settings(**overrides)
    except ValidationError as error:
        problems = "; ".join(
            f"{_environment_name(item['loc'])}: {item['msg'].removeprefix('Value error, ')}"
            for item in error.errors(include_url=False, include_input=False)
        )
        raise InvalidSettings(f"The settings are not valid: {problems}.") from None
    except SettingsError as error:
        # The message leaves the value out: it may contain a secret.
        field = next((name for name in Settings.model_fields if f'"{name}"' in str(error)), "*")
        raise InvalidSettings(f"The settings are not valid: {variable_of(field)}: it is not valid JSON.") from None
    redact_settings(settings)
    return settings


def redact_settings(settings: Settings) -> None:
    """Redact the passwords and keys of the settings in the logs and traces of this process."""
    keys = [provider.api_key for provider in settings.providers.values()]
    for value in (*(value for _, value in settings), *keys):
        if isinstance(value, SecretStr):
            for text in _secrets_in(value):
                LOGS.learn(text)


def _secrets_in(value: SecretStr) -> Iterator[str]:
    text = value.get_secret_value()
    if "://" not in text:
        yield from re.split(r"[\s,]+", text)
        return
    try:
        parts = urlsplit(text)
        username, password, host = parts.username or "", parts.password or "", parts.hostname or ""
    except ValueError:
        return
    # A password that equals the user or database name is not a secret, and redacting it would damage many log lines.
    yield from {password, unquote(password)} - {username, host, parts.path.strip("/")}


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    field = Settings.model_fields.get(name)
    alias = field.validation_alias if field is not None else None
    if isinstance(alias, AliasChoices):
        alias = alias.choices[0]
    return alias.upper() if isinstance(alias, str) else f"RUNLANE_{name.upper()}"


def unknown_variables(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the RUNLANE_ variables that are not settings, each with a hint at the nearest known name."""
    known = [*map(variable_of, Settings.model_fields), *CLIENT_VARIABLES]
    return [
        (name, nearest(name, known))
        for name in sorted(environment)
        if name.startswith("RUNLANE_") and name not in known
    ]


def _environment_name(location: tuple[int | str, ...]) -> str:
    if not location:
        return "RUNLANE_*"
    first, *inner = (str(part) for part in location)
    variable = next((known for name in Settings.model_fields if (known := variable_of(name)) == first.upper()), None)
    return ".".join([variable or variable_of(first), *inner])
