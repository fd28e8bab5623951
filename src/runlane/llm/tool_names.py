"""Names of tools that all providers accept: letters, digits, `_` and `-`, no digit first, at most 64 characters.

Names of tools, tasks and agents may be longer and contain dots; names of MCP tools may also contain slashes. Such names
are translated for the provider and back. The translation depends only on the offered tools, so it is the same for a
whole conversation, even after a takeover.
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
_VALID: Final = re.compile(rf"[A-Za-z_][A-Za-z0-9_-]{{0,{_MAX - 1}}}")
_OTHER: Final = re.compile(r"[^A-Za-z0-9_-]")


class ToolNames:
    """Translates the tool names of one request in both directions."""

    def __init__(self, request: ModelRequest) -> None:
        self._theirs: dict[str, str] = {}
        self._ours: dict[str, str] = {}
        offered = [offer.name for offer in request.offers]
        called = [call.name for line in request.messages for call in line.calls]
        # Valid names are kept, and the names of offered tools do not depend on earlier calls.
        for names in (offered, called):
            self._add(name for name in names if _VALID.fullmatch(name))
            self._add(sorted(names))

    def translate_request(self, request: ModelRequest) -> ModelRequest:
        """Return the request with the names for the provider."""
        if all(name == theirs for name, theirs in self._theirs.items()):
            return request
        return replace(
            request,
            offers=tuple(replace(offer, name=self._theirs[offer.name]) for offer in request.offers),
            messages=tuple(self._line(line) for line in request.messages),
        )

    def ours(self, call: ToolCall) -> ToolCall:
        """Return a call with the original names."""
        return replace(call, name=self._ours.get(call.name, call.name))

    def translate_deltas(self, delta: Delta | None) -> Delta | None:
        """Return a callback that passes pieces on with the original names; None without a callback."""
        if delta is None:
            return None

        def translate(piece: ModelDelta) -> None:
            delta(piece if piece.tool is None else replace(piece, tool=self._ours.get(piece.tool, piece.tool)))

        return translate

    def _add(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._theirs:
                self._theirs[name] = theirs = self._free(name)
                self._ours[theirs] = name

    def _free(self, name: str) -> str:
        plain = _OTHER.sub("_", name) or "tool"
        if not (plain[0].isalpha() or plain[0] == "_"):
            plain = f"_{plain}"
        if len(plain) <= _MAX and plain not in self._ours:
            return plain
        return f"{plain[: _MAX - _HASH - 1]}_{hashlib.sha256(name.encode()).hexdigest()[:_HASH]}"

    def _line(self, line: Message) -> Message:
        calls = tuple(replace(call, name=self._theirs[call.name]) for call in line.calls)
        return replace(line, calls=calls, tool=self._theirs.get(line.tool, line.tool) if line.tool else line.tool)
