"""Input that cannot be accepted: unknown names, invalid arguments, definitions and templates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from runlane.errors.base import RunlaneError, listing, nearest

__all__ = [
    "InputTooLarge",
    "InvalidDefinitions",
    "InvalidFlowControl",
    "InvalidInput",
    "InvalidPlaceholder",
    "InvalidRequest",
    "TemplateError",
    "TemplateTooLarge",
    "UnknownDefinition",
    "UnknownLane",
    "UnknownPlaceholder",
    "UnknownTask",
    "UrlTemplateError",
]


class InvalidRequest(RunlaneError):
    """The request cannot be accepted. Nothing was stored."""

    code = "invalid_request"
    http_status = 422


class UnknownTask(InvalidRequest):
    """No task of this name is registered."""

    code = "unknown_task"
    http_status = 404

    def __init__(self, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        super().__init__(
            f'No task "{name}" is registered{nearest(name, names)}. '
            f"{listing('Registered', names)} Define it with @app.task in the module that you pass to "
            "runlane worker."
        )


class UnknownLane(InvalidRequest):
    """No lane of this name exists."""

    code = "unknown_lane"
    http_status = 404

    def __init__(self, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        super().__init__(
            f'No lane "{name}" exists{nearest(name, names)}. {listing("Lanes", names)} '
            "Name it in @app.task(lane=...) or create it: runlane lanes set NAME --create"
        )


class InvalidInput(InvalidRequest):
    """Arguments do not match the task, or an answer does not match its question; `fields` has each field's problem."""

    code = "invalid_input"
    fields: Mapping[str, str] = MappingProxyType({})

    def __init__(self, message: str, fields: Mapping[str, str] | None = None) -> None:
        if fields is not None:
            self.fields = fields
        super().__init__(message)


class InvalidFlowControl(InvalidRequest):
    """A rule of flow control is not valid, or the input lacks what its key needs; `fields` has each problem."""

    code = "invalid_flow_control"
    fields: Mapping[str, str] = MappingProxyType({})

    def __init__(self, fields: Mapping[str, str]) -> None:
        self.fields = fields
        super().__init__("; ".join(f"{field}: {message}" for field, message in fields.items()))


class InputTooLarge(InvalidRequest):
    """The input is over the size limit."""

    code = "input_too_large"
    http_status = 413


class InvalidDefinitions(InvalidRequest):
    """Definitions have errors. `problems` has each as (location, message); nothing was stored."""

    code = "invalid_definitions"

    def __init__(self, problems: Sequence[tuple[str, str]], details: Sequence[Mapping[str, Any]] = ()) -> None:
        self.problems = list(problems)
        # The same problems, each with its kind, id, step and field.
        self.details = list(details)
        shown = "; ".join(f"{location}: {message}" for location, message in self.problems[:5])
        more = len(self.problems) - 5
        super().__init__(f"The definitions have errors: {shown}{f'; and {more} more' if more > 0 else ''}")


class UnknownDefinition(InvalidRequest):
    """The orchestration, agent, tool or MCP server does not exist, or not in this version."""

    code = "unknown_definition"
    http_status = 404

    def __init__(self, kind: str, name: str, known: Iterable[str], version: str | None = None) -> None:
        names = sorted(known)
        what = kind.replace("mcp_server", "MCP server")
        if version is not None:
            path = f"/api/v2/{kind.replace('_', '-')}s/{name}/versions"
            super().__init__(f'The {what} "{name}" has no version "{version}". See: GET {path}')
            return
        super().__init__(
            f'The {what} "{name}" does not exist{nearest(name, names)}. {listing("Known", names)} '
            "Sync its folder: runlane sync --dir definitions"
        )


class UrlTemplateError(InvalidRequest):
    """A URL or a header of a tool is not valid, or an argument that it needs is missing."""

    code = "invalid_url"


class TemplateError(InvalidRequest):
    """A template cannot be rendered."""

    code = "template_error"


class UnknownPlaceholder(TemplateError):
    """The state has no value for a placeholder. `path` is its reference, `missing` the part that does not exist."""

    code = "unknown_placeholder"

    def __init__(self, path: str, missing: str, within: str, known: Iterable[str]) -> None:
        names = sorted(known)
        self.path = path
        self.missing = missing
        self.known = names
        existing = f" {listing('Known', names)}" if names else ""
        super().__init__(
            f'The placeholder {{state.{path}}} has no value: {within} has no "{missing}"{nearest(missing, names)}.'
            f"{existing} Correct the name, or give the key a value first: by the output_key of an earlier step, a "
            "default in state_schema, or the run's input."
        )


class InvalidPlaceholder(TemplateError):
    """The syntax of a placeholder is not valid."""

    code = "invalid_placeholder"

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(
            f"{text!r} is not a valid placeholder. Write {{state.key}} or {{{{key}}}}, with dots for parts of a value, "
            "as in {state.items.0.title}; to keep it as text, put a backslash before it."
        )


class TemplateTooLarge(TemplateError):
    """A template, or the string rendered from it, is too large."""

    code = "template_too_large"
