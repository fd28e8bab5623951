"""Definitions: orchestrations, agents, tools, MCP servers, schedules and triggers as written in JSON.

Every field has one meaning, a default and a description; the reference page and the JSON Schema for editors are
generated from these classes. Checks that need several definitions, or the whole graph, are in `definitions/checks`.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field, model_validator

from runlane.definitions.schema.agent_context import AgentMemory, Compaction
from runlane.definitions.schema.base import DefinitionModel, Id, Seconds, StateKey
from runlane.definitions.schema.step import Step
from runlane.definitions.schema.trigger import Trigger
from runlane.domain.flow_control import FlowControl
from runlane.domain.lane import DEFAULT_LANE, MAX_NAME
from runlane.domain.schedule import ScheduleSettings
from runlane.domain.task import Expose

MAX_STEPS: Final = 500
# The tool with which a model returns an answer that must match a schema.
FINAL_ANSWER: Final = "final_answer"

OnCap = Literal["fail", "ask"]
Effect = Literal["repeatable", "once", "ask"]
ClientSetting = Literal["temperature", "max_tokens", "top_p", "thinking"]
_EFFECT: Final = (
    "What happens if the worker dies during a call and the outcome is unknown. repeatable: the tool is called again. "
    "once, ask: a person decides. ask: a person must also approve every call."
)
_FLOW_CONTROL: Final = "Limits when and how often its runs start, per key."
_EXPOSE: Final = "mcp: MCP clients can call it as a separate tool."
_MAX_OUTPUT: Final = 1024 * 1024


class StateField(DefinitionModel):
    """One key of the state."""

    type: Literal["any", "string", "number", "integer", "boolean", "list", "object"] = Field(
        "any", description="Type of its values, which is checked at every write."
    )
    default: Any = Field(None, description="Initial value.")
    description: str = Field("", description="For people.")


class Orchestration(DefinitionModel):
    """A graph of steps, and the limits of a run."""

    id: Id = Field(description="Name in URLs and files.")
    name: str = Field("", max_length=200, description="For people; the id if empty.")
    description: str = Field("", max_length=20_000, description="For people.")
    steps: list[Step] = Field(min_length=1, max_length=MAX_STEPS, description="The steps, in any order.")
    entry_step_id: Id | None = Field(None, description="The first step of a run; if empty, the first in the list.")
    state_schema: dict[StateKey, StateField] = Field(
        default_factory=dict, description="The declared keys of the state."
    )
    lane: str = Field(DEFAULT_LANE, min_length=1, max_length=MAX_NAME, description="The lane of its runs.")
    max_attempts: int = Field(
        3,
        ge=1,
        le=100,
        description="Total attempts of a run that fails because of an error outside of its steps. A step that fails "
        "after its retries ends the run: configure its `retry`.",
    )
    max_losses: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="Workers that may be lost before a run fails. Default and upper bound: RUNLANE_MAX_LOSSES.",
    )
    max_total_turns: int = Field(100, ge=1, le=10_000_000, description="Maximum number of steps that a run executes.")
    max_total_cost_usd: float | None = Field(
        None, gt=0, description="Maximum model cost of a run. No model is called when it is reached."
    )
    on_cap: OnCap = Field(
        "fail", description="What happens at max_cost_usd: the step fails, or a person is asked to raise the limit."
    )
    timeout_minutes: float = Field(
        30, gt=0, le=31 * 1440, description="Execution time limit of a run, without waiting times."
    )
    max_state_bytes: int = Field(
        4 * 1024 * 1024, ge=1024, le=64 * 1024 * 1024, description="Maximum size of the state."
    )
    answers: dict[str, list[Any]] = Field(
        default_factory=dict, description="Scripts by name, for models named scripted:NAME."
    )
    flow_control: FlowControl | None = Field(None, description=_FLOW_CONTROL)
    expose: Expose | None = Field(None, description=_EXPOSE)
    avatar: str | None = Field(None, description="For editors.")
    trigger: Literal["manual", "scheduled"] = Field("manual", description="For editors.")
    created_at: str | None = Field(None, description="For people.")
    updated_at: str | None = Field(None, description="For people.")

    @property
    def entry(self) -> str:
        """The id of the first step."""
        return self.entry_step_id or self.steps[0].id

    @property
    def title(self) -> str:
        """The name, or the id."""
        return self.name or self.id


class ModelSettings(DefinitionModel):
    """Parameters of model calls. Empty fields have the provider's default."""

    temperature: float | None = Field(default=None, ge=0, le=2, description="Randomness of answers.")
    max_tokens: int | None = Field(default=None, ge=1, le=1_000_000, description="Maximum length of an answer.")
    top_p: float | None = Field(
        default=None, gt=0, le=1, description="Probability mass of the tokens that are considered (nucleus sampling)."
    )
    thinking: Literal["minimal", "low", "medium", "high"] | None = Field(
        default=None, description="Reasoning effort, for models that support it."
    )
    parallel_tool_calls: bool | None = Field(
        default=None, description="Whether the model may call several tools at once."
    )
    timeout_seconds: Seconds | None = Field(default=None, description="Timeout of one call.")


class Agent(DefinitionModel):
    """A model with instructions and tools; with `orchestration_id`, an orchestration that answers like an agent."""

    id: Id = Field(description="Name in URLs, files and steps.")
    name: str = Field("", max_length=200, description="For people; the id if empty.")
    description: str = Field("", max_length=20_000, description="For people, and for agents that may call it.")
    type: Literal["conversational", "analysis", "code", "orchestrator", "delegate", "builder"] = Field(
        "conversational",
        description="orchestrator: executes `orchestration_id`; the other types are labels for people.",
    )
    system_prompt: str = Field("", max_length=200_000, description="The instructions.")
    model: str | None = Field(None, description="The model; the default model if empty.")
    provider: str | None = Field(None, description="Provider of a model name without a prefix.")
    fallback_models: list[str] = Field(
        default_factory=list, max_length=10, description="Models to call, in this order, if the model cannot answer."
    )
    model_settings: ModelSettings = Field(default_factory=ModelSettings, description="Parameters of model calls.")
    client_settings: list[ClientSetting] = Field(
        default_factory=list[ClientSetting],
        max_length=4,
        description="The model settings that requests of OpenAI-compatible clients may override for their run.",
    )
    output_schema: dict[str, Any] | None = Field(
        None,
        description="JSON Schema of an object. The answer must match it and is returned as an object instead of a "
        "string.",
    )
    tools: list[str] = Field(default_factory=list, description='Names of tools, or ["all"].')
    on_missing_tools: Literal["fail", "skip"] = Field(
        "fail",
        description="What happens if one of its tools does not exist. fail: the definition is rejected, and a step "
        "fails. skip: the agent works without the tool, and a warning is emitted.",
    )
    orchestration_id: Id | None = Field(None, description="For type orchestrator: the orchestration to execute.")
    delegate_agent_ids: list[Id] = Field(default_factory=list, description="Agents that it may call as tools.")
    max_turns: int = Field(30, ge=1, le=1000, description="Maximum model calls for one task.")
    history_turns: int = Field(
        10, ge=0, le=1000, description="In a chat: the number of earlier turns that the model receives."
    )
    compaction: Compaction | None = Field(
        None,
        description="Keeps conversations within the model's context window; a chat then includes all of its earlier "
        "turns.",
    )
    memory: AgentMemory | None = Field(None, description="Memory that is kept across conversations.")
    max_cost_usd_per_day: float | None = Field(
        None, gt=0, description="Maximum model cost of the agent per day (UTC). No model is called when it is reached."
    )
    on_cap: OnCap = Field(
        "fail", description="What happens at the daily limit: the step fails, or a person is asked to raise it."
    )
    flow_control: FlowControl | None = Field(None, description=f"{_FLOW_CONTROL} Turns of a chat are not affected.")
    expose: Expose | None = Field(None, description=_EXPOSE)
    answers: list[Any] = Field(default_factory=list, description="Script of the model named scripted.")
    skip_default_tools: bool = Field(True, description="Kept for imported definitions.")
    repos: list[Any] = Field(default_factory=list, description="Kept for imported definitions.")
    db_configs: list[Any] = Field(default_factory=list, description="Kept for imported definitions.")
    avatar: str | None = Field(None, description="For editors.")
    created_at: str | None = Field(None, description="For people.")
    updated_at: str | None = Field(None, description="For people.")

    @model_validator(mode="after")
    def _orchestrator(self) -> Agent:
        if (self.type == "orchestrator") != (self.orchestration_id is not None):
            raise ValueError('orchestration_id is required for agents of type "orchestrator", and only for these')
        if self.compaction is not None and "history_turns" in self.model_fields_set:
            raise ValueError("history_turns has no effect with compaction, which keeps all turns: remove one of them")
        if self.compaction is not None:
            self.compaction.check_instructions(self.system_prompt)
        taken = [] if self.memory is None else [name for name in self.memory.tools if name in self.tools]
        if taken:
            raise ValueError(f"the memory offers a tool named {taken[0]}, too: rename the tool, or limit memory.tools")
        return self


class Tool(DefinitionModel):
    """A function for agents and steps: a web service, a script in the sandbox, a task, or another definition."""

    name: Id = Field(description="Name in agents and steps.")
    label: str = Field("", alias="generalName", max_length=200, description="For people.")
    description: str = Field("", max_length=20_000, description="Description of the tool for the model.")
    tool_type: Literal["http", "python", "task", "orchestration", "agent"] = Field("http", description="Kind of tool.")
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = Field("GET", description="For http.")
    url: str | None = Field(None, max_length=4000, description="For http; {field} is replaced by an argument.")
    headers: dict[str, str] = Field(
        default_factory=dict, description="For http. Secrets as {secret.NAME}, arguments as {field}."
    )
    body: Literal["all", "rest", "body"] = Field(
        "all",
        description="For http with POST, PUT or PATCH: the JSON body. all: all arguments; rest: the arguments without "
        "a placeholder in url or headers; body: the argument named body.",
    )
    code: str | None = Field(None, max_length=200_000, description="For python; arguments are in `args`.")
    task: str | None = Field(None, min_length=1, max_length=200, description="For task: a registered Python task.")
    orchestration_id: Id | None = Field(None, description="For orchestration.")
    agent_id: Id | None = Field(None, description="For agent.")
    input_schema: dict[str, Any] = Field(default_factory=dict, alias="inputSchema", description="JSON Schema.")
    output_schema: dict[str, Any] | None = Field(None, alias="outputSchema", description="JSON Schema.")
    effect: Effect = Field("repeatable", description=_EFFECT)
    requires_approval: bool = Field(False, description="A person must approve every call, and may edit its arguments.")
    timeout_seconds: Seconds = Field(
        30, description="Timeout of a call; agents and orchestrations have their own limits."
    )
    max_output_bytes: int = Field(_MAX_OUTPUT, ge=1, le=16 * _MAX_OUTPUT, description="A longer result is an error.")
    created_at: str | None = Field(None, description="For people.")
    updated_at: str | None = Field(None, description="For people.")

    @property
    def id(self) -> str:
        """The name."""
        return self.name

    @property
    def called_agent(self) -> str | None:
        """The agent that it calls, if any."""
        return self.agent_id if self.tool_type == "agent" else None

    @property
    def called_orchestration(self) -> str | None:
        """The orchestration that it calls, if any."""
        return self.orchestration_id if self.tool_type == "orchestration" else None

    @model_validator(mode="after")
    def _complete(self) -> Tool:
        needs = {
            "http": ("a url", self.url),
            "python": ("code", self.code),
            "task": ("a task", self.task),
            "orchestration": ("an orchestration_id", self.orchestration_id),
            "agent": ("an agent_id", self.agent_id),
        }
        required, given = needs[self.tool_type]
        if not given:
            raise ValueError(f"a tool of type {self.tool_type} needs {required}")
        return self


class McpServer(DefinitionModel):
    """A server that provides tools by the Model Context Protocol. The tools are named server__tool."""

    name: Id = Field(description="Prefix of the names of its tools.")
    label: str = Field("", max_length=200, description="For people.")
    server_type: Literal["stdio", "remote"] = Field("remote", description="A process, or a URL.")
    command: str | None = Field(None, description="For stdio.")
    args: list[str] = Field(default_factory=list, description="For stdio.")
    env: dict[str, str] = Field(default_factory=dict, description="For stdio. Secrets as {secret.NAME}.")
    url: str | None = Field(None, max_length=4000, description="For remote.")
    headers: dict[str, str] = Field(default_factory=dict, description="For remote. Secrets as {secret.NAME}.")
    token: str | None = Field(None, description="For remote: a bearer token, as {secret.NAME}.")
    allowed_tools: list[str] | None = Field(None, description="Tools that may be called; all if empty.")
    effect: Effect = Field("repeatable", description=_EFFECT)
    effects: dict[str, Effect] = Field(default_factory=dict, description="Effects of single tools, by name.")
    timeout_seconds: Seconds = Field(60, description="Timeout of a call.")
    max_output_bytes: int = Field(_MAX_OUTPUT, ge=1, le=16 * _MAX_OUTPUT, description="A longer result is an error.")
    status: str | None = Field(None, description="Kept for imported definitions.")

    @property
    def id(self) -> str:
        """The name."""
        return self.name

    @model_validator(mode="after")
    def _complete(self) -> McpServer:
        if self.server_type == "stdio" and not self.command:
            raise ValueError("a server of type stdio needs a command")
        if self.server_type == "remote" and not self.url:
            raise ValueError("a server of type remote needs a url")
        return self


Kind = Literal["orchestration", "agent", "tool", "mcp_server", "schedule", "trigger"]
Definition = Orchestration | Agent | Tool | McpServer | ScheduleSettings | Trigger
KINDS: Final[
    dict[
        Kind,
        type[Orchestration] | type[Agent] | type[Tool] | type[McpServer] | type[ScheduleSettings] | type[Trigger],
    ]
] = {
    "orchestration": Orchestration,
    "agent": Agent,
    "tool": Tool,
    "mcp_server": McpServer,
    "schedule": ScheduleSettings,
    "trigger": Trigger,
}
