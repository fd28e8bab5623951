"""Responses that list values. One declaration defines the schema and the response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import create_model

from runlane.api.schemas.fields import ResponseModel
from runlane.api.serializers import JsonBody
from runlane.domain.views import NextCursor
from runlane.domain.wire import to_dict


class Listing:
    """A list of values of `kind` under `key`.

    `cursor` names the field of the last value that the next request sends.
    """

    def __init__(self, key: str, kind: type[Any], *, cursor: str = "") -> None:
        self._key = key
        self._cursor = cursor
        fields: dict[str, Any] = {key: (list[kind], ...)}
        if cursor:
            fields["next_cursor"] = (NextCursor, ...)
        name = f"{key.title().replace('_', '')}{'Page' if cursor else 'List'}"
        self.schema = create_model(name, __base__=ResponseModel, __doc__=f"The {key.replace('_', ' ')}.", **fields)

    def all(self, values: Sequence[Any]) -> JsonBody:
        """Return every value."""
        return JsonBody({self._key: [to_dict(value) for value in values]})

    def page(self, values: Sequence[Any], limit: int, *, more: bool = False) -> JsonBody:
        """Return a page of at most `limit` values. A page that is full or was cut (`more`) has a cursor."""
        following = getattr(values[-1], self._cursor) if values and (more or len(values) == limit) else None
        return JsonBody({self._key: [to_dict(value) for value in values], "next_cursor": following})
