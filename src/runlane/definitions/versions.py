"""Versions: a definition's content in one canonical form, and the address that follows from it.

What equals its default is left out, so that writing a default down changes no version; so are the times that editors
note, because the database keeps its own. The form is what is stored: anybody can compute its address again.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

import orjson

from runlane.definitions.schema.definition import KINDS, Definition, Kind, Orchestration

MAX_BYTES: Final = 2 * 1024 * 1024
_NOTED_TIMES: Final = {"created_at", "updated_at"}


def canonical(definition: Definition) -> bytes:
    """The content as JSON with sorted keys."""
    body = definition.model_dump(mode="json", exclude_defaults=True, exclude=_NOTED_TIMES)
    if isinstance(definition, Orchestration):
        # The type is each class's default, and the one that tells the classes apart.
        for step, told in zip(definition.steps, body["steps"], strict=True):
            told["type"] = step.type
    return orjson.dumps(body, option=orjson.OPT_SORT_KEYS)


def address(content: bytes) -> str:
    """The version that this content has."""
    return sha256(content).hexdigest()


def restore(kind: Kind, content: bytes | str) -> Definition:
    """The definition that was stored in this form."""
    return KINDS[kind].model_validate_json(content)


def kind_of(definition: Definition) -> Kind:
    """What a definition is."""
    return next(kind for kind, model in KINDS.items() if isinstance(definition, model))


def key_of(definition: Definition) -> str:
    """What a run's pins call it: kind and id, such as agent:writer."""
    return f"{kind_of(definition)}:{definition.id}"
