"""Settings of the dashboard, and of the proxies in front of a server."""

from __future__ import annotations

from typing import Self

from pydantic import Field, SecretStr, field_validator, model_validator

from runlane.addresses import parse_networks
from runlane.settings.group import SettingsGroup


class DashboardSettings(SettingsGroup):
    """Whether and where the dashboard is served."""

    ui: bool = Field(default=True, description="Serve the dashboard under /ui/.")
    ui_base_path: str | None = Field(
        default=None,
        pattern=r"^(/[A-Za-z0-9._~-]+)+$",
        max_length=200,
        description="The path under which a proxy publishes this server, such as /runlane. Default: none.",
    )
    action_links: bool = Field(
        default=False,
        description="Allow links that answer one question without a key, for mail and chat. Everyone who has a link "
        "may use it.",
    )
    slack_signing_secret: SecretStr | None = Field(
        default=None,
        description="The signing secret of a Slack app, whose buttons may then answer questions: the value of a button "
        "is the token of an action link. Needs RUNLANE_ACTION_LINKS and RUNLANE_SLACK_USERS. Default: none.",
    )
    slack_users: str | None = Field(
        default=None,
        pattern=r"^[UW][A-Z0-9]+(\s*,\s*[UW][A-Z0-9]+)*$",
        description="The ids of the Slack users who may answer, separated by commas, such as U024BE7LH. Default: none.",
    )
    trace_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s{}]+\{trace_id\}[^\s{}]*$",
        max_length=2000,
        description="The page of a trace in your tracing system, such as https://traces.example.com/trace/{trace_id}. "
        "The dashboard links the trace of a run to it. Default: none.",
    )
    trusted_proxies: str | None = Field(
        default=None,
        description="Addresses and networks of proxies, separated by commas, such as 10.0.0.0/8. Only their "
        "X-Forwarded-For, -Proto, -Host and -Prefix headers are used. Default: none.",
    )

    @property
    def slack_user_ids(self) -> frozenset[str]:
        """The ids of the Slack users who may answer questions."""
        return frozenset(part.strip() for part in (self.slack_users or "").split(",") if part.strip())

    @model_validator(mode="after")
    def _check_slack(self) -> Self:
        if self.slack_signing_secret is not None and not (self.action_links and self.slack_user_ids):
            raise ValueError("RUNLANE_SLACK_SIGNING_SECRET needs RUNLANE_ACTION_LINKS=true and RUNLANE_SLACK_USERS")
        return self

    @field_validator("trusted_proxies")
    @classmethod
    def _check_networks(cls, value: str | None) -> str | None:
        parse_networks(value or "")
        return value
