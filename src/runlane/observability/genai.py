"""Spans and metrics of steps, model calls and tool calls, by OpenTelemetry's conventions for generative AI.

Only names, numbers and ids are recorded. Prompts, answers, arguments, results and error messages are content of
tenants. So a span contains the code of an error; the run contains its message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

from runlane.observability import metrics, tracing

_OFF: Final = nullcontext(None)
# The values of these labels come from definitions, which tenants write.
_LABEL_CHARACTERS: Final = 100


class ModelCallSpan:
    """One model call in progress."""

    def __init__(self, provider: str, model: str, span: Any) -> None:
        self._provider = provider[:_LABEL_CHARACTERS]
        self._model = model[:_LABEL_CHARACTERS]
        self._span = span

    def answered(self, model: str, tokens_in: int, tokens_out: int, cost_usd: float | None) -> None:
        """Record the usage of the answer. `model` is the name that the provider reports."""
        metrics.MODEL_TOKENS.add(self._provider, self._model, "in", count=tokens_in)
        metrics.MODEL_TOKENS.add(self._provider, self._model, "out", count=tokens_out)
        metrics.MODEL_COST_USD.add(self._provider, self._model, count=float(cost_usd or 0.0))
        self.end("completed")
        if self._span is not None:
            self._span.set_attribute("gen_ai.response.model", model)
            self._span.set_attribute("gen_ai.usage.input_tokens", tokens_in)
            self._span.set_attribute("gen_ai.usage.output_tokens", tokens_out)

    def end(self, outcome: str) -> None:
        metrics.MODEL_CALLS.add(self._provider, self._model, outcome[:_LABEL_CHARACTERS])


@contextmanager
def model_call(credential: str, name: str, agent: str | None) -> Generator[ModelCallSpan]:
    """Trace and count a model call. `name` is the full name of the model. A scripted model has no credential."""
    prefix, _, rest = name.partition(":")
    provider = provider_of(credential) or prefix
    model = rest or name
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": model,
        "gen_ai.agent.name": agent,
    }
    with tracing.quiet_span(f"chat {model}", attributes, "client") as span:
        call = ModelCallSpan(provider, model, span)
        try:
            yield call
        except BaseException as error:
            call.end(_code_of(error))
            raise


def provider_of(credential: str) -> str:
    """Return the provider of a credential, without its host and its tenant."""
    return credential.partition("@")[0].partition(":")[0]


def tool_call_span(tool: str, call_id: str) -> AbstractContextManager[Any]:
    """Return a span of a tool call."""
    if tracing.provider() is None:
        return _OFF
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool,
        "gen_ai.tool.call.id": call_id or None,
    }
    return tracing.quiet_span(f"execute_tool {tool}", attributes)


def agent_span(agent: str) -> AbstractContextManager[Any]:
    """Return a span of an agent's execution."""
    if tracing.provider() is None:
        return _OFF
    attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": agent, "gen_ai.agent.id": agent}
    return tracing.quiet_span(f"invoke_agent {agent}", attributes)


def step_span(step_id: str, kind: str, path: str, tries: int) -> AbstractContextManager[Any]:
    """Return a span of one attempt of a step."""
    if tracing.provider() is None:
        return _OFF
    attributes = {
        "runlane.step": step_id,
        "runlane.step.type": kind,
        "runlane.step.path": path,
        "runlane.step.try": tries + 1,
    }
    return tracing.quiet_span(f"step {step_id}", attributes)


def _code_of(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    code = getattr(error, "code", None)
    return code if isinstance(code, str) else "error"
