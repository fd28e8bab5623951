"""Request bodies for assistants, and the parts that all request bodies of the agent server share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints

from runlane.api.schemas.fields import Name, RequestModel, text_only

Limit = Annotated[int, Field(ge=1, le=1000)]
Offset = Annotated[int, Field(ge=0, le=2**31 - 1)]
SortOrder = Literal["asc", "desc"]
Json = dict[str, Any]
# Searches compare this with stored text.
SearchedText = Annotated[str, StringConstraints(max_length=1000, pattern=r"^[^\x00]*$"), AfterValidator(text_only)]
NodeName = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class ConfigBody(RequestModel):
    """The parts of a LangGraph config that requests may set."""

    tags: list[str] | None = None
    metadata: Json | None = None
    run_name: str | None = None
    recursion_limit: Annotated[int, Field(ge=1)] | None = None
    max_concurrency: Annotated[int, Field(ge=1)] | None = None
    configurable: Json | None = None

    def given(self) -> Json:
        """Return the fields that the request contains."""
        return self.model_dump(exclude_unset=True, exclude_none=True)


class AssistantCreate(RequestModel):
    """A new assistant."""

    graph_id: Name
    assistant_id: str | None = None
    name: Name | None = None
    description: str | None = None
    config: ConfigBody | None = None
    context: Any = None
    metadata: Json | None = None
    if_exists: Literal["raise", "do_nothing"] = "raise"


class AssistantPatch(RequestModel):
    """Changes of an assistant. Omitted fields keep their value."""

    graph_id: Name | None = None
    name: Name | None = None
    description: str | None = None
    config: ConfigBody | None = None
    context: Any = None
    metadata: Json | None = None


AssistantField = Literal[
    "assistant_id",
    "graph_id",
    "name",
    "description",
    "config",
    "context",
    "metadata",
    "version",
    "created_at",
    "updated_at",
]


class AssistantCount(RequestModel):
    """The filters of a count of assistants."""

    graph_id: SearchedText | None = None
    name: SearchedText | None = None
    metadata: Json | None = None


class AssistantSearch(AssistantCount):
    """The filters, order and page of a search for assistants."""

    limit: Limit = 10
    offset: Offset = 0
    sort_by: Literal["assistant_id", "graph_id", "name", "created_at", "updated_at"] | None = None
    sort_order: SortOrder | None = None
    select: list[AssistantField] | None = None


class VersionSearch(RequestModel):
    """The filters and page of a list of an assistant's versions."""

    metadata: Json | None = None
    limit: Limit = 10
    offset: Offset = 0


class LatestVersion(RequestModel):
    """The version that becomes the current one."""

    version: Annotated[int, Field(ge=1)]
