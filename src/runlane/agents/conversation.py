"""Conversations with a model: one turn at a time, each answer stored in the journal before it is used.

An answer in the journal is not requested again. A retryable failure is retried with backoff, then the fallback models
are called in order. A throttled call slows down all users of its credential. A long wait releases the worker slot.
A call continues even if its step is abandoned: it is billed, so its answer is stored. An answer is stored before its
slot among the calls in flight is released, and a call that waited for a slot checks the budget again. So a cap is
exceeded only by the calls that were in flight when it was reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from runlane.agents.compaction import estimate_tokens
from runlane.agents.delta_stream import DeltaStream
from runlane.agents.inflight import InflightCall
from runlane.agents.journal import Journal
from runlane.definitions.schema.definition import Agent, ModelSettings
from runlane.definitions.schema.step import AgentStep, EvaluatorStep, LlmStep, ToolStep
from runlane.domain.backoff import backoff_seconds
from runlane.domain.events import EventType
from runlane.domain.text import utf8_size
from runlane.failpoints import failpoint
from runlane.interpreter.failure import StepFailed, timeout_message
from runlane.llm.models import (
    DelayedModel,
    Message,
    Model,
    ModelDelta,
    ModelFailed,
    ModelReply,
    ModelRequest,
    ToolCall,
    ToolOffer,
)
from runlane.observability import metrics
from runlane.observability.genai import model_call, provider_of
from runlane.rate_limits.limiter import CallSlot, Limiter
from runlane.rate_limits.queue import LimitTimeout
from runlane.redaction import Redactor
from runlane.steps.context import StepContext, visits_before
from runlane.steps.wait_steps import StepWait, Suspend, WaitKind
from runlane.store.orchestration.calls import CallKind

# An estimate, to reserve tokens at a provider; the true number corrects it.
_CHARACTERS_PER_TOKEN: Final = 4
_ANSWER_TOKENS: Final = 500
# The bound of a conversation in multiples of RUNLANE_MAX_STEP_BYTES, because tool results accumulate over the turns.
_MAX_CONVERSATION: Final = 4
# If a provider counts more tokens than estimated, its count is used, up to this factor.
_MAX_SCALE: Final = 4.0
# A longer delay of a model releases the worker slot.
_SHORT_DELAY_SECONDS: Final = 1.0

Call = Callable[[InflightCall], Coroutine[Any, Any, ModelReply]]
AsksModels = LlmStep | AgentStep | ToolStep | EvaluatorStep


class Conversation:
    """The messages to and from a model. `journal` is that of the step, or its part that belongs to a tool call."""

    def __init__(
        self, context: StepContext[AsksModels], agent: Agent | None, journal: Journal, *, model: str | None
    ) -> None:
        self._context = context
        self._agent = agent
        self._journal = journal
        model_context = context.model_context(agent)
        find = context.services.models.find
        names = [model, *(context.step.fallback_models or (agent.fallback_models if agent is not None else ()))]
        self._models = [find(name, model_context) for name in names]
        self._settings = agent.model_settings if agent is not None else ModelSettings()
        self._instructions = agent.system_prompt if agent is not None else ""
        self._model = model
        # The ratio of the provider's token count to the estimate; answers in the journal contain the count.
        self.token_scale = 1.0
        self.turn = 0
        self.messages: list[Message] = []

    def add_request(self, instructions: str, settings: Mapping[str, Any]) -> None:
        """Add instructions and settings of the request that started the run."""
        self._instructions = "\n\n".join(text for text in (self._instructions, instructions) if text)
        if settings:
            self._settings = self._settings.model_copy(update=dict(settings))

    def add_user_message(self, text: str) -> None:
        """Add a message for the model's next turn."""
        self.messages.append(Message("user", text))

    def refuse(self, why: str) -> None:
        """Add the reason why the last answer is rejected.

        The calls in that answer are not made, and the reason becomes their result.
        """
        calls = self.messages[-1].calls
        if not calls:
            self.add_user_message(why)
        for call in calls:
            self.answer_call(call, why, failed=True)

    def answer_call(self, call: ToolCall, text: str, *, failed: bool = False) -> None:
        """Add the result of a call."""
        self.messages.append(Message("tool", text, tool=call.name, call_id=call.id, failed=failed))

    def estimate(self, offers: Sequence[ToolOffer]) -> int:
        """Return an estimate of the tokens of the next request."""
        return math.ceil(estimate_tokens(self.messages, self._instructions, offers) * self.token_scale)

    def estimate_fixed(self, offers: Sequence[ToolOffer]) -> int:
        """Return an estimate of the tokens that every request has: instructions and tools."""
        return math.ceil(estimate_tokens((), self._instructions, offers) * self.token_scale)

    def learn_scale(self, messages: Sequence[Message], offers: Sequence[ToolOffer], counted: int) -> None:
        """Correct later estimates by the tokens that a provider counted for a request with these messages."""
        estimated = max(1, estimate_tokens(messages, self._instructions, offers))
        self.token_scale = min(_MAX_SCALE, max(self.token_scale, counted / estimated))

    def of_summary(self, journal: Journal, instructions: str, model: str | None, max_tokens: int) -> Conversation:
        """Return a conversation in which a summary of this one is written."""
        writer = Conversation(self._context, self._agent, journal, model=model or self._model)
        writer._instructions = instructions
        own = {"max_tokens": max_tokens, "parallel_tool_calls": None, "thinking": None}
        writer._settings = self._settings.model_copy(update=own)
        return writer

    async def ask(self, offers: Sequence[ToolOffer] = (), *, must_call: bool = False) -> ModelReply:
        """Return the next answer, which is now part of the conversation and its cost."""
        key = f"model/{self.turn}"
        reply = self._journal.find_reply(key)
        if reply is None:
            reply = await self._answer(key, tuple(offers), must_call)
        if self._agent is not None and self._agent.compaction is not None:
            self.learn_scale(self.messages, offers, reply.tokens_in)
        self.turn += 1
        self.messages.append(Message("assistant", reply.text, calls=reply.calls, raw=reply.raw))
        return reply

    async def _answer(self, key: str, offers: tuple[ToolOffer, ...], must_call: bool) -> ModelReply:
        context = self._context
        self._check_size()
        if self._journal.find(self._delay_key(self._models[0][1])) is None:
            await context.emit(EventType.MODEL_REQUEST, message=f"Asks {self._models[0][0]}", turn=self.turn + 1)
        request = ModelRequest(
            model="",
            messages=tuple(self.messages),
            instructions=self._instructions,
            offers=offers,
            must_call=must_call,
            settings=self._settings,
            key=f"{context.pending.path}#{self.turn}",
            number=visits_before(context.pending) + context.pending.tries + self.turn,
        )
        return await self._first_available(request, key)

    def _check_size(self) -> None:
        most = _MAX_CONVERSATION * self._context.services.max_step_bytes
        size = sum(utf8_size(message.text) for message in self.messages)
        if size > most:
            raise StepFailed(
                "prompt_too_large",
                f'The conversation of step "{self._context.step.id}" has {size} bytes; at most {most} are allowed '
                f"({_MAX_CONVERSATION} times RUNLANE_MAX_STEP_BYTES). Let its tools return less.",
            )

    async def _keep(self, flight: InflightCall, turn: int, reply: ModelReply, credential: str) -> ModelReply:
        flight.answered = True
        reply = _redacted_reply(reply, self._context.services.redactor)
        failpoint("call.answered")
        # A scripted answer costs nothing, whatever cost it reports.
        if reply.cost_usd is None and credential:
            warning = await self._context.unpriced_warning(reply.model)
            if warning is not None:
                self._context.note(EventType.STEP_WARNING, message=warning, code="price_unknown")
        self._context.note(
            EventType.MODEL_RESPONSE,
            answer=flight.kept_as,
            turn=turn,
            model=reply.model,
            text=reply.text,
            **({"thinking": reply.thinking} if reply.thinking else {}),
            tool_calls=[{"id": call.id, "name": call.name, "arguments": dict(call.arguments)} for call in reply.calls],
            tokens_in=reply.tokens_in,
            tokens_out=reply.tokens_out,
            cost_usd=reply.cost_usd,
        )
        await self._journal.keep_reply(flight.kept_as, reply, self._agent.id if self._agent is not None else None)
        return reply

    async def _first_available(self, request: ModelRequest, key: str) -> ModelReply:
        """Return the answer of the first model that gives one."""
        *first, last = self._models
        for position, (name, model) in enumerate(first):
            try:
                return await self._with_retries(model, replace(request, model=name), key)
            except ModelFailed as error:
                following = self._models[position + 1][0]
                message = f"{name} cannot answer; calling {following}: {error.message}"
                await self._context.emit(EventType.STEP_WARNING, message=message, code=error.code)
        return await self._with_retries(last[1], replace(request, model=last[0]), key)

    async def _with_retries(self, model: Model, request: ModelRequest, key: str) -> ModelReply:
        """Call a model, with the retries of the policy."""
        policy = self._context.services.retry_policy
        credential = await model.credential()
        tries = 0
        while True:
            tries += 1
            try:
                return await self._once(model, credential, request, key)
            except ModelFailed as error:
                # A scripted failure is intended, so other processes need not back off for it.
                if not error.retryable or not credential or tries >= policy.tries:
                    raise
                seconds = error.retry_after_seconds
                if seconds is None:
                    first, longest = policy.backoff_seconds, policy.max_backoff_seconds
                    jitter = random.random()  # noqa: S311 - jitter
                    seconds = backoff_seconds(tries, jitter, first_seconds=first, longest_seconds=longest)
                await self._context.emit(
                    EventType.STEP_WARNING, message=f"{error.message} Retry in {seconds:.1f} s.", code=error.code
                )
                if seconds > policy.hold_seconds:
                    raise self._later(error.message, seconds) from error
                await asyncio.sleep(seconds)

    async def _once(self, model: Model, credential: str, request: ModelRequest, key: str) -> ModelReply:
        context, limiter = self._context, self._context.services.limiter
        await self._check_budget()
        if not credential:
            return await self._call(model, await self._after_delay(model, request), key)
        has_waited = False

        async def on_wait(reason: str) -> None:
            nonlocal has_waited
            has_waited = True
            await context.emit(EventType.WAITING, reason=reason)

        began = time.monotonic()
        try:
            slot = await limiter.acquire(
                credential,
                tokens=_estimate(request),
                timeout_seconds=context.services.retry_policy.hold_seconds,
                on_wait=on_wait,
            )
        except LimitTimeout as wait:
            raise self._later(wait.reason, wait.retry_in_seconds) from wait
        finally:
            metrics.PROVIDER_WAIT_SECONDS.observe(time.monotonic() - began, provider_of(credential))
        async with contextlib.AsyncExitStack() as held:
            await held.enter_async_context(slot)
            # No tokens are used until the call is made.
            slot.tokens_used = 0
            if has_waited:
                await self._check_budget()
            return await self._call(
                model, request, key, _HeldSlot(limiter, credential, slot, held, context.services.redactor)
            )

    async def _after_delay(self, model: Model, request: ModelRequest) -> ModelRequest:
        """Return the request after the model's own delay. A long delay releases the worker slot."""
        delay = model.delay_before_answer(request) if isinstance(model, DelayedModel) else 0.0
        if delay <= _SHORT_DELAY_SECONDS:
            return request
        begun, limit = self._delay_key(model), self._context.step.timeout_seconds
        over = f"{begun}/over"
        if self._journal.find(over) is None:
            if self._journal.find(begun) is None:
                await self._journal.keep(CallKind.BEGUN, begun, {"seconds": delay})
            # The journal records the end of the wait, so that the step does not wait again when it is performed again.
            raise self._later(f"{request.model} delays its answer.", min(delay, limit), over, aside={"over": True})
        if delay > limit:
            # The running time of the step excludes waits, so the delay is compared with the limit here.
            raise StepFailed("timeout", timeout_message(limit), retryable=True)
        return replace(request, waited_seconds=delay)

    def _delay_key(self, model: Model) -> str:
        """Return the key of a delay; each try of the step and each fallback model has its own."""
        position = next(number for number, (_, known) in enumerate(self._models) if known is model)
        return f"delay/{self.turn}/{self._context.pending.tries}/{position}"

    async def _check_budget(self) -> None:
        step = self._context.step
        await self._context.check_budget(self._agent, step.max_cost_usd if isinstance(step, AgentStep) else None)

    async def _call(self, model: Model, request: ModelRequest, key: str, held: _HeldSlot | None = None) -> ModelReply:
        """Make the call. It completes even if its caller is cancelled, and it owns the slot."""
        context, turn, name = self._context, self.turn + 1, self._journal.name(key)
        known = self._journal.find_reply(key)
        if known is not None:
            return known  # a call of an abandoned try has stored it

        async def call(flight: InflightCall) -> ModelReply:
            def delta(piece: ModelDelta) -> None:
                if not flight.late:
                    context.delta(piece)

            credential = "" if held is None else held.credential
            with model_call(credential, request.model, None if self._agent is None else self._agent.id) as span:
                with DeltaStream(delta, name, context.services.redactor) as showing:
                    reply = await model.answer(request, showing)
                span.answered(reply.model, reply.tokens_in, reply.tokens_out, reply.cost_usd)
            return await self._keep(flight, turn, reply, credential)

        return await context.services.inflight.make(context.pending, name, call if held is None else held.around(call))

    def _later(
        self, reason: str, seconds: float, key: str | None = None, aside: Mapping[str, Any] | None = None
    ) -> Suspend:
        """Return a suspension that releases the worker slot and performs the step again later."""
        name = self._journal.name(key or f"later/{self.turn}")
        return Suspend(
            StepWait(kind=WaitKind.TIME, prompt=reason, due_in_seconds=seconds, key=name, name="later", aside=aside)
        )


@dataclass(frozen=True, slots=True)
class _HeldSlot:
    """A slot among the calls in flight at a provider. A call that has begun owns and releases it."""

    limiter: Limiter
    credential: str
    slot: CallSlot
    held: contextlib.AsyncExitStack
    redactor: Redactor

    def around(self, call: Call) -> Call:
        """Return the call within this slot."""

        async def within(flight: InflightCall, held: contextlib.AsyncExitStack) -> ModelReply:
            async with held:
                try:
                    reply = await call(flight)
                except ModelFailed as error:
                    if error.throttled:
                        # The backoff is stored before the slot is released, so that no call begins without it.
                        # The reason is shown to every process that uses the credential.
                        reason = self.redactor.clean(error.message)
                        metrics.PROVIDER_BACKOFFS.add(provider_of(self.credential))
                        await self.limiter.slow_down(self.credential, error.retry_after_seconds, reason)
                    raise
                self.slot.tokens_used = reply.tokens_in + reply.tokens_out
                return reply

        def begin(flight: InflightCall) -> Coroutine[Any, Any, ModelReply]:
            self.slot.tokens_used = None
            return within(flight, self.held.pop_all())

        return begin


def _redacted_reply(reply: ModelReply, redactor: Redactor) -> ModelReply:
    """Return the answer to store: every call has a unique id, and secrets of the run are redacted."""
    seen: set[str] = set()
    calls: list[ToolCall] = []
    for number, call in enumerate(reply.calls):
        given = redactor.clean(call.id)
        name = given if given and given not in seen else f"{given}.{number}"
        seen.add(name)
        arguments = redactor.clean_value(dict(call.arguments))
        calls.append(replace(call, id=name, name=redactor.clean(call.name), arguments=arguments))
    return replace(reply, calls=tuple(calls), text=redactor.clean(reply.text), thinking=redactor.clean(reply.thinking))


def _estimate(request: ModelRequest) -> int:
    characters = sum(len(message.text) for message in request.messages) + len(request.instructions)
    return characters // _CHARACTERS_PER_TOKEN + (request.settings.max_tokens or _ANSWER_TOKENS)
