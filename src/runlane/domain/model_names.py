"""Find the provider of a model whose name does not name its provider.

The table lists name prefixes of the supported providers. A model that only one provider serves under that name belongs
to this provider. Open weights are served by several, so their names stay ambiguous: guessing would send prompts to a
provider that the user did not choose.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

_OPEN: Final = ("ollama", "openrouter")
# The first entry that matches decides.
_FAMILIES: Final[tuple[tuple[re.Pattern[str], tuple[str, ...]], ...]] = tuple(
    (re.compile(pattern), providers)
    for pattern, providers in (
        (r"[^/]+/", _OPEN),
        (r"gpt-oss", _OPEN),
        (r"(gpt|chatgpt|codex|computer-use)-", ("openai",)),
        (r"o[134](-|$)", ("openai",)),
        (r"claude-", ("anthropic",)),
        (r"gemini-", ("google",)),
        (r"gemma", ("google", *_OPEN)),
        (r"(code)?llama|mistral|mixtral|ministral|codestral|qwen|qwq|deepseek|phi|command-r|granite|smollm", _OPEN),
    )
)


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model name with its provider, or the candidates."""

    name: str | None
    candidates: tuple[str, ...] = ()


def resolve_model(name: str, providers: Mapping[str, Collection[str]]) -> ResolvedModel:
    """Return the name with its provider in front.

    `providers` are the prefixes that are known, each with the names of models that it is known to serve.
    """
    if name.partition(":")[0] in providers:
        return ResolvedModel(name)
    found = [provider for provider in _family(name) if provider in providers]
    found += [provider for provider, models in providers.items() if name in models and provider not in found]
    candidates = tuple(f"{provider}:{name}" for provider in found)
    # A colon follows a provider or precedes a tag, as in llama3:8b, so the provider cannot be determined.
    if len(candidates) == 1 and ":" not in name:
        return ResolvedModel(candidates[0])
    return ResolvedModel(None, candidates)


def _family(name: str) -> tuple[str, ...]:
    return next((providers for pattern, providers in _FAMILIES if pattern.match(name)), ())
