"""An option of a run exists everywhere or nowhere: in the value, the keyword arguments and the request bodies."""

from __future__ import annotations

import inspect
import re
from typing import Any, get_type_hints

import pytest

from runlane import App, Client, Context
from runlane.api.schemas.chat import AgentRequest, ChatBody
from runlane.api.schemas.orchestrations import OrchestrationRequest
from runlane.api.schemas.tasks import BatchItem, OptionsBody, TaskRunRequest
from runlane.domain import options
from runlane.domain.flow_control import parse_flow_control
from runlane.domain.options import (
    AgentOptions,
    BulkOptions,
    ChatOptions,
    OrchestrationOptions,
    RunOptions,
    TaskOptions,
    run_options,
)
from runlane.errors import InvalidRequest
from runlane.store.queue.accept import NewRun
from runlane.submit.tasks import TaskRequest, task_run

KINDS: list[type[Any]] = [BulkOptions, TaskOptions, AgentOptions, OrchestrationOptions, ChatOptions]
# The idempotency key of a request is a header; only the runs of a batch have keys in the body.
BODIES: list[tuple[type[OptionsBody], type[Any]]] = [
    (TaskRunRequest, TaskOptions),
    (AgentRequest, AgentOptions),
    (OrchestrationRequest, OrchestrationOptions),
    (ChatBody, ChatOptions),
]


def test_every_option_can_be_given_as_a_keyword_argument_of_the_same_type() -> None:
    value = get_type_hints(RunOptions)
    given: dict[str, Any] = {}
    for kind in KINDS:
        given |= get_type_hints(kind)
    assert given == value


@pytest.mark.parametrize(("body", "kind"), BODIES)
def test_every_option_of_a_request_is_a_field_of_its_body_with_the_same_default(
    body: type[OptionsBody], kind: type[Any]
) -> None:
    expected: frozenset[str] = kind.__optional_keys__ - {"idempotency_key"}
    # A message names its session besides its options.
    found = set(RunOptions._fields) & set(body.model_fields)
    assert found - ({"session_id"} if body is ChatBody else set()) == expected
    assert {name: body.model_fields[name].default for name in expected} == {
        name: RunOptions._field_defaults[name] for name in expected
    }


def test_a_run_of_a_batch_has_every_option_of_a_task() -> None:
    assert set(RunOptions._fields) & set(BatchItem.model_fields) == TaskOptions.__optional_keys__


@pytest.mark.parametrize("method", ["enqueue", "enqueue_many", "orchestrate", "ask", "chat"])
def test_app_and_client_take_the_same_options(method: str) -> None:
    of_app, of_client = (inspect.signature(getattr(kind, method)).parameters["options"] for kind in (App, Client))
    assert of_app.annotation == of_client.annotation
    assert of_app.annotation.removeprefix("Unpack[").removesuffix("]") in vars(options)


def test_a_body_has_what_differs_from_the_defaults_and_gives_the_options_back() -> None:
    assert RunOptions(idempotency_key="once", session_id="s").to_body() == {"session_id": "s"}
    chosen = RunOptions(
        "once", 3, "k", "block", 1.5, True, "https://example.com", "s", "f", ("run_1",), "end", ("a", "b"), "my secret",
        parse_flow_control({"expires_after_seconds": 60.0, "unique": None}),
    )  # fmt: skip
    body = chosen.to_body()
    assert body.keys() == set(RunOptions._fields) - {"idempotency_key"}
    read = OrchestrationRequest.model_validate(body).options("once")
    assert read == chosen
    assert read.to_body() == body
    assert body["flow_control"] == {"expires_after_seconds": 60.0, "unique": None}


def test_an_option_of_another_kind_of_run_is_an_error() -> None:
    with pytest.raises(TypeError, match="session_id is not an option of this call"):
        run_options(TaskOptions, {"session_id": "s"})


_RUN = f"run_{'0' * 32}"
# A value of each option of a task, and the options that it requires.
GIVEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "priority": ({"priority": 1}, {}),
    "ordering_key": ({"ordering_key": "k"}, {}),
    "on_dead": ({"on_dead": "block"}, {}),
    "delay_seconds": ({"delay_seconds": 1}, {}),
    "hold": ({"hold": True}, {}),
    "webhook_url": ({"webhook_url": "https://example.com"}, {}),
    "webhook_secret": ({"webhook_secret": "my secret"}, {"webhook_url": "https://example.com"}),
    "fairness_key": ({"fairness_key": "f"}, {}),
    "after": ({"after": (_RUN,)}, {}),
    "after_on": ({"after_on": "end"}, {"after": (_RUN,)}),
    "tags": ({"tags": ("a",)}, {}),
    "flow_control": ({"flow_control": {"expires_after_seconds": 60.0}}, {}),
}


def _accepted(options: dict[str, Any]) -> NewRun:
    app = App()

    @app.task("job")
    def _job(ctx: Context) -> None: ...

    return task_run(
        app.tasks["job"], TaskRequest("job", {}, RunOptions(idempotency_key="once", **options)), 1_000_000, 10
    )


@pytest.mark.parametrize("option", sorted(TaskOptions.__optional_keys__ - {"idempotency_key"}))
def test_an_option_that_is_given_alone_reaches_the_run(option: str) -> None:
    given, required = GIVEN[option]
    without, with_it = _accepted(required), _accepted({**required, **given})
    assert with_it._replace(id=without.id, fingerprint="") != without._replace(fingerprint="")
    # A secret may be rotated between two tries of one request.
    assert (with_it.fingerprint != without.fingerprint) is (option != "webhook_secret")


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ({"priority": "high"}, "priority='high' must be a whole number"),
        ({"ordering_key": 7}, "The ordering key must be a string, not 7"),
        ({"fairness_key": 7}, "The fairness key must be a string, not 7"),
        ({"idempotency_key": 7}, "The idempotency key must be a string, not 7"),
        ({"delay_seconds": "3"}, "delay_seconds='3' must be between 0 and 31622400"),
        ({"hold": "no"}, "hold='no' must be true or false"),
        ({"webhook_url": 7}, "The webhook URL must be a string"),
        ({"on_dead": 7}, 'on_dead=7 must be "skip" or "block"'),
        ({"tags": "a"}, "tags='a' must be a list of strings"),
        ({"after": _RUN}, f"after='{_RUN}' must be a list of run ids"),
        ({"after_on": 7}, "after_on=7 must be one of success, end, any_failed"),
        ({"tenant": 7}, "7 is not a valid tenant id"),
        ({"trace": "x"}, "trace='x' is not a W3C traceparent"),
        ({"trace": 7}, "trace=7 is not a W3C traceparent"),
    ],
)
def test_an_option_of_a_wrong_type_is_refused_with_its_name(option: dict[str, Any], problem: str) -> None:
    app = App()

    @app.task("job")
    def _job(ctx: Context) -> None: ...

    about = {name: option[name] for name in ("tenant", "trace") if name in option}
    options = RunOptions(**{name: value for name, value in option.items() if name not in about})
    with pytest.raises(InvalidRequest, match=re.escape(problem)):
        task_run(app.tasks["job"], TaskRequest("job", {}, options), 1_000_000, 10, **about)
