"""Settings of the HTTP API and of tracing."""

from __future__ import annotations

from pydantic import Field

from runlane.settings.group import SettingsGroup


class ApiSettings(SettingsGroup):
    """Limits on requests and connections of one API process, and where spans are sent."""

    api_max_body_bytes: int = Field(
        default=16 * 1024 * 1024, ge=1024, description="Maximum size of a request body, enforced while it is read."
    )
    api_max_head_bytes: int = Field(
        default=32 * 1024,
        ge=1024,
        le=1024 * 1024,
        description="Maximum size of a request line and headers; each header counts 32 bytes more than its text. "
        "Beyond it: 431.",
    )
    api_head_seconds: float = Field(
        default=10.0, gt=0, le=3600, description="Time for a request line and headers to arrive. Beyond it: 408."
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
        description="Idle connections are closed after this time. It must be longer than that of a proxy in front.",
    )
    api_max_connections: int = Field(
        default=10_000,
        ge=1,
        description="Maximum number of connections per process; less if the limit on open files is lower. Beyond it "
        "idle connections are closed; if none is idle: 503, except for /health, /live and /ready.",
    )
    api_max_streams_per_key: int = Field(
        default=5_000,
        ge=1,
        description="Open event streams and long polls of one API key, per process. Beyond it: 429.",
    )
    api_max_searches_per_key: int = Field(
        default=4, ge=1, description="Concurrent searches of one API key, per process. Others wait a second, then 429."
    )
    api_cors_origins: str | None = Field(
        default=None,
        pattern=r"^(\*|https?://[^/,\s]+(\s*,\s*https?://[^/,\s]+)*)$",
        description="Origins whose web pages may call the API from a browser, separated by commas, such as "
        "https://chat.example.com; * allows all. Default: none.",
    )
    metrics_tenants: bool = Field(
        default=False,
        description="Whether metrics have a label with the tenant. Each tenant adds series, and its name is shown to "
        "everyone who may read metrics.",
    )
    public_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s?#]+$",
        description="The URL under which clients reach the API, such as https://runs.example.com, for the metadata of "
        "the MCP server. Default: the Host of the request, without TLS.",
    )
    mcp_wait_seconds: float = Field(
        default=45.0,
        ge=1,
        le=3600,
        description="How long a call of an exposed tool of the MCP server waits for the end of its run. After it, the "
        "answer has the id of the run, which continues.",
    )
    mcp_authorization_servers: str | None = Field(
        default=None,
        pattern=r"^https?://[^,\s]+(\s*,\s*https?://[^,\s]+)*$",
        description="OAuth servers that return API keys of Runlane as access tokens, separated by commas. The metadata "
        "of the MCP server names them. Default: none.",
    )
    otlp_endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://",
        description="Endpoint for spans (OTLP over HTTP), such as http://localhost:4318. Default: no tracing.",
    )
