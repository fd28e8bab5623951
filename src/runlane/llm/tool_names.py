"""Names of tools as all providers take them: letters, digits, `_` and `-`, no digit first, at most 64 characters.

Tools, tasks and agents of ours may have dots and longer names, and those of MCP servers slashes, too. A provider is
told another name for such a one, and what it asks for by that name is ours again. The names follow from what is
offered, so a conversation has the same ones from its first call to its last, even after a takeover.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from runlane.llm.models import Delta, Message, ModelDelta, ModelRequest, ToolCall

_MAX: Final = 64
_HASH: Final = 8
_TAKEN: Final = re.compile(rf"[A-Za-z_][A-Za-z0-9_-]{{0,{_MAX - 1}}}")
_OTHER: Final = re.compile(r"[^A-Za-z0-9_-]")


class ToolNames:
    """The names of one request, in both directions."""

    def __init__(self, request: ModelRequest) -> None:
        self._told: dict[str, str] = {}
        self._ours: dict[str, str] = {}
        offered = [offer.name for offer in request.offers]
        asked = [call.name for line in request.messages for call in line.calls]
        # Names that are fine stay; what is offered does not depend on what was asked for.
        for names in (offered, asked):
            self._add(name for name in names if _TAKEN.fullmatch(name))
            self._add(sorted(names))

    def translate_request(self, request: ModelRequest) -> ModelRequest:
        """The request in the provider's names."""
        if all(name == told for name, told in self._told.items()):
            return request
        return replace(
            request,
            offers=tuple(replace(offer, name=self._told[offer.name]) for offer in request.offers),
            messages=tuple(self._line(line) for line in request.messages),
        )

    def ours(self, call: ToolCall) -> ToolCall:
        """A call in our names."""
        return replace(call, name=self._ours.get(call.name, call.name))

    def telling(self, delta: Delta | None) -> Delta | None:
        """Tell pieces in our names."""
        if delta is None:
            return None

        def tell(piece: ModelDelta) -> None:
            delta(piece if piece.tool is None else replace(piece, tool=self._ours.get(piece.tool, piece.tool)))

        return tell

    def _add(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._told:
                self._told[name] = told = self._free(name)
                self._ours[told] = name

    def _free(self, name: str) -> str:
        plain = _OTHER.sub("_", name) or "tool"
        if not (plain[0].isalpha() or plain[0] == "_"):
            plain = f"_{plain}"
        if len(plain) <= _MAX and plain not in self._ours:
            return plain
        return f"{plain[: _MAX - _HASH - 1]}_{hashlib.sha256(name.encode()).hexdigest()[:_HASH]}"

    def _line(self, line: Message) -> Message:
        calls = tuple(replace(call, name=self._told[call.name]) for call in line.calls)
        return replace(line, calls=calls, tool=self._told.get(line.tool, line.tool) if line.tool else line.tool)
