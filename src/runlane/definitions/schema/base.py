"""What everything that a person writes down has in common: how strictly it is read, and how ids and keys look."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

# Ids appear in paths, file names and stored rows; a path of a step is made of ids and must stay unambiguous.
ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,127}$"
KEY_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"

Id = Annotated[str, Field(pattern=ID_PATTERN)]
StateKey = Annotated[str, Field(pattern=KEY_PATTERN)]
Seconds = Annotated[float, Field(gt=0, le=31 * 86400)]


class DefinitionModel(BaseModel):
    """Read from JSON: unknown fields are errors, and nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, protected_namespaces=())
