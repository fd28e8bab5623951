"""Saved views."""

from __future__ import annotations

from pydantic import Field

from runlane.api.schemas.fields import Name, RequestModel
from runlane.api.schemas.listing import Listing
from runlane.domain.saved_view import MAX_QUERY, SavedView

VIEWS = Listing("views", SavedView)


class SaveView(RequestModel):
    """Save the filters of a page under a name."""

    query: str = Field(max_length=MAX_QUERY, pattern=r"^[\x20-\x7e]*$", description="The query of the page's URL.")
    tenant: Name | None = Field(
        default=None, description="The tenant, for platform admins. Other keys use their own tenant."
    )
