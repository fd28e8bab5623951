"""The base class of all groups of settings."""

from __future__ import annotations

from pydantic_settings import BaseSettings, SettingsConfigDict


class SettingsGroup(BaseSettings):
    """Fields that belong together. `Settings` combines all groups."""

    # Inputs stay out of errors: one of them may be a URL with a password.
    model_config = SettingsConfigDict(
        env_prefix="RUNLANE_", frozen=True, extra="forbid", env_ignore_empty=True, hide_input_in_errors=True
    )
