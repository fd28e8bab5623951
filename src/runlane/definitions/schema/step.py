"""Steps of orchestrations as they are written in JSON.

Every field has one meaning, a default and a description. The step reference and the JSON Schema for editors are
generated from these classes.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from runlane.definitions.schema.base import ID_PATTERN, KEY_PATTERN, DefinitionModel, Id, Seconds, StateKey
from runlane.domain.tenant_event import RUN_EVENT


class StepRetry(DefinitionModel):
    """How a failed step is retried: how often, after which delay, and for which errors."""

    attempts: int = Field(3, ge=1, le=100, description="Total tries, including the first one.")
    backoff_seconds: float = Field(1.0, ge=0, le=3600, description="Delay before the second try; doubles each time.")
    max_backoff_seconds: float = Field(60.0, ge=0, le=3600, description="Upper bound of the delay.")
    on: list[str] = Field(
        default_factory=list,
        description='Codes of the errors that are retried, such as "timeout" or "model_error", even if they are not '
        "retryable. Empty: all retryable errors.",
    )

    def allows(self, code: str, tries: int, *, retryable: bool) -> bool:
        """Return whether a failure with this code is retried. `tries` is the number of failures before it."""
        return tries + 1 < self.attempts and (code in self.on if self.on else retryable)


class _Step(DefinitionModel):
    """The fields of every step."""

    id: Id = Field(description="Unique within the orchestration.")
    name: str = Field("", max_length=200, description="For people; the id if empty.")
    next_step_id: Id | None = Field(None, description="The next step; null ends the run.")
    input_keys: list[StateKey] = Field(
        default_factory=list, description="Keys of the state that the step receives, in this order."
    )
    output_key: StateKey | None = Field(None, description="Key of the state that the output is stored under.")
    timeout_seconds: Seconds = Field(300, description="Execution time after which the step fails with timeout.")
    max_iterations: int = Field(
        3,
        ge=1,
        le=1_000_000,
        description="Total executions of this step through cycles, including the first one. Not for human.",
    )
    on_limit: Literal["fail", "continue"] = Field(
        "fail",
        description="What happens when a cycle reaches the step after max_iterations: it fails with loop_limit, or its "
        "next step follows.",
    )
    retry: StepRetry | None = Field(None, description="How failures of this step are retried; null means not at all.")
    on_error: Id | None = Field(
        None, description="The next step if this one fails after its retries. The state then contains the `error`."
    )
    position_x: float | None = Field(None, description="For editors that draw the graph.")
    position_y: float | None = Field(None, description="For editors that draw the graph.")

    @property
    def title(self) -> str:
        """The name, or the id."""
        return self.name or self.id


class _ModelStep(_Step):
    """A step that calls a model."""

    prompt_template: str | None = Field(None, description="The task, with placeholders; the run's message if empty.")
    model: str | None = Field(None, description="Overrides the model of the agent and the default model.")
    fallback_models: list[str] = Field(
        default_factory=list, max_length=10, description="Models to call, in this order, if the model cannot answer."
    )
    include_full_history: bool | None = Field(None, description="Send the outputs of all earlier steps to the model.")


class LlmStep(_ModelStep):
    """One model call without tools. The answer is the output."""

    type: Literal["llm"] = "llm"
    output_schema: dict[str, Any] | None = Field(
        None,
        description="JSON Schema of an object. The answer must match it and is returned as an object instead of a "
        "string.",
    )
    max_turns: int = Field(3, ge=1, le=100, description="Maximum model calls until an answer matches the schema.")


class AgentStep(_ModelStep):
    """An agent works on a task with its tools until it has an answer. The answer is the output."""

    type: Literal["agent"] = "agent"
    agent_id: Id = Field(description="The agent.")
    max_turns: int = Field(15, ge=1, le=1000, description="Maximum model calls of the agent.")
    max_tool_calls: int = Field(100, ge=1, le=10_000, description="Maximum tool calls of the agent.")
    max_cost_usd: float | None = Field(
        None, gt=0, description="Maximum model cost of the step. No model is called when it is reached."
    )
    allowed_tools: list[str] | None = Field(None, description="Restricts the tools of the agent; all if null.")
    output_schema: dict[str, Any] | None = Field(None, description="Overrides the output_schema of the agent.")


class ToolStep(_ModelStep):
    """One tool is called. Without `arguments`, a model writes the arguments."""

    type: Literal["tool"] = "tool"
    forced_tool: str = Field(min_length=1, max_length=200, description="The tool that is called.")
    arguments: dict[str, Any] | None = Field(None, description="Arguments, with placeholders in their strings.")
    agent_id: Id | None = Field(None, description="The agent whose model writes the arguments.")
    max_turns: int = Field(3, ge=1, le=100, description="Maximum model calls until the arguments are valid.")


class EvaluatorStep(_ModelStep):
    """A model chooses one of the routes.

    If an answer has no valid route, the model is asked again, and then the step fails.
    """

    type: Literal["evaluator"] = "evaluator"
    route_map: dict[str, Id | None] = Field(min_length=1, description="Label to step; null ends the run.")
    route_descriptions: dict[str, str] = Field(
        default_factory=dict, description="Descriptions of the labels for the model."
    )
    evaluator_prompt: str | None = Field(None, description="The question to decide, with placeholders.")
    fallback_route: str | None = Field(None, description="The label that is used if no answer of the model names one.")
    max_turns: int = Field(3, ge=1, le=100, description="Maximum model calls until an answer names a route.")
    agent_id: Id | None = Field(None, description="The agent whose model decides.")


class ParallelStep(_Step):
    """Branches that are executed concurrently, each with its own writes. They join at `next_step_id`."""

    type: Literal["parallel"] = "parallel"
    parallel_branches: list[list[Id]] = Field(
        min_length=1,
        max_length=100,
        description="One id: that step and its successors up to the join. Several: these steps, in this order.",
    )
    max_concurrency: int | None = Field(None, ge=1, le=1000, description="Concurrent branches; all if null.")


class MergeStep(_Step):
    """Combines the values of several branches."""

    type: Literal["merge"] = "merge"
    merge_strategy: Literal["list", "concat", "dict"] = Field(
        "list", description="list: [{source, data}]; concat: text with labels; dict: object of label to value."
    )


class LoopStep(_Step):
    """A body that is repeated: a number of times, while a condition is true, or for each item of a list."""

    type: Literal["loop"] = "loop"
    loop_step_ids: list[Id] = Field(min_length=1, description="The body, in order.")
    loop_count: int | None = Field(None, ge=1, le=1_000_000, description="Number of rounds, for a counted loop.")
    while_condition: str | None = Field(
        None, max_length=4000, description="The loop continues while this expression is true."
    )
    for_each: str | None = Field(
        None, max_length=4000, description="An expression that returns a list; each round has `item` and `index`."
    )
    max_concurrency: int = Field(1, ge=1, le=1000, description="Concurrent items, for `for_each`.")
    max_rounds: int = Field(1000, ge=1, le=1_000_000, description="A while loop fails after this many rounds.")
    collect: bool = Field(True, description="Collect the outputs of all rounds as a list. Turn off for long loops.")

    @model_validator(mode="after")
    def _one_kind(self) -> LoopStep:
        given = [self.loop_count is not None, self.while_condition is not None, self.for_each is not None]
        if sum(given) != 1:
            raise ValueError("give exactly one of loop_count, while_condition and for_each")
        return self


# Which keys may answer a question: the tenant's keys, or only those of platform admins.
AnswerableBy = Literal["tenant", "platform"]
FieldType = Literal["text", "textarea", "number", "boolean", "date", "email", "select", "multiselect"]


class HumanField(DefinitionModel):
    """One field of the form that a person fills in."""

    name: Annotated[str, Field(pattern=KEY_PATTERN, alias="key")] = Field(description="Key in the answer.")
    type: FieldType = Field("text", description="Type of the value.")
    label: str = Field("", max_length=500, description="Label in the form.")
    options: list[str] = Field(default_factory=list, description="The choices; a list, or a string with commas.")
    required: bool = Field(False, description="Whether an answer without it is rejected.")
    default: Any = Field(None, description="Value when the answer does not contain it.")

    @field_validator("options", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, str):
            return [part.strip() for part in value.split(",") if part.strip()]
        return [] if value is None else value

    @model_validator(mode="after")
    def _has_options(self) -> HumanField:
        if self.type in ("select", "multiselect") and not self.options:
            raise ValueError(f'a field of type "{self.type}" needs options')
        return self


class HumanStep(_Step):
    """The run waits for a person without occupying a worker. The answer is the output."""

    type: Literal["human"] = "human"
    human_prompt: str = Field("", max_length=20_000, description="The question, with placeholders.")
    human_fields: list[HumanField] = Field(default_factory=list[HumanField], max_length=100, description="The form.")
    human_channel_id: str | None = Field(None, description="The channel for notifications; stored for integrations.")
    expires_after_seconds: Seconds | None = Field(
        None, description="How long the run waits for an answer; null means forever."
    )
    on_expiry: Id | None = Field(
        None, description="The next step if no answer arrives in time; null means that the step fails."
    )


class TransformStep(_Step):
    """A script in the sandbox that reads a copy of `state` and sets `result`, which is the output."""

    type: Literal["transform"] = "transform"
    transform_code: str = Field(min_length=1, max_length=100_000, description="The script.")


class ExtractJsonStep(_Step):
    """Extracts JSON from text: the whole text, fenced blocks, or balanced braces. No model is called.

    A single value is the output. Several values become a list, in order.
    """

    type: Literal["extract_json"] = "extract_json"
    required: bool = Field(False, description="Fail if no JSON is found; otherwise the output is null.")


class IfElseStep(_Step):
    """Chooses one of two steps by a condition."""

    type: Literal["if_else"] = "if_else"
    if_condition: str = Field(min_length=1, max_length=4000, description="An expression over `state`.")
    if_true_step_id: Id | None = Field(None, description="The next step if it is true; null ends the run.")
    if_false_step_id: Id | None = Field(None, description="The next step if it is false; null ends the run.")


class SwitchStep(_Step):
    """Chooses one of several steps by a value, compared as text."""

    type: Literal["switch"] = "switch"
    switch_expression: str = Field(min_length=1, max_length=4000, description="An expression over `state`.")
    switch_cases: dict[str, Id | None] = Field(min_length=1, description="Value to step; null ends the run.")
    switch_default_step_id: Id | None = Field(None, description="The next step if no case matches; null ends the run.")


class PrintStep(_Step):
    """Renders a template. The resulting string is the output."""

    type: Literal["print"] = "print"
    print_content: str = Field(max_length=100_000, description="The text, with placeholders.")


class EndStep(_Step):
    """Completes the run."""

    type: Literal["end"] = "end"


class OrchestrationStep(_Step):
    """Executes another orchestration with its own state. Its result is the output."""

    type: Literal["orchestration"] = "orchestration"
    orchestration_id: Id = Field(description="The orchestration.")
    message: str | None = Field(None, description="Its message, with placeholders; the run's message if empty.")
    input: dict[str, Any] = Field(
        default_factory=dict, description="Further keys of its state, with placeholders in strings."
    )


class TaskStep(_Step):
    """Calls a registered Python task as a step of this run."""

    type: Literal["task"] = "task"
    task: str = Field(min_length=1, max_length=200, description="The task's name.")
    arguments: dict[str, Any] = Field(
        default_factory=dict, description="Arguments, with placeholders in their strings."
    )


class WaitStep(_Step):
    """The run waits for a time, or for an event sent through the API, without occupying a worker."""

    type: Literal["wait"] = "wait"
    seconds: Seconds | None = Field(None, description="How long to wait.")
    until: str | None = Field(None, max_length=200, description="A date and time, or a placeholder for one.")
    event: Annotated[str, Field(pattern=ID_PATTERN)] | None = Field(None, description="Name of the event.")
    match: dict[str, Any] | None = Field(
        None,
        max_length=20,
        description="Also accept an event of the tenant, not only an event sent to the run: the values that its data "
        "must have, by key or dotted path. May contain placeholders.",
    )
    lookback_seconds: float = Field(
        0,
        ge=0,
        le=31 * 86400,
        description="With match: also accept events that arrived up to this long before the wait.",
    )
    expires_after_seconds: Seconds | None = Field(
        None, description="How long the run waits for the event; null means forever."
    )
    on_expiry: Id | None = Field(
        None, description="The next step if the event does not arrive in time; null means that the step fails."
    )

    @model_validator(mode="after")
    def _one_kind(self) -> WaitStep:
        if sum(value is not None for value in (self.seconds, self.until, self.event)) != 1:
            raise ValueError("give exactly one of seconds, until and event")
        if self.match is not None and (self.event is None or self.event.startswith(RUN_EVENT)):
            raise ValueError("match needs an event, and not the end of a run")
        if self.match is None and self.lookback_seconds:
            raise ValueError("lookback_seconds is only used with match")
        return self


Step = Annotated[
    LlmStep
    | AgentStep
    | ToolStep
    | EvaluatorStep
    | ParallelStep
    | MergeStep
    | LoopStep
    | HumanStep
    | TransformStep
    | ExtractJsonStep
    | IfElseStep
    | SwitchStep
    | PrintStep
    | EndStep
    | OrchestrationStep
    | TaskStep
    | WaitStep,
    Field(discriminator="type"),
]
