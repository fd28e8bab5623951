"""Checks of single definitions: JSON Schemas, URL templates, headers, and names of MCP tools."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from runlane.definitions.problem import Location, Problems, listing, near
from runlane.definitions.schema.definition import FINAL_ANSWER, Agent, Definition, McpServer, Orchestration, Tool
from runlane.definitions.schema.step import AgentStep, LlmStep
from runlane.errors import UrlTemplateError
from runlane.templates.json_schema import check_schema
from runlane.templates.url_template import header_placeholders, parse_url

# The protocol allows these names of tools.
_TOOL: Final = re.compile(r"[A-Za-z0-9_./-]{1,128}")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
# Headers of the connection and of message framing. A definition must not set them.
_OF_THE_CONNECTION: Final = {
    "host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect",
    "accept-encoding", "keep-alive", "proxy-connection",
}  # fmt: skip


def check_schemas(definition: Definition, location: Location, problems: Problems) -> None:
    """Report invalid JSON Schemas, and schemas that do not describe an object where one is required."""
    for step, field, schema in _schemas(definition):
        here = location.at(step=step, field=field)
        problem = check_schema(schema)
        if problem is not None:
            problems.error(here, f"It is not a valid JSON Schema: {problem}. Correct it; see https://json-schema.org.")
        elif _of_objects(definition, field) and schema.get("type", "object") != "object":
            what = "Arguments are an object" if field == "input_schema" else "The answer is an object"
            problems.error(
                here, f'{what}, but the schema has the type {schema["type"]!r}. Write "type": "object" with properties.'
            )


def check_tool(tool: Tool, location: Location, problems: Problems) -> None:
    """Report a reserved name, and a URL or header that is not valid."""
    if tool.name == FINAL_ANSWER:
        problems.error(
            location.at(field="name"),
            "This name is reserved for the answers of models with an output_schema. Choose another.",
        )
    if tool.tool_type != "http" or tool.url is None:
        return
    _check_headers(tool.headers, location, problems)
    try:
        template = parse_url(tool.url)
    except UrlTemplateError as error:
        _wrong_url(location, str(error), problems)
        return
    known = tool.input_schema.get("properties")
    if not isinstance(known, Mapping) or not known or tool.input_schema.get("additionalProperties"):
        return
    names = cast("Mapping[str, Any]", known)
    required = cast("list[str]", tool.input_schema.get("required") or [])
    placed = dict.fromkeys(template.fields, "url")
    for header, value in tool.headers.items():
        placed |= dict.fromkeys(header_placeholders(value)[0], f"headers.{header}")
    for name, field in placed.items():
        if name not in names:
            problems.warn(
                location.at(field=field),
                f"input_schema has no property for {{{name}}}{near(name, names)}, so the model does not pass it. "
                f"Properties: {listing(sorted(names))}.",
            )
        elif name in template.path_fields and name not in required:
            problems.warn(
                location.at(field=field),
                f'The path needs {{{name}}}, but input_schema does not require "{name}". Add it to required.',
            )


def check_server(server: McpServer, location: Location, problems: Problems) -> None:
    """Report invalid names of tools, and an invalid URL."""
    if server.server_type == "remote" and server.url is not None:
        _check_headers(server.headers, location, problems)
        try:
            template = parse_url(server.url)
        except UrlTemplateError as error:
            _wrong_url(location, str(error), problems)
        else:
            if template.fields or template.takes_all_arguments:
                problems.error(
                    location.at(field="url"), "Only {secret.NAME} is allowed here: a server has no arguments."
                )
    for field, names in (("allowed_tools", server.allowed_tools or []), ("effects", list(server.effects))):
        for name in names:
            if name.startswith(f"{server.name}__"):
                problems.error(
                    location.at(field=field),
                    f'"{name}" begins with the name of the server. Write "{name.removeprefix(f"{server.name}__")}".',
                )
            elif _TOOL.fullmatch(name) is None:
                problems.error(
                    location.at(field=field),
                    f"{name[:100]!r} is not a valid tool name. Use 1 to 128 of A-Z, a-z, 0-9, '_', '-', '.' and '/'.",
                )
    if server.allowed_tools is not None:
        for name in server.effects:
            if name not in server.allowed_tools:
                problems.warn(
                    location.at(field="effects"),
                    f'"{name[:100]}"{near(name, server.allowed_tools)} is not in allowed_tools, so it is never called.',
                )


def _wrong_url(location: Location, why: str, problems: Problems) -> None:
    here = location.at(field="url")
    # A URL with a credential was already reported.
    if all(problem.location != here for problem in problems.errors):
        problems.error(here, why)


def _check_headers(headers: Mapping[str, str], location: Location, problems: Problems) -> None:
    for name, value in headers.items():
        here = location.at(field=f"headers.{name}")
        if _HEADER.fullmatch(name) is None:
            problems.error(here, "This is not a valid name of a header. Use letters, digits and '-'.")
        elif name.lower() in _OF_THE_CONNECTION:
            problems.error(here, "This header is set by the HTTP client. Remove it.")
        elif "\n" in value or "\r" in value:
            problems.error(here, "A header must not contain line breaks. Remove them.")


def _schemas(definition: Definition) -> Iterator[tuple[str | None, str, Mapping[str, Any]]]:
    match definition:
        case Orchestration():
            for step in definition.steps:
                if isinstance(step, (LlmStep, AgentStep)) and step.output_schema is not None:
                    yield step.id, "output_schema", step.output_schema
        case Agent() if definition.output_schema is not None:
            yield None, "output_schema", definition.output_schema
        case Tool():
            yield None, "input_schema", definition.input_schema
            if definition.output_schema is not None:
                yield None, "output_schema", definition.output_schema
        case _:
            return


def _of_objects(definition: Definition, field: str) -> bool:
    """Return whether the schema must describe an object. The result of a tool may be any value."""
    return field == "input_schema" or not isinstance(definition, Tool)
