"""Steps of orchestrations as a person writes them, in JSON.

Every field has one meaning, its default and a description; the step reference and the JSON Schema for editors are made
from these classes.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from runlane.definitions.schema.base import ID_PATTERN, KEY_PATTERN, DefinitionModel, Id, Seconds, StateKey


class StepRetry(DefinitionModel):
    """What happens when a step fails: how often it is tried again, how long after, and on which errors."""

    attempts: int = Field(3, ge=1, le=100, description="Tries in all, the first one included.")
    backoff_seconds: float = Field(1.0, ge=0, le=3600, description="Wait before the second try; doubles each time.")
    max_backoff_seconds: float = Field(60.0, ge=0, le=3600, description="No wait is longer than this.")
    on: list[str] = Field(
        default_factory=list,
        description='Codes of the errors that are tried again, such as "timeout" or "model_error", whether or not '
        "they may pass by themselves. Empty: all that may pass by themselves.",
    )

    def allows(self, code: str, tries: int, *, retryable: bool) -> bool:
        """Return whether a failure with this code is retried; `tries` counts the failures before it."""
        return tries + 1 < self.attempts and (code in self.on if self.on else retryable)


class _Step(DefinitionModel):
    """What every step has."""

    id: Id = Field(description="Unique within the orchestration.")
    name: str = Field("", max_length=200, description="For people; the id if empty.")
    next_step_id: Id | None = Field(None, description="The step after this one; none ends the run.")
    input_keys: list[StateKey] = Field(
        default_factory=list, description="State values that the step is given, in this order."
    )
    output_key: StateKey | None = Field(None, description="Where in the state the step's output goes.")
    timeout_seconds: Seconds = Field(300, description="Running time after which the step fails with timeout.")
    max_iterations: int = Field(
        3,
        ge=1,
        le=1_000_000,
        description="How often ways back may make this step execute in all, the first time included. Not for human.",
    )
    on_limit: Literal["fail", "continue"] = Field(
        "fail",
        description="When a way leads back once more: the step fails with loop_limit, or its next step follows.",
    )
    retry: StepRetry | None = Field(None, description="How failures of this step are tried again; none: not at all.")
    on_error: Id | None = Field(
        None, description="The step to go to when this one fails for good. The error is then in the state as `error`."
    )
    position_x: float | None = Field(None, description="For editors that draw the graph.")
    position_y: float | None = Field(None, description="For editors that draw the graph.")

    @property
    def title(self) -> str:
        """The name, or the id."""
        return self.name or self.id


class _ModelStep(_Step):
    """A step that asks a model."""

    prompt_template: str | None = Field(None, description="The task, with placeholders; the run's message if empty.")
    model: str | None = Field(None, description="Wins over the agent's model and the default.")
    fallback_models: list[str] = Field(
        default_factory=list, max_length=10, description="Asked in this order when the model cannot answer."
    )
    include_full_history: bool | None = Field(None, description="Give the model the outputs of all earlier steps.")


class LlmStep(_ModelStep):
    """One model call without tools; its text is the output."""

    type: Literal["llm"] = "llm"
    output_schema: dict[str, Any] | None = Field(
        None, description="JSON Schema of an object. The answer must fit it, and is that object instead of a text."
    )
    max_turns: int = Field(3, ge=1, le=100, description="Tries of the model to give an answer that fits the schema.")


class AgentStep(_ModelStep):
    """An agent works on a task with its tools until it has an answer; the answer is the output."""

    type: Literal["agent"] = "agent"
    agent_id: Id = Field(description="The agent.")
    max_turns: int = Field(15, ge=1, le=1000, description="Model calls that the agent may make.")
    max_tool_calls: int = Field(100, ge=1, le=10_000, description="Tool calls that the agent may make.")
    max_cost_usd: float | None = Field(None, gt=0, description="No model is asked once the step has cost this much.")
    allowed_tools: list[str] | None = Field(None, description="Narrows the agent's tools; none: all of them.")
    output_schema: dict[str, Any] | None = Field(None, description="Wins over the agent's output_schema.")


class ToolStep(_ModelStep):
    """One tool is called. With `arguments` no model is asked; without them a model writes the arguments."""

    type: Literal["tool"] = "tool"
    forced_tool: str = Field(min_length=1, max_length=200, description="The tool that is called.")
    arguments: dict[str, Any] | None = Field(None, description="Arguments, with placeholders in their texts.")
    agent_id: Id | None = Field(None, description="The agent whose model writes the arguments.")
    max_turns: int = Field(3, ge=1, le=100, description="Tries of the model to write arguments that fit.")


class EvaluatorStep(_ModelStep):
    """A model chooses one of the routes. An answer that names none is asked again, then it is an error."""

    type: Literal["evaluator"] = "evaluator"
    route_map: dict[str, Id | None] = Field(min_length=1, description="Label to step; null ends the run.")
    route_descriptions: dict[str, str] = Field(default_factory=dict, description="What each label means.")
    evaluator_prompt: str | None = Field(None, description="What to judge, with placeholders.")
    fallback_route: str | None = Field(None, description="The label taken when the model names none in every try.")
    max_turns: int = Field(3, ge=1, le=100, description="Tries of the model to name a route.")
    agent_id: Id | None = Field(None, description="The agent whose model judges.")


class ParallelStep(_Step):
    """Branches that run at the same time, each with its own writes; they meet at `next_step_id`."""

    type: Literal["parallel"] = "parallel"
    parallel_branches: list[list[Id]] = Field(
        min_length=1,
        max_length=100,
        description="One id: that step and what follows it up to the join. Several: these, in this order.",
    )
    max_concurrency: int | None = Field(None, ge=1, le=1000, description="Branches at a time; none: all.")


class MergeStep(_Step):
    """Values of several branches become one."""

    type: Literal["merge"] = "merge"
    merge_strategy: Literal["list", "concat", "dict"] = Field(
        "list", description="list: [{source, data}]; concat: text with labels; dict: label to value."
    )


class LoopStep(_Step):
    """A body that is repeated: a number of times, while a condition holds, or for each item of a list."""

    type: Literal["loop"] = "loop"
    loop_step_ids: list[Id] = Field(min_length=1, description="The body, in order.")
    loop_count: int | None = Field(None, ge=1, le=1_000_000, description="How often, for a counted loop.")
    while_condition: str | None = Field(None, max_length=4000, description="Goes on as long as this is true.")
    for_each: str | None = Field(
        None, max_length=4000, description="An expression that gives a list; each round has `item` and `index`."
    )
    max_concurrency: int = Field(1, ge=1, le=1000, description="Items at a time, for `for_each`.")
    max_rounds: int = Field(1000, ge=1, le=1_000_000, description="A while loop fails past this many rounds.")
    collect: bool = Field(True, description="Keep each round's outputs as a list. Off for long loops.")

    @model_validator(mode="after")
    def _one_kind(self) -> LoopStep:
        given = [self.loop_count is not None, self.while_condition is not None, self.for_each is not None]
        if sum(given) != 1:
            raise ValueError("give exactly one of loop_count, while_condition and for_each")
        return self


# Whose keys may answer a question: those of the tenant, or those of platform admins alone.
AnswerableBy = Literal["tenant", "platform"]
FieldType = Literal["text", "textarea", "number", "boolean", "date", "email", "select", "multiselect"]


class HumanField(DefinitionModel):
    """One thing that a person is asked for."""

    name: Annotated[str, Field(pattern=KEY_PATTERN, alias="key")] = Field(description="Its key in the answer.")
    type: FieldType = Field("text", description="What kind of answer fits.")
    label: str = Field("", max_length=500, description="What the person reads.")
    options: list[str] = Field(default_factory=list, description="The choices; a list, or text with commas.")
    required: bool = Field(False, description="Whether an answer without it is refused.")
    default: Any = Field(None, description="Its value when the answer leaves it out.")

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
    """The run waits for a person. It holds no worker meanwhile; the answer is the output."""

    type: Literal["human"] = "human"
    human_prompt: str = Field("", max_length=20_000, description="What the person is told, with placeholders.")
    human_fields: list[HumanField] = Field(
        default_factory=list[HumanField], max_length=100, description="What is asked for."
    )
    human_channel_id: str | None = Field(None, description="Where to tell people; kept for integrations.")
    expires_after_seconds: Seconds | None = Field(None, description="How long an answer is awaited; none: for ever.")
    on_expiry: Id | None = Field(None, description="The step to go to when nobody answered; none: the step fails.")


class TransformStep(_Step):
    """A script that sees a copy of `state` and sets `result`, which is the output. It runs in the sandbox."""

    type: Literal["transform"] = "transform"
    transform_code: str = Field(min_length=1, max_length=100_000, description="The script.")


class ExtractJsonStep(_Step):
    """JSON inside a text: the whole, fenced blocks, or balanced braces. No model is asked.

    One value is the output; several become a list, in their order.
    """

    type: Literal["extract_json"] = "extract_json"
    required: bool = Field(False, description="Fail when there is none; otherwise the output is null.")


class IfElseStep(_Step):
    """One of two ways, by a condition."""

    type: Literal["if_else"] = "if_else"
    if_condition: str = Field(min_length=1, max_length=4000, description="An expression over `state`.")
    if_true_step_id: Id | None = Field(None, description="Where to go when it holds; none ends the run.")
    if_false_step_id: Id | None = Field(None, description="Where to go when it does not; none ends the run.")


class SwitchStep(_Step):
    """One of several ways, by a value compared as text."""

    type: Literal["switch"] = "switch"
    switch_expression: str = Field(min_length=1, max_length=4000, description="An expression over `state`.")
    switch_cases: dict[str, Id | None] = Field(min_length=1, description="Value to step; null ends the run.")
    switch_default_step_id: Id | None = Field(None, description="Where to go when no case fits; none ends the run.")


class PrintStep(_Step):
    """A text made from the state is the output."""

    type: Literal["print"] = "print"
    print_content: str = Field(max_length=100_000, description="The text, with placeholders.")


class EndStep(_Step):
    """The run is completed here."""

    type: Literal["end"] = "end"


class OrchestrationStep(_Step):
    """Another orchestration, with a state of its own; its result is the output."""

    type: Literal["orchestration"] = "orchestration"
    orchestration_id: Id = Field(description="The orchestration.")
    message: str | None = Field(None, description="Its message, with placeholders; the run's message if empty.")
    input: dict[str, Any] = Field(default_factory=dict, description="More of its state, with placeholders in texts.")


class TaskStep(_Step):
    """A registered Python task, called as a step of this run."""

    type: Literal["task"] = "task"
    task: str = Field(min_length=1, max_length=200, description="The task's name.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Arguments, with placeholders in their texts.")


class WaitStep(_Step):
    """The run waits for a time or for an event that is sent by the API. It holds no worker meanwhile."""

    type: Literal["wait"] = "wait"
    seconds: Seconds | None = Field(None, description="How long.")
    until: str | None = Field(None, max_length=200, description="A date and time, or a placeholder that gives one.")
    event: Annotated[str, Field(pattern=ID_PATTERN)] | None = Field(None, description="The event's name.")
    expires_after_seconds: Seconds | None = Field(None, description="How long the event is awaited; none: for ever.")
    on_expiry: Id | None = Field(None, description="The step to go to when it did not come; none: the step fails.")

    @model_validator(mode="after")
    def _one_kind(self) -> WaitStep:
        if sum(value is not None for value in (self.seconds, self.until, self.event)) != 1:
            raise ValueError("give exactly one of seconds, until and event")
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
