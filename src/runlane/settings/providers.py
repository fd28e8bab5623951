"""Settings of model providers: keys, base URLs, OpenAI-compatible servers."""

from __future__ import annotations

import os
from typing import Annotated, Final, Self

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    field_validator,
    model_validator,
)

from runlane.settings.group import SettingsGroup

SCRIPTED: Final = "scripted"
# Built-in prefixes of model names, which no other provider may use.
OWN_PROVIDERS: Final = ("anthropic", "google", "ollama", "openai", "openai-chat", "openrouter", SCRIPTED)

Url = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/]+", max_length=2000)]
ProviderName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,39}$")]


class Price(BaseModel):
    """The price of a model."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    input_usd_per_million: float = Field(ge=0)
    output_usd_per_million: float = Field(ge=0)


class CompatibleProvider(BaseModel):
    """An OpenAI-compatible server. `secret` names its key; without it no key is sent."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    base_url: Url
    secret: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")
    prices: dict[str, Price] = Field(default_factory=dict[str, Price])

    @property
    def api_key(self) -> SecretStr | None:
        """The key of this process: the environment variable with the name of the secret."""
        value = os.environ.get(self.secret) if self.secret is not None else None
        return SecretStr(value) if value else None


class ProviderSettings(SettingsGroup):
    """The models that steps and agents can use."""

    default_model: str | None = Field(
        default=None, max_length=200, description="Model of steps and agents that do not name one, such as scripted."
    )
    scripted_models: bool = Field(
        default=True,
        description="Allow models named scripted…, whose answers are in the definitions. With false, sync rejects "
        "them and runs that use one fail.",
    )
    providers: dict[ProviderName, CompatibleProvider] = Field(
        default_factory=dict[str, CompatibleProvider],
        description='OpenAI-compatible servers, as JSON: {"acme": {"base_url": "https://…", "secret": "ACME_KEY"}} '
        "provides models named acme:NAME.",
    )
    openai_api_key: SecretStr | None = Field(
        default=None, validation_alias="openai_api_key", description="For models named openai:… and openai-chat:…"
    )
    openai_base_url: Url = Field(
        default="https://api.openai.com/v1",
        validation_alias="openai_base_url",
        description="Base URL of OpenAI, or of a proxy.",
    )
    anthropic_api_key: SecretStr | None = Field(
        default=None, validation_alias="anthropic_api_key", description="For models named anthropic:…"
    )
    anthropic_base_url: Url = Field(
        default="https://api.anthropic.com",
        validation_alias="anthropic_base_url",
        description="Base URL of Anthropic, or of a proxy.",
    )
    google_api_key: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("google_api_key", "gemini_api_key"),
        description="For models named google:…; GEMINI_API_KEY is read as well.",
    )
    google_base_url: Url = Field(
        default="https://generativelanguage.googleapis.com",
        validation_alias=AliasChoices("google_gemini_base_url", "google_base_url"),
        description="Base URL of the Gemini API, or of a proxy.",
    )
    ollama_base_url: Url = Field(
        default="http://localhost:11434/v1",
        validation_alias="ollama_base_url",
        description="For models named ollama:…",
    )
    ollama_api_key: SecretStr | None = Field(
        default=None, validation_alias="ollama_api_key", description="For an Ollama server that requires one."
    )
    openrouter_api_key: SecretStr | None = Field(
        default=None, validation_alias="openrouter_api_key", description="For models named openrouter:…"
    )
    openrouter_base_url: Url = Field(
        default="https://openrouter.ai/api/v1",
        validation_alias="openrouter_base_url",
        description="Base URL of OpenRouter.",
    )

    @field_validator("providers")
    @classmethod
    def _check_names(cls, providers: dict[str, CompatibleProvider]) -> dict[str, CompatibleProvider]:
        for name in providers:
            if name in OWN_PROVIDERS:
                raise ValueError(f'"{name}" is a built-in provider; choose another name')
        return providers

    @model_validator(mode="after")
    def _check_default_model(self) -> Self:
        if not self.scripted_models and (self.default_model or "").partition(":")[0] == SCRIPTED:
            raise ValueError(
                f'RUNLANE_DEFAULT_MODEL="{self.default_model}" is a scripted model, and RUNLANE_SCRIPTED_MODELS is '
                "false; choose another default model"
            )
        return self
