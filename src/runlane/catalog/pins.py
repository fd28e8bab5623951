"""The pins of a definition: the versions of all definitions that its runs use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from runlane.definitions.dependencies import find_dependencies
from runlane.definitions.problem import Location
from runlane.definitions.schema.definition import Kind
from runlane.definitions.scope import DefinitionScope
from runlane.errors import InvalidDefinitions
from runlane.store.definitions import pins_json

_MAX_PINS: Final = 20_000
# The pins of all definitions of a tenant together, which each sync reads and computes: about 30 MB.
_MAX_ALL_PINS: Final = 300_000


class Pins:
    """The versions that runs of each definition use, as JSON. Their number is limited."""

    def __init__(self, scope: DefinitionScope, versions: Mapping[tuple[Kind, str], str]) -> None:
        self._scope = scope
        self._versions = versions
        self._left = _MAX_ALL_PINS

    def of(self, key: tuple[Kind, str]) -> str | None:
        """Return the pins of a definition; None for a kind without runs."""
        if key[0] not in ("orchestration", "agent"):
            return None
        reached = find_dependencies(key, self._scope)
        self._left -= len(reached)
        problem = None
        if len(reached) > _MAX_PINS:
            problem = f"It uses {len(reached)} definitions; at most {_MAX_PINS} are allowed."
        elif self._left < 0:
            problem = (
                f"It uses {len(reached)} definitions, and all orchestrations and agents of the tenant together use "
                f'more than {_MAX_ALL_PINS}. Name the tools of agents instead of "all".'
            )
        if problem is not None:
            raise InvalidDefinitions([(str(Location(kind=key[0], id=key[1])), problem)])
        return pins_json({f"{kind}:{name}": self._versions[kind, name] for kind, name in reached})
