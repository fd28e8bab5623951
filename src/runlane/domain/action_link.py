"""Action links: one link gives one answer to one question, for one person, without a key.

A link is 32 random bytes in an address; only their SHA-256 is stored. It ends with its question, with the key that
created it, and after 72 hours at most. Opening it changes nothing, because scanners of mail open links; a button gives
the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from pydantic import Field, with_config

from runlane.domain.wire import WIRE, Timestamp

MAX_LINK_SECONDS: Final = 72 * 3600
MAX_PERSON: Final = 200
# Below the root of the server, in front of the token.
LINK_PATH: Final = "/answer/"


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class ActionLink:
    """A link and the answer that it gives."""

    id: str
    run_id: str
    path: Annotated[str, Field(description="The path of the question.")]
    person: Annotated[str, Field(description="For whom it was made; the answer and the audit log name this person.")]
    response: Annotated[Mapping[str, Any] | str, Field(description="The answer.")]
    created_by: Annotated[str, Field(description="The name of the key that made it.")]
    expires_at_us: Annotated[Timestamp, Field(alias="expires_at")]
    url: Annotated[str | None, Field(description="The address to send. It is returned once.")] = None

    def at(self, url: str) -> ActionLink:
        """Return the same link with its address."""
        return replace(self, url=url)
