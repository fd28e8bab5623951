"""Config and context of LangGraph. Context replaces `config.configurable`; each may be given for the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from runlane.errors import InvalidRequest


def mirror_context(config: Mapping[str, Any], context: Any) -> tuple[dict[str, Any], Any]:
    """Return both. The one that is not given is copied from the other."""
    configurable = config.get("configurable")
    if context and configurable:
        raise InvalidRequest("Both context and config.configurable are given. Send context alone.")
    if configurable:
        return dict(config), configurable
    if context and isinstance(context, dict):
        given = cast("dict[str, Any]", context)
        return {**config, "configurable": given}, given
    return dict(config), {} if context is None else context
