"""Sources of incoming webhooks."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from runlane.api.schemas.fields import Key, Name, RequestModel, ResponseModel
from runlane.api.schemas.listing import Listing
from runlane.domain.webhook_source import (
    DEFAULT_RATE,
    MAX_SECRET,
    RATE_BOUNDS,
    SourceOptions,
    Verifier,
    WebhookSource,
)
from runlane.triggers.webhooks import SourceChange


class PutSource(RequestModel):
    """The settings of a source. Omitted settings get their defaults."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"verifier": "github", "secret": "a long random string", "event": "github"}]}
    )

    verifier: Verifier = Field(strict=False, description="How requests are verified.")
    secret: str | None = Field(
        default=None,
        min_length=8,
        max_length=MAX_SECRET,
        description="Shared with the sender. Required for github, stripe and slack; otherwise generated if omitted.",
    )
    event: Name | None = Field(default=None, description="The prefix of its event names. Default: its name.")
    header: Key = Field(default="X-Signature", description="For hmac: the header with the signature.")
    prefix: str = Field(default="", max_length=64, description="For hmac: the text before the signature.")
    encoding: str = Field(default="hex", pattern="^(hex|base64)$", description="For hmac.")
    id_header: Key | None = Field(default=None, description="For hmac and bearer: the header with the sender's id.")
    enabled: bool = True
    rate_per_minute: int = Field(default=DEFAULT_RATE, ge=RATE_BOUNDS[0], le=RATE_BOUNDS[1])
    tenant: Name | None = Field(
        default=None, description="The tenant, for platform admins. Other keys use their own tenant."
    )

    def change(self) -> SourceChange:
        """Return the settings to store."""
        options = SourceOptions(self.header, self.prefix, self.encoding, self.id_header)
        return SourceChange(self.verifier, self.secret, self.event, options, self.enabled, self.rate_per_minute)


class HookReceived(ResponseModel):
    """The stored event of a webhook."""

    event_id: str
    duplicate: bool = Field(description="The sender's id was stored before; the response names that event.")


SOURCES = Listing("webhook_sources", WebhookSource)
