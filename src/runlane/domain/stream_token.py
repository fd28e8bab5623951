"""A stream token as clients receive it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from runlane.domain.wire import Timestamp


@dataclass(frozen=True, slots=True)
class StreamToken:
    """A permission to read the streams of one run, conversation or thread. Its repr does not contain it."""

    token: str = field(repr=False)
    expires_at_us: Annotated[Timestamp, Field(alias="expires_at")]
