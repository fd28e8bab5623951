"""The common base of all definitions: strict parsing, and the patterns of ids and keys."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

# Ids appear in URLs, file names and stored rows; the path of a step consists of ids and must be unambiguous.
ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,127}$"
KEY_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"

Id = Annotated[str, Field(pattern=ID_PATTERN)]
StateKey = Annotated[str, Field(pattern=KEY_PATTERN)]
Seconds = Annotated[float, Field(gt=0, le=31 * 86400)]


class DefinitionModel(BaseModel):
    """Parsed from JSON: unknown fields are errors, and instances are immutable."""

    # Validators are built at first use: together they take megabytes, and an idle worker parses no definition.
    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, protected_namespaces=(), defer_build=True
    )
