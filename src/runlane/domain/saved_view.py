"""Saved views: a page of the dashboard with its filters, under a name that a tenant shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field, with_config

from runlane.domain.wire import WIRE, Timestamp

MAX_VIEWS: Final = 200
MAX_QUERY: Final = 4000


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class SavedView:
    """A page and its filters."""

    tenant: str
    page: Annotated[str, Field(description="The page, such as `runs`.")]
    name: str
    query: Annotated[str, Field(description="The part of the page's address after the question mark.")]
    created_by: Annotated[str, Field(description="The key that has saved it last.")]
    updated_at_us: Annotated[Timestamp, Field(alias="updated_at")]
