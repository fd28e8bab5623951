"""The base class of all definitions: strict parsing, and the patterns of ids and keys."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

# Ids are part of URLs, file names and stored rows. The path of a step consists of ids and must be unambiguous.
MAX_ID_CHARACTERS: Final = 128
ID_PATTERN: Final = rf"^[A-Za-z0-9][A-Za-z0-9_.\-]{{0,{MAX_ID_CHARACTERS - 1}}}$"
KEY_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"

Id = Annotated[str, Field(pattern=ID_PATTERN)]
StateKey = Annotated[str, Field(pattern=KEY_PATTERN)]
Seconds = Annotated[float, Field(gt=0, le=31 * 86400)]


class DefinitionModel(BaseModel):
    """Base class of definitions parsed from JSON. Unknown fields are errors, and instances are immutable."""

    # Validators are built at first use. Together they take megabytes, and an idle worker does not parse definitions.
    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, protected_namespaces=(), defer_build=True
    )
