"""A task: a named Python function, and the validation of its input.

Input is validated when a run is accepted, by name and type, so that a typo is an error of the caller at once and not a
failed run an hour later. The validation is strict JSON: "7" is not an integer, but "2026-01-31" is a date.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Literal, NotRequired, Required, cast, get_args, get_origin, get_type_hints

import orjson
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError
from typing_extensions import TypedDict

from runlane.domain.flow_control import FlowControl, parse_flow_control
from runlane.domain.lane import DEFAULT_LANE
from runlane.domain.text import check_text
from runlane.domain.validation import listed_errors, too_many
from runlane.errors import ConfigurationError, InputTooLarge, InvalidFlowControl, InvalidInput, nearest

MAX_TASK_NAME = 200
MAX_ATTEMPTS = 1000
# The problems of an input that an error lists.
_MAX_PROBLEMS = 20

TaskFunction = Callable[..., Awaitable[Any]] | Callable[..., Any]
# The place where a task is exposed as a tool of its own: clients of the MCP server.
Expose = Literal["mcp"]
# Types that a Context never has: a first parameter of such a type is an argument.
_JSON_TYPES = (str, int, float, bool, list, dict)


@dataclass(frozen=True, slots=True)
class Task:
    """One registered function. `max_losses` bounds how often a run may be lost with its worker."""

    name: str
    function: TaskFunction
    lane: str
    max_attempts: int
    max_losses: int | None
    timeout_seconds: float | None
    is_async: bool
    signature: str
    origin: str
    arguments: TypeAdapter[dict[str, Any]]
    flow_control: FlowControl | None = None
    expose: Expose | None = None

    def check(self, arguments: Any, max_bytes: int) -> str:
        """Return the arguments as JSON, or raise an error that names the invalid one."""
        text = input_json(arguments, self.name)
        if len(text) > max_bytes:
            raise InputTooLarge(
                f"The input of {self.name} has {len(text)} bytes as JSON; at most {max_bytes} are allowed "
                "(RUNLANE_MAX_INPUT_BYTES). Store the data elsewhere and pass a reference."
            )
        try:
            self.arguments.validate_json(text)
        except ValidationError as error:
            raise InvalidInput(self._explain(error)) from None
        return text.decode()

    @property
    def about(self) -> str:
        """Return the first paragraph of the function's docstring."""
        return " ".join((inspect.getdoc(self.function) or "").split("\n\n")[0].split())

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments with their defaults; empty for types without one."""
        schema = copy.deepcopy(_schema_of(self.arguments))
        for name, argument in schema.get("properties", {}).items():
            # The type of the arguments has no defaults, because the function itself fills them in.
            default = inspect.signature(self.function).parameters[name].default
            if isinstance(default, str | int | float | bool):
                argument["default"] = default
        return schema

    def load(self, text: str) -> dict[str, Any]:
        """Return the arguments as the function's own types."""
        return self.arguments.validate_json(text)

    def _explain(self, error: ValidationError) -> str:
        known = list(inspect.signature(self.function).parameters)[1:]
        problems: list[str] = []
        for item in listed_errors(error, _MAX_PROBLEMS):
            where = ".".join(str(part) for part in item["loc"]) or "the input"
            match item["type"]:
                case "missing":
                    problems.append(f"{where} is missing")
                case "extra_forbidden":
                    problems.append(f"{where} is not an argument{nearest(where, known)}")
                case _:
                    problems.append(f"{where}: {item['msg'][0].lower()}{item['msg'][1:]}, not {_shown(item['input'])}")
        listed = "; ".join(problems) or too_many(error).rstrip(".")
        return f"The input does not match {self.signature}: {listed}."


def make_task(
    function: TaskFunction,
    name: str | None,
    *,
    lane: str = DEFAULT_LANE,
    max_attempts: int = 3,
    max_losses: int | None = None,
    timeout_seconds: float | None = None,
    flow_control: FlowControl | Mapping[str, Any] | None = None,
    expose: Expose | None = None,
) -> Task:
    """Return the task of a function whose first parameter is its Context, by default under the function's name."""
    if not inspect.isroutine(function):
        raise ConfigurationError(
            f"{function!r} is not a function, so it cannot be a task. Decorate a function: @app.task or "
            '@app.task("name").'
        )
    origin = f"{function.__module__}.{function.__qualname__}"
    name = function.__name__ if name is None else name
    try:
        check_text(name, "The task name", MAX_TASK_NAME)
        check_text(lane, "The lane name", 64)
    except InvalidInput as error:
        raise ConfigurationError(f"{origin}: {error}") from None
    if not 1 <= max_attempts <= MAX_ATTEMPTS:
        raise ConfigurationError(f"{origin}: max_attempts={max_attempts} must be between 1 and {MAX_ATTEMPTS}.")
    if max_losses is not None and not 0 <= max_losses <= MAX_ATTEMPTS:
        raise ConfigurationError(f"{origin}: max_losses={max_losses} must be between 0 and {MAX_ATTEMPTS}.")
    if timeout_seconds is not None and not 0 < timeout_seconds < math.inf:
        raise ConfigurationError(f"{origin}: timeout_seconds={timeout_seconds} must be more than 0.")
    if expose is not None and expose not in get_args(Expose):
        raise ConfigurationError(f'{origin}: expose={expose!r} is not a valid place. Use "mcp", or leave it out.')
    rules = None
    if flow_control is not None:
        try:
            rules = parse_flow_control(flow_control)
        except InvalidFlowControl as error:
            raise ConfigurationError(f"{origin}: {error}") from None
    return Task(
        name=name,
        function=function,
        lane=lane,
        max_attempts=max_attempts,
        max_losses=max_losses,
        timeout_seconds=timeout_seconds,
        is_async=inspect.iscoroutinefunction(function),
        signature=_signature_text(name, function),
        origin=origin,
        arguments=_argument_adapter(function, origin),
        flow_control=rules or None,
        expose=expose,
    )


def _argument_adapter(function: TaskFunction, origin: str) -> TypeAdapter[dict[str, Any]]:
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise ConfigurationError(f"{origin} must take its Context first: def name(ctx: Context, ...).")
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise ConfigurationError(
            f"{origin}: its annotations cannot be resolved ({error}). Define or import the types at module level."
        ) from None
    first = parameters[0].name
    if (get_origin(hints.get(first)) or hints.get(first)) in _JSON_TYPES:
        raise ConfigurationError(
            f"{origin} must take its Context first: def name(ctx: Context, {first}, ...). Now {first} would get it."
        )
    shape_of: dict[str, Any] = {}
    takes_any = False
    for parameter in parameters[1:]:
        hint = hints.get(parameter.name, Any)
        match parameter.kind:
            case inspect.Parameter.VAR_KEYWORD:
                takes_any = True
            case inspect.Parameter.POSITIONAL_ONLY | inspect.Parameter.VAR_POSITIONAL:
                raise ConfigurationError(
                    f"{origin}: {parameter} cannot be filled by name. Use ordinary or keyword-only parameters."
                )
            case _:
                required = parameter.default is inspect.Parameter.empty
                shape_of[parameter.name] = Required[hint] if required else NotRequired[hint]
    shape = TypedDict("Arguments", shape_of)  # type: ignore[operator]  # pyright expects a literal here
    config = ConfigDict(extra="allow" if takes_any else "forbid", strict=True, arbitrary_types_allowed=False)
    try:
        return cast("TypeAdapter[dict[str, Any]]", TypeAdapter(with_config(config)(shape)))
    except PydanticUserError as error:
        raise ConfigurationError(
            f"{origin}: a parameter's type cannot be read from JSON ({error.message.splitlines()[0]}) "
            "Use JSON types, dates, dataclasses or pydantic models."
        ) from None


@cache
def _schema_of(arguments: TypeAdapter[dict[str, Any]]) -> dict[str, Any]:
    try:
        schema = arguments.json_schema()
    except PydanticInvalidForJsonSchema:
        return {}
    # Titles only repeat the names, and models are billed by token.
    for part in (schema, *schema["properties"].values()):
        part.pop("title", None)
    return schema


def input_json(arguments: Any, name: str) -> bytes:
    """Return the JSON of a task's arguments; raise for values that JSON would change."""
    if not isinstance(arguments, Mapping):
        raise InvalidInput(
            f"The input of {name} must be an object with its arguments by name, not {_shown(arguments)}."
        )
    try:
        plain = dict(cast("Mapping[str, Any]", arguments))
        text = orjson.dumps(plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"The input of {name} is not JSON: {error}.") from None
    # orjson writes NaN and Infinity as null, which would silently change the input.
    if b"null" in text:
        _refuse_nan(plain, name)
    return text


def _refuse_nan(value: Any, name: str) -> None:
    match value:
        case float() if not math.isfinite(value):
            raise InvalidInput(f"The input of {name} is not JSON: it contains {value}. Use null or text instead.")
        case dict():
            for item in cast("dict[Any, Any]", value).values():
                _refuse_nan(item, name)
        case list() | tuple():
            for item in cast("list[Any]", value):
                _refuse_nan(item, name)
        case _ if is_dataclass(value):
            for item in fields(value):
                _refuse_nan(getattr(value, item.name), name)
        case _:
            pass


def _signature_text(name: str, function: TaskFunction) -> str:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return f"{name}({', '.join(str(parameter) for parameter in parameters)})"


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
