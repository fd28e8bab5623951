"""The hits of a search over records of several kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One record whose id or name contains the words of a search."""

    kind: Annotated[
        str,
        Field(
            description="`run`, `session`, `worker`, `lane`, `orchestration`, `agent`, `tool`, `mcp_server`, "
            "`schedule` or `trigger`."
        ),
    ]
    id: str
    title: Annotated[str, Field(description="For people: a name, or the target and status of a run.")]


@dataclass(frozen=True, slots=True)
class SearchHits:
    """The records that a search has found, the best ones first."""

    hits: tuple[SearchHit, ...]
