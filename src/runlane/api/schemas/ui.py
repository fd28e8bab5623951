"""Browser sign-in, and the description of the server."""

from __future__ import annotations

from pydantic import Field

from runlane.api.schemas.fields import At, RequestModel, ResponseModel
from runlane.api.schemas.listing import Listing
from runlane.domain.browser_session import BrowserSession

SESSIONS = Listing("sessions", BrowserSession)


class SignIn(RequestModel):
    """The key that a browser signs in with."""

    key: str = Field(max_length=200, description="An API key: sk-rl- and 64 hex digits.")


class InfoFeatures(ResponseModel):
    """The configuration of this server."""

    wakeups: str = Field(description="How processes notify each other: `redis`, `postgres`, or `none` for polling.")
    connected: bool = Field(description="Whether messages of other processes arrive now.")
    database: str = Field(description="`postgresql` or `sqlite`.")
    secrets: bool = Field(description="An encryption key for secrets is configured.")
    worker: bool = Field(description="This process also executes runs.")
    tracing: bool = Field(description="Spans are sent to a collector.")
    action_links: bool = Field(description="Whether action links can be created.")


class InfoLimits(ResponseModel):
    """Limits of requests."""

    page: int = Field(description="The maximum number of entries in a page.")
    ids: int = Field(description="The maximum number of ids in a list request.")
    batch: int = Field(description="The maximum number of runs in a batch.")
    bulk: int = Field(description="The maximum number of runs in a bulk change by filter.")
    body_bytes: int
    input_bytes: int
    tags: int = Field(description="The maximum number of tags of a run.")
    streams_per_key: int


class InfoRetention(ResponseModel):
    """How long records are kept."""

    runs_days: float
    events_days: float | None = Field(
        description="How long the events of ended runs are kept; null means as long as the run."
    )
    audit_days: float
    webhooks_days: float


class ServerInfo(ResponseModel):
    """The server. Without a valid key, only `version`, `sign_in_required` and `server_time` are set."""

    version: str
    sign_in_required: bool = Field(
        description="False if this server accepts requests without a key from its own machine."
    )
    server_time: At
    base_path: str | None = Field(default=None, description="The path before /ui/ and /api/.")
    schema_revision: str | None = None
    trace_url: str | None = Field(default=None, description="The page of a trace, with `{trace_id}` in it.")
    features: InfoFeatures | None = None
    limits: InfoLimits | None = None
    retention: InfoRetention | None = None
