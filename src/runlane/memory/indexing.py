"""Semantic search: embeddings of entries, computed by durable runs, and their combination with search by words.

A run embeds the entries of one memory that follow the last embedded one, and stores its position with each batch: after
the loss of an attempt, at most one call is repeated. A search that cannot embed its query returns only matches by
words.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

import structlog

from runlane.domain.budget import SpendingCap, check_caps
from runlane.domain.memory import MemoryEntry, MemoryHit
from runlane.errors import Fail, Retry, Unavailable
from runlane.failpoints import failpoint
from runlane.llm.embeddings import EmbeddingModels
from runlane.llm.models import ModelFailed
from runlane.rate_limits.limiter import ClusterLimiter
from runlane.rate_limits.queue import LimitTimeout
from runlane.store.memory import vectors
from runlane.store.memory.vectors import UnindexedEntry, Vector
from runlane.store.sql.database import Database
from runlane.store.usage import add_call, read_budget

log = structlog.get_logger(__name__)

EMBEDDED_AT_ONCE: Final = 64
# In some languages, longer strings exceed the context windows of common embedding models.
_MAX_CHARACTERS: Final = 6000
# How many results of each search are combined.
CANDIDATES: Final = 50
_RANK_CONSTANT: Final = 60
_RUN_WAIT_SECONDS: Final = 30.0
_SEARCH_WAIT_SECONDS: Final = 1.0
# How long a search waits for the embedding of its query. A provider that does not answer must not hold searches up.
_SEARCH_CALL_SECONDS: Final = 5.0
_CHARACTERS_PER_TOKEN: Final = 3
_REFUSALS: Final = frozenset({"invalid_request", "content_refused"})

# How long a run waits before it checks again whether the tenant may spend more.
CAP_WAIT_SECONDS: Final = 600.0

Progress = Callable[[float], Awaitable[None]]


class DailyCapReached(Exception):
    """The tenant has reached its daily cap for models."""


class MemoryIndex:
    """Embeddings of one model in the database that every process sees."""

    def __init__(
        self, model: str, models: EmbeddingModels, database: Database, limiter: ClusterLimiter, usage: Database
    ) -> None:
        self.model = model
        self.database = database
        # The database of runs, which has usage and caps. A memory file has neither.
        self._usage = usage
        self._models = models
        self._limiter = limiter
        self._changed: set[str] = set()

    def note(self, memory_ids: Iterable[str]) -> None:
        """Note memories that have new entries."""
        self._changed.update(memory_ids)

    def take_changed(self) -> set[str]:
        """Return the memories that were noted since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    async def nearest(self, tenant: str, memory_id: str, query: str) -> list[str]:
        """Return the ids of the entries nearest to a query, best first; none if the model is not available.

        The database may be unavailable as well: the owner of a memory still searches its copy by words.
        """
        try:
            async with asyncio.timeout(_SEARCH_CALL_SECONDS):
                (vector,), _ = await self._embed(tenant, [query], _SEARCH_WAIT_SECONDS, is_query=True)
            return await vectors.nearest_entries(self.database, memory_id, vector, CANDIDATES)
        except (ModelFailed, LimitTimeout, DailyCapReached, Unavailable, TimeoutError) as error:
            log.warning("memory_query_not_embedded", memory=memory_id, problem=str(error) or type(error).__name__)
            return []

    async def index(self, memory_id: str, progress: Progress) -> dict[str, int]:
        """Embed the entries of a memory that have no embedding. Return their number and cost."""
        state = await vectors.index_state(self.database, memory_id)
        if state is None:
            return {"entries": 0, "tokens": 0}
        if state.model != self.model:
            await vectors.start_index(self.database, memory_id, self.model)
        position = state.indexed_seq if state.model == self.model else 0
        count = tokens = 0
        while batch := await vectors.entries_to_embed(self.database, memory_id, position, EMBEDDED_AT_ONCE):
            found, cost = await self._embed_entries(state.tenant, memory_id, batch)
            failpoint("memory.embedded")
            position = batch[-1].seq
            await vectors.store_vectors(self.database, memory_id, self.model, found, position)
            failpoint("memory.indexed")
            count, tokens = count + len(found), tokens + cost
            await progress(min(1.0, position / max(1, state.last_seq)))
        # Numbers after the last entry, up to the number that was read before the first batch, belong to other
        # operations.
        await vectors.store_vectors(self.database, memory_id, self.model, (), max(position, state.last_seq))
        return {"entries": count, "tokens": tokens}

    async def reset(self, memory_id: str) -> None:
        """Delete the embeddings of a memory, so that all are computed again."""
        await vectors.start_index(self.database, memory_id, self.model)

    async def _embed_entries(
        self, tenant: str, memory_id: str, entries: Sequence[UnindexedEntry]
    ) -> tuple[list[tuple[UnindexedEntry, Vector]], int]:
        """Embed entries; skip an entry that the provider rejects, so that it does not stop the others."""
        try:
            texts = [entry.text[:_MAX_CHARACTERS] for entry in entries]
            found, tokens = await self._embed(tenant, texts, _RUN_WAIT_SECONDS, is_query=False)
        except ModelFailed as error:
            if error.code not in _REFUSALS:
                raise _outcome(error) from error
            if len(entries) == 1:
                log.warning("memory_entry_not_embedded", memory=memory_id, entry=entries[0].id, problem=error.message)
                return [], 0
            half = len(entries) // 2
            first, cost = await self._embed_entries(tenant, memory_id, entries[:half])
            rest, more = await self._embed_entries(tenant, memory_id, entries[half:])
            return first + rest, cost + more
        except LimitTimeout as wait:
            raise Retry(wait.retry_in_seconds, wait.reason) from wait
        except DailyCapReached as reached:
            raise Retry(CAP_WAIT_SECONDS, str(reached)) from reached
        return list(zip(entries, found, strict=True)), tokens

    async def _embed(
        self, tenant: str, texts: Sequence[str], wait_seconds: float, *, is_query: bool
    ) -> tuple[Sequence[Vector], int]:
        """Make one call within the daily cap of the tenant and the rate limits of the credential."""
        await self._check_cap(tenant)
        credential = await self._models.credential(self.model, tenant)
        estimate = sum(map(len, texts)) // _CHARACTERS_PER_TOKEN
        slot = await self._limiter.acquire(credential, tokens=estimate, timeout_seconds=wait_seconds, on_wait=_ignore)
        async with slot:
            try:
                embedded = await self._models.embed(self.model, tenant, texts, is_query=is_query)
            except ModelFailed as error:
                if error.throttled:
                    await self._limiter.slow_down(credential, error.retry_after_seconds, error.message)
                raise
            slot.tokens_used = embedded.tokens
        await add_call(self._usage, tenant, self.model, embedded.tokens, embedded.cost_usd)
        return embedded.vectors, embedded.tokens

    async def _check_cap(self, tenant: str) -> None:
        spent = await read_budget(self._usage, tenant)
        cap = SpendingCap("tenant", spent.tenant_limit_usd, spent.tenant_usd, spent.on_cap, tenant)
        reached = check_caps([cap])
        if reached is not None:
            raise DailyCapReached(reached.message)

    async def close(self) -> None:
        """Release rate limits and connections."""
        await self._limiter.close()
        await self._models.close()


async def _ignore(reason: str) -> None:
    log.debug("memory_embedding_waits", reason=reason)


def _outcome(error: ModelFailed) -> Exception:
    """Return the exception of a run for a failed call: a retry or a failure."""
    if error.throttled:
        return Retry(error.retry_after_seconds or 5.0, error.message)
    return RuntimeError(error.message) if error.retryable else Fail(error.message)


def fuse(
    by_words: Sequence[tuple[MemoryEntry, float]],
    by_vector: Sequence[str],
    entries: Mapping[str, MemoryEntry],
    limit: int,
) -> list[MemoryHit]:
    """Combine two rankings by reciprocal rank: an entry in both ranks before an entry in one of them."""
    scores: dict[str, float] = {}
    ways: dict[str, list[str]] = {}
    found = {entry.id: entry for entry, _ in by_words} | dict(entries)
    for way, ids in (("text", [entry.id for entry, _ in by_words]), ("vector", by_vector)):
        for rank, entry_id in enumerate(ids, start=1):
            if entry_id in found:
                scores[entry_id] = scores.get(entry_id, 0.0) + 1 / (_RANK_CONSTANT + rank)
                ways.setdefault(entry_id, []).append(way)
    best = sorted(scores, key=lambda entry_id: (-scores[entry_id], -found[entry_id].seq))[:limit]
    return [MemoryHit(found[entry_id], scores[entry_id], tuple(ways[entry_id])) for entry_id in best]


class IndexSchedule:
    """Decides which memories need a run now: those with new entries, at most one run of each at a time."""

    def __init__(self, index: MemoryIndex, scan_seconds: float = 300.0, run_seconds: float = 120.0) -> None:
        self._index = index
        self._scan_seconds = scan_seconds
        self._run_seconds = run_seconds
        self._scanned_at = float("-inf")
        self._started: dict[str, tuple[int, float]] = {}

    def retry(self, memory_id: str) -> None:
        """Mark a memory again whose run could not be started."""
        self._index.note([memory_id])

    async def due(self, limit: int) -> list[tuple[str, str, int]]:
        """Return id, tenant and last number of the memories that need a run, and mark them as started."""
        index, now = self._index, time.monotonic()
        changed = index.take_changed()
        if now - self._scanned_at > self._scan_seconds:
            # Changes of processes that ended, or that do not start runs.
            self._scanned_at = now
            after = ""
            while page := await vectors.unindexed_memories(index.database, index.model, after, 1000):
                changed.update(memory_id for memory_id, _, _ in page)
                after = page[-1][0]
        due: list[tuple[str, str, int]] = []
        for memory_id in changed:
            state = await vectors.index_state(index.database, memory_id) if len(due) < limit else None
            if state is None:
                if len(due) >= limit:
                    index.note([memory_id])
                continue
            if state.model == index.model and state.indexed_seq >= state.last_seq:
                self._started.pop(memory_id, None)
                continue
            seq, started_at = self._started.get(memory_id, (0, float("-inf")))
            if state.indexed_seq < seq and now - started_at < self._run_seconds:
                index.note([memory_id])  # a run is pending; check again
                continue
            self._started[memory_id] = (state.last_seq, now)
            due.append((memory_id, state.tenant, state.last_seq))
        return due
