"""Compare a sync with the stored definitions: the versions that it expects, and the definitions that it lacks."""

from __future__ import annotations

from collections.abc import Mapping

from runlane.definitions.loader import LoadedDefinitions
from runlane.definitions.problem import KIND_WORDS
from runlane.definitions.schema.definition import Kind
from runlane.errors import VersionMismatch
from runlane.store.definition_rows import Rows


def require_current(before: Rows, expected: Mapping[tuple[Kind, str], str]) -> None:
    """Raise VersionMismatch unless these definitions have these versions."""
    for (kind, name), version in expected.items():
        current = before.get((kind, name))
        if current is None or current.version != version:
            shown = "does not exist" if current is None else f"has the version {current.version}"
            raise VersionMismatch(
                f'The {KIND_WORDS[kind]} "{name}" {shown}, not {version[:80]}. Read it again, and repeat the change.'
            )


def missing_of(loaded: LoadedDefinitions, before: Rows, source: str | None) -> set[tuple[Kind, str]]:
    """Return the stored definitions of the source that the sync does not contain."""
    given = {parsed.key for parsed in loaded.definitions}
    return {key for key, row in before.items() if source is not None and row.source == source and key not in given}
