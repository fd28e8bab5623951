"""Parameters of requests: which are applied, which have no effect because of their value, and which are refused.

No parameter is ignored silently. A parameter that would change the answer and that a run of the agent cannot apply is
refused. A value that has no effect, such as `n: 1` or an empty list of tools, is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from runlane.api.openai.errors import InvalidValue, ParameterRefused, UnknownParameter
from runlane.definitions.schema.definition import ModelSettings
from runlane.domain.tags import MAX_TAG, TAG_PATTERN

_OWN_TOOLS: Final = "The agent has its own tools. Give them to the agent in its definition."
_OWN_SCHEMA: Final = "The format of the answer belongs to the agent. Set output_schema in its definition."
_NOT_OFFERED: Final = "Agents do not support it. Omit it."
# Hints about caching and identity, which do not change the answer according to OpenAI's documentation.
_HINTS: Final = frozenset({"prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"})
# Values that have no effect.
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "n": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "stop": ([],),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("auto", "none"),
    "function_call": ("auto", "none"),
    "parallel_tool_calls": (True,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "verbosity": ("medium",),
    "text": ({}, {"format": {"type": "text"}}, {"verbosity": "medium"}),
    "truncation": ("auto", "disabled"),
    "include": ([],),
}
_REASONS: Final[Mapping[str, str]] = {
    "tools": _OWN_TOOLS,
    "functions": _OWN_TOOLS,
    "tool_choice": _OWN_TOOLS,
    "function_call": _OWN_TOOLS,
    "parallel_tool_calls": "Set parallel_tool_calls in model_settings of the agent's definition.",
    "max_tool_calls": "The agent's definition limits its tool calls. Set max_turns there.",
    "web_search_options": _OWN_TOOLS,
    "response_format": _OWN_SCHEMA,
    "text": _OWN_SCHEMA,
    "prompt": "The instructions belong to the agent. Set system_prompt in its definition.",
}
_KNOWN: Final = frozenset(
    {*_NEUTRAL, *_REASONS, "audio", "prediction", "seed", "moderation", "context_management", "image"}
)
_TAG: Final = re.compile(TAG_PATTERN[1:-1])
_EFFORT: Final = ("minimal", "low", "medium", "high")
USER: Final = "user"


def check_extra(extra: Mapping[str, Any] | None) -> None:
    """Raise an error for the first parameter that is not supported. Null is the same as omitting the parameter."""
    for name, value in (extra or {}).items():
        if value is None or name in _HINTS:
            continue
        if name not in _KNOWN:
            raise UnknownParameter(name[:100], f"Unknown parameter: '{name[:100]}'. Omit it.")
        if not any(_same(value, neutral) for neutral in _NEUTRAL.get(name, ())):
            raise ParameterRefused(name, f"'{name}' is not supported. {_REASONS.get(name, _NOT_OFFERED)}")


def _same(value: Any, neutral: Any) -> bool:
    # True equals 1 in Python, and a boolean is not a number in JSON.
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def model_settings(agent: Mapping[str, Any], given: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
    """Return the settings that a request overrides. `given` maps the name of a setting to the parameter and its value.

    A setting that the agent's definition does not allow clients to override is refused, unless the value is equal.
    """
    allowed: Sequence[str] = agent.get("client_settings") or ()
    own: Mapping[str, Any] = agent.get("model_settings") or {}
    settings: dict[str, Any] = {}
    for name, (param, value) in given.items():
        if value is None or value == own.get(name):
            continue
        if name not in allowed:
            raise ParameterRefused(
                param,
                f"'{param}' is not supported: the agent \"{agent['id']}\" does not allow clients to set it. Leave it "
                f'out, or add "{name}" to client_settings in the agent\'s definition.',
            )
        settings[name] = value
    ModelSettings.model_validate(settings)
    return settings


def effort_setting(param: str, effort: str | None) -> tuple[str, str | None]:
    """Return the reasoning effort as a setting."""
    if effort is not None and effort not in _EFFORT:
        raise InvalidValue(param, f"'{param}' must be one of {', '.join(_EFFORT)}, not {effort[:100]!r}.")
    return param, effort


def request_tags(user: tuple[str, str] | None, metadata: Mapping[str, str] | None) -> tuple[str, ...]:
    """Return the tags of a run: metadata as NAME=VALUE, and the end user. `user` has the parameter and its value."""
    tags = [_tag(f"metadata.{name}"[:200], name, value) for name, value in (metadata or {}).items()]
    if user is not None:
        tags.append(_tag(user[0], USER, user[1]))
    return tuple(tags)


def metadata_of(tags: Sequence[str]) -> dict[str, str]:
    """Return the metadata that the tags of a run contain."""
    pairs = (tag.partition("=") for tag in tags if "=" in tag)
    return {name: value for name, _, value in pairs if name != USER}


def _tag(param: str, name: str, value: str) -> str:
    tag = f"{name}={value}"
    if "=" in name or _TAG.fullmatch(tag) is None:
        raise InvalidValue(
            param,
            f"'{param}' becomes the tag {tag[:100]!r} of the run, which is not valid: a tag has at most {MAX_TAG} of "
            "A-Z, a-z, 0-9 and _ . : / = @ + -, and begins with a letter or digit.",
        )
    return tag
