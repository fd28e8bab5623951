"""The content that an import adds to a memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from runlane.domain.memory import MAX_METADATA_BYTES, MemoryEntry, MemoryExport, NewEntry
from runlane.domain.text import dump_json, load_json, utf8_size
from runlane.domain.timestamps import format_timestamp

# The fields of an exported entry that the metadata of the imported one keeps.
IMPORTED: Final = "imported"
MAX_IMPORTED_ENTRIES: Final = 1_000
MAX_IMPORTED_FRAGMENTS: Final = 64


@dataclass(frozen=True, slots=True)
class NewFragment:
    """A fragment to write."""

    name: str
    content: str


@dataclass(frozen=True, slots=True)
class MemoryImport:
    """Entries to add, in their order, and fragments to write."""

    entries: Sequence[NewEntry]
    fragments: Sequence[NewFragment] = ()

    def parts(self) -> list[MemoryImport]:
        """Return imports that are small enough for one run each; the last one has the fragments."""
        entries = list(self.entries)
        found: list[MemoryImport] = []
        while entries:
            count = _fitting(entries)
            found.append(MemoryImport(entries[:count]))
            del entries[:count]
        found += [MemoryImport((), [fragment]) for fragment in self.fragments]
        return found


# Below the default of RUNLANE_MAX_INPUT_BYTES, with room for JSON.
_PART_CHARACTERS: Final = 100_000


def _fitting(entries: Sequence[NewEntry]) -> int:
    size = 0
    for index, entry in enumerate(entries[:MAX_IMPORTED_ENTRIES]):
        size += len(entry.text) + len(entry.summary) + len(str(entry.metadata)) + len(str(entry.tags)) + 200
        if size > _PART_CHARACTERS and index:
            return index
    return min(len(entries), MAX_IMPORTED_ENTRIES)


def import_of(exported: MemoryExport) -> MemoryImport:
    """Return the import that restores the content of an exported memory.

    The new entries have ids and times of their own; their metadata has the earlier ones. Corrected entries are imported
    as well, without the relation to their corrections.
    """
    entries = [
        NewEntry(entry.text, entry.summary, _imported_metadata(entry), entry.tags, entry.expires_at_us)
        for entry in exported.entries
    ]
    return MemoryImport(entries, [NewFragment(item.name, item.content) for item in exported.fragments])


def _imported_metadata(entry: MemoryEntry) -> Mapping[str, Any]:
    """Return the metadata with the earlier id and time, or without them if there is no room for them."""
    origin = {"id": entry.id, "created_at": format_timestamp(entry.created_at_us)}
    metadata = {**entry.metadata, IMPORTED: origin}
    return metadata if utf8_size(dump_json(metadata)) <= MAX_METADATA_BYTES else entry.metadata


class ExportRecords:
    """The records that the run of an export has written to its log, collected from the lines in their order."""

    def __init__(self) -> None:
        self._parts: dict[int, dict[int, str]] = {}
        self._last = 0

    def add(self, message: str, fields: Mapping[str, Any] | None) -> None:
        """Add a line. Another attempt repeats records from a number on: they replace those of the lost attempt.

        The memory may have changed in between, so the records of the two attempts must not be mixed.
        """
        if fields is None or "record" not in fields:
            return
        record: int = fields["record"]
        if fields["part"] == 1:
            for repeated in range(record, self._last + 1):
                self._parts.pop(repeated, None)
            self._last = record
        self._parts.setdefault(record, {})[fields["part"]] = message

    def exported(self) -> Mapping[str, Any] | None:
        """Return the JSON of a MemoryExport, or None if no export was written."""
        records: list[dict[str, Any]] = [
            load_json("".join(text for _, text in sorted(found.items()))) for _, found in sorted(self._parts.items())
        ]
        memory = next((record["memory"] for record in records if "memory" in record), None)
        if memory is None:
            return None
        return {
            "memory": memory,
            "entries": [record["entry"] for record in records if "entry" in record],
            "fragments": [record["fragment"] for record in records if "fragment" in record],
        }


def entry_json(entry: NewEntry) -> dict[str, Any]:
    """Return an entry to add as JSON."""
    return {
        "text": entry.text,
        "summary": entry.summary,
        "metadata": dict(entry.metadata),
        "tags": dict(entry.tags),
        "expires_at": None if entry.expires_at_us is None else format_timestamp(entry.expires_at_us),
    }


def import_json(given: MemoryImport) -> Mapping[str, Any]:
    """Return an import as JSON."""
    return {
        "entries": [entry_json(entry) for entry in given.entries],
        "fragments": [{"name": fragment.name, "content": fragment.content} for fragment in given.fragments],
    }
