"""Settings of the dashboard, and of the proxies in front of a server."""

from __future__ import annotations

from pydantic import Field, field_validator

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
    trusted_proxies: str | None = Field(
        default=None,
        description="Addresses and networks of proxies, separated by commas, such as 10.0.0.0/8. Only their "
        "X-Forwarded-For, -Proto, -Host and -Prefix headers are used. Default: none.",
    )

    @field_validator("trusted_proxies")
    @classmethod
    def _check_networks(cls, value: str | None) -> str | None:
        parse_networks(value or "")
        return value
