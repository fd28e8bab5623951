"""Versions: the canonical form of a definition, and the address, which is its hash.

Fields with their default value are omitted, so that writing a default does not change the version. The times of editors
are omitted as well, because the database stores its own. The canonical form is stored, so the address can be verified.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

import orjson

from runlane.definitions.schema.definition import KINDS, Definition, Kind, Orchestration

MAX_BYTES: Final = 2 * 1024 * 1024
_NOTED_TIMES: Final = {"created_at", "updated_at"}


def canonical(definition: Definition) -> bytes:
    """Return the content as JSON with sorted keys."""
    body = definition.model_dump(mode="json", exclude_defaults=True, exclude=_NOTED_TIMES)
    if isinstance(definition, Orchestration):
        # The type is the default of each class, but it is needed to restore the class.
        for step, content in zip(definition.steps, body["steps"], strict=True):
            content["type"] = step.type
    return orjson.dumps(body, option=orjson.OPT_SORT_KEYS)


def address(content: bytes) -> str:
    """Return the version of this content."""
    return sha256(content).hexdigest()


def restore(kind: Kind, content: bytes | str) -> Definition:
    """Return the definition from its stored canonical form."""
    return KINDS[kind].model_validate_json(content)


def kind_of(definition: Definition) -> Kind:
    """Return the kind of a definition."""
    return next(kind for kind, model in KINDS.items() if isinstance(definition, model))
