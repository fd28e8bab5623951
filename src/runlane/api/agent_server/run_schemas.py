"""Request bodies that start and cancel runs of threads."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import Field, model_validator
from pydantic.alias_generators import to_camel

from runlane.api.agent_server.assistant_schemas import ConfigBody, Json, NodeName
from runlane.api.agent_server.config import mirror_context
from runlane.api.agent_server.thread_schemas import CheckpointBody, CheckpointId, CommandBody
from runlane.api.schemas.fields import Delay, Name, RequestModel, WebhookUrl
from runlane.domain.graph import Durability, GraphRequest, MultitaskStrategy, StreamMode
from runlane.domain.options import RunOptions
from runlane.submit.graphs import GraphRunRequest

Mode = Literal[
    "values", "updates", "messages", "messages-tuple", "custom", "debug", "tasks", "checkpoints", "events", "tools"
]
Nodes = Literal["*"] | list[NodeName]


class ThreadRunBody(RequestModel):
    """A run of an assistant."""

    assistant_id: Name
    input: Any = None
    command: CommandBody | None = None
    config: ConfigBody | None = None
    context: Any = None
    metadata: Json | None = None
    checkpoint: CheckpointBody | None = None
    checkpoint_id: CheckpointId | None = None
    stream_mode: Mode | list[Mode] | None = None
    stream_subgraphs: bool = False
    stream_resumable: Annotated[bool, Field(description="Streams can always be resumed.")] = False
    interrupt_before: Nodes | None = None
    interrupt_after: Nodes | None = None
    durability: Literal["sync", "async", "exit"] | None = None
    checkpoint_during: Annotated[bool | None, Field(description="Older form of durability: false means `exit`.")] = None
    multitask_strategy: Literal["reject", "enqueue", "interrupt", "rollback"] | None = None
    if_not_exists: Literal["create", "reject"] | None = None
    on_disconnect: Literal["cancel", "continue"] = "continue"
    on_completion: Literal["delete", "keep"] | None = None
    webhook: WebhookUrl | None = None
    after_seconds: Delay | None = None
    strict_resume: Annotated[
        bool | None, Field(description="An answer to an interrupt that is not open is always refused.")
    ] = None

    @model_validator(mode="after")
    def _check(self) -> ThreadRunBody:
        if self.durability is not None and self.checkpoint_during is not None:
            raise ValueError("durability and checkpoint_during are both given; send durability alone")
        given = self.checkpoint_id
        if given is not None and self.checkpoint is not None and self.checkpoint.checkpoint_id not in (None, given):
            raise ValueError("checkpoint_id and checkpoint name different checkpoints; send checkpoint alone")
        return self

    @property
    def modes(self) -> tuple[str, ...]:
        """Return the stream modes of the run."""
        given = [self.stream_mode] if isinstance(self.stream_mode, str) else self.stream_mode
        return tuple(dict.fromkeys(given or [StreamMode.VALUES.value]))

    def to_request(self, thread_id: str | None, idempotency_key: str | None) -> GraphRunRequest:
        """Return the request for a run in this thread or, without one, in a new thread."""
        config, context = mirror_context({} if self.config is None else self.config.given(), self.context)
        keeps = self.on_completion == "keep"
        return GraphRunRequest(
            assistant_id=self.assistant_id,
            thread_id=thread_id,
            request=GraphRequest(
                input=self.input,
                command=None if self.command is None else self.command.given(),
                config=config,
                context=context or None,
                checkpoint=self._checkpoint(),
                stream_mode=self.modes,
                stream_subgraphs=self.stream_subgraphs,
                stream_resumable=self.stream_resumable,
                interrupt_before=_nodes(self.interrupt_before),
                interrupt_after=_nodes(self.interrupt_after),
                durability=self._durability(),
            ),
            metadata=self.metadata or {},
            strategy=MultitaskStrategy(self.multitask_strategy or MultitaskStrategy.ENQUEUE),
            creates=self.if_not_exists == "create",
            deletes=thread_id is None and not keeps,
            options=RunOptions(
                idempotency_key=idempotency_key,
                delay_seconds=self.after_seconds or 0,
                webhook_url=self.webhook,
            ),
        )

    def _checkpoint(self) -> Json | None:
        given = {} if self.checkpoint is None else self.checkpoint.given()
        if self.checkpoint_id is not None:
            given["checkpoint_id"] = self.checkpoint_id
        return given or None

    def _durability(self) -> str:
        if self.checkpoint_during is False:
            return Durability.EXIT.value
        return self.durability or Durability.ASYNC.value


class BatchRunBody(ThreadRunBody):
    """A run of a batch."""

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, given: Any) -> Any:
        return with_wire_names(given)


def with_wire_names(given: Any) -> Any:
    """Return a run of a batch with the field names of this API. The JavaScript SDK sends names such as `streamMode`."""
    if not isinstance(given, dict):
        return given
    body = cast("Json", given)
    renamed = {theirs: name for name in ThreadRunBody.model_fields if (theirs := to_camel(name)) != name}
    found: Json = {}
    for name, value in body.items():
        ours = renamed.get(name, name)
        if found.setdefault(ours, value) != value:
            raise ValueError(f"{ours} is given twice, with different values; send {ours} alone")
    return found


class CancelManyBody(RequestModel):
    """The runs to cancel: those of a thread, or all runs with a status."""

    status: Literal["pending", "running", "all"] | None = None
    thread_id: str | None = None
    run_ids: Annotated[list[str], Field(max_length=1000)] | None = None

    @model_validator(mode="after")
    def _check(self) -> CancelManyBody:
        if (self.status is None) == (self.thread_id is None or not self.run_ids):
            raise ValueError("send either status, or thread_id with run_ids")
        return self


def _nodes(given: str | list[str] | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    return (given,) if isinstance(given, str) else tuple(given)
