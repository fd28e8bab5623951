"""Request bodies for items of the store of graphs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from runlane.api.agent_server.assistant_schemas import Json, Limit, Offset
from runlane.api.agent_server.thread_schemas import MAX_TTL_MINUTES
from runlane.api.schemas.fields import Key, RequestModel, text_only
from runlane.domain.text import dump_json

# Each filter is applied to every item of a search.
MAX_FILTER_BYTES = 16 * 1024
MAX_QUERY = 4000
MAX_INDEXED = 50


def _small(value: Json) -> Json:
    if len(dump_json(value)) > MAX_FILTER_BYTES:
        raise ValueError(f"must have at most {MAX_FILTER_BYTES} bytes as JSON")
    return value


def _label(value: str) -> str:
    if "." in value or "\x1f" in value:
        raise ValueError("must not contain a period or U+001F")
    return _without_nul(value)


def _without_nul(value: str) -> str:
    if "\x00" in value:
        raise ValueError("must not contain NUL, which cannot be stored")
    return text_only(value)


WithoutNul = Annotated[str, AfterValidator(_without_nul)]


Label = Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(_label)]
# A path of fields. See `runlane.domain.item_text`.
IndexPath = Annotated[str, StringConstraints(max_length=200)]
Labels = Annotated[list[Label], Field(max_length=20)]


class ItemPut(RequestModel):
    """An item to store."""

    namespace: Annotated[Labels, Field(min_length=1)]
    key: Key
    value: Json
    index: Literal[False] | Annotated[list[IndexPath], Field(max_length=MAX_INDEXED)] | None = None
    ttl: Annotated[float, Field(gt=0, le=MAX_TTL_MINUTES, description="Minutes.")] | None = None


class ItemDelete(RequestModel):
    """An item to delete."""

    namespace: Labels = Field(default_factory=list[str])
    key: Key


class ItemSearch(RequestModel):
    """The filters and page of a search for items below a namespace prefix."""

    namespace_prefix: Labels = Field(default_factory=list[str])
    filter: Annotated[Json, AfterValidator(_small)] | None = None
    query: Annotated[str, StringConstraints(max_length=MAX_QUERY)] | None = None
    limit: Limit = 10
    offset: Offset = 0
    refresh_ttl: bool | None = None


class NamespaceSearch(RequestModel):
    """The filters and page of a list of namespaces."""

    prefix: Labels | None = None
    suffix: Labels | None = None
    max_depth: Annotated[int, Field(ge=1)] | None = None
    limit: Limit = 100
    offset: Offset = 0
