"""Determine from the definitions which packages a worker has to import before the first call.

The SDK of a provider takes seconds to import, and a worker without agents must not spend memory on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from runlane.domain.text import load_json

MAX_DEFINITIONS: Final = 500

_MODELS: Final = frozenset({"model", "fallback_models"})
_CODE: Final = frozenset({"transform_code", "if_condition", "while_condition", "for_each", "switch_expression", "code"})
_CALLS_A_MODEL: Final = frozenset({"llm", "agent", "evaluator"})


@dataclass(slots=True)
class WarmUpNeeds:
    """The needs of definitions: model prefixes, MCP, the sandbox, and whether any of them uses the default model."""

    prefixes: set[str] = field(default_factory=set[str])
    mcp: bool = False
    sandbox: bool = False
    default_model: bool = False


def prefix_of(model: str) -> str:
    """Return the part of a model's name that names its provider."""
    return model.partition(":")[0]


def needs_of(definitions: Iterable[tuple[str, str]]) -> WarmUpNeeds:
    """Return what these definitions, given as kind and body, need."""
    needs = WarmUpNeeds()
    for kind, body in definitions:
        needs.mcp |= kind == "mcp_server"
        values: list[Any] = [load_json(body)]
        if kind == "agent":
            needs.default_model |= not values[0].get("model")
        while values:
            value = values.pop()
            if isinstance(value, list):
                values += cast("list[Any]", value)
            elif isinstance(value, Mapping):
                table = cast("Mapping[str, Any]", value)
                _inspect(table, needs)
                values += table.values()
    return needs


def _inspect(table: Mapping[str, Any], needs: WarmUpNeeds) -> None:
    for name in _MODELS & table.keys():
        models = cast("list[Any]", table[name]) if isinstance(table[name], list) else [table[name]]
        needs.prefixes |= {prefix_of(model) for model in models if isinstance(model, str) and ":" in model}
    needs.sandbox |= any(table[name] for name in _CODE & table.keys())
    needs.default_model |= table.get("type") in _CALLS_A_MODEL and not table.get("model")
