"""Dead letters and bulk jobs over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final, Literal

from runlane.client.http import PREFIX, Http, part
from runlane.client.wire import parse
from runlane.domain.bulk import BulkItem, BulkJob, BulkPreview, BulkState
from runlane.domain.dead_letter import DeadLetter, DeadLetterGroup, DeadLetterSummary, RetryKind

_LETTERS: Final = f"{PREFIX}/dead-letters"
_BULK: Final = f"{PREFIX}/bulk"
_POLL_SECONDS: Final = 0.25
LetterAction = Literal["retry", "discard", "acknowledge", "assign"]
RunAction = Literal["cancel", "retry", "priority", "lane", "tag"]


class DeadLetters:
    """The dead letters of the key's tenant; platform admins see those of all tenants.

    Filters are those of `GET /api/v2/dead-letters`, such as `state`, `target`, `code`, `fingerprint` and `text`.
    """

    def __init__(self, http: Http) -> None:
        self._http = http

    def list(self, *, page: int = 100, **filters: Any) -> AsyncGenerator[DeadLetterSummary]:
        """Yield dead letters, latest death first. Without `state`, yield those that are open or acknowledged."""
        return self._http.pages(DeadLetterSummary, _LETTERS, "dead_letters", {"limit": page, **filters})

    async def count(self) -> int:
        """Return the exact number of open dead letters."""
        return (await self._http.read(_LETTERS, {"limit": 1}))["open"]

    async def groups(self, *, limit: int = 50, **filters: Any) -> Sequence[DeadLetterGroup]:
        """Return dead letters grouped by their cause, largest group first."""
        return await self._http.read_list(DeadLetterGroup, f"{_LETTERS}/groups", "groups", {"limit": limit, **filters})

    async def get(self, run_id: str) -> DeadLetter:
        """Return a dead letter with the input, the error, every attempt and the last steps of its run."""
        return parse(DeadLetter, await self._http.read(f"{_LETTERS}/{part(run_id)}"))

    async def retry(self, run_id: str, kind: RetryKind | str = RetryKind.RESUME, **options: Any) -> str:
        """Retry a dead letter. Return the id of the run that repeats it, which is new for `restart` and `fork`.

        Options are those of `POST /api/v2/dead-letters/{run_id}/retry`.
        """
        answer = await self._change(run_id, "retry", {"kind": str(kind), **options})
        return answer["new_run_id"] or run_id

    async def discard(self, run_id: str, note: str | None = None, *, release: bool = False) -> DeadLetterSummary:
        """Discard a dead letter.

        Its run stays failed; with `release`, the runs behind its ordering key are unblocked.
        """
        return parse(DeadLetterSummary, await self._change(run_id, "discard", {"note": note, "release": release}))

    async def acknowledge(self, run_id: str, note: str | None = None) -> DeadLetterSummary:
        """Acknowledge an open dead letter. It is still listed, but no longer counted."""
        return parse(DeadLetterSummary, await self._change(run_id, "acknowledge", {"note": note}))

    async def assign(self, run_id: str, to: str | None) -> DeadLetterSummary:
        """Assign a dead letter to a person. None removes the assignment."""
        return parse(DeadLetterSummary, await self._change(run_id, "assign", {"to": to}))

    async def bulk(
        self,
        action: LetterAction,
        *,
        filter: Mapping[str, Any] | None = None,  # noqa: A002 - the word of the API
        run_ids: Sequence[str] | None = None,
        options: Mapping[str, Any] | None = None,
        rate: float | None = None,
    ) -> BulkJob:
        """Change every dead letter that the filter matches, or the dead letters of the given runs, as a bulk job."""
        body = _body(action, filter, run_ids, options, rate)
        return parse(BulkJob, await self._http.change("POST", f"{_LETTERS}/bulk", body))

    async def preview(
        self,
        action: LetterAction,
        *,
        filter: Mapping[str, Any] | None = None,  # noqa: A002 - the word of the API
        run_ids: Sequence[str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> BulkPreview:
        """Return the exact number of dead letters that a bulk job would change."""
        body = {**_body(action, filter, run_ids, options, None), "dry_run": True}
        return parse(BulkPreview, await self._http.change("POST", f"{_LETTERS}/bulk", body))

    async def _change(self, run_id: str, verb: str, body: Mapping[str, Any]) -> Any:
        return await self._http.change("POST", f"{_LETTERS}/{part(run_id)}/{verb}", body)


class BulkJobs:
    """Changes of many runs. A server or worker makes them in the background, each run at most once."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def create(
        self,
        action: RunAction,
        *,
        filter: Mapping[str, Any] | None = None,  # noqa: A002 - the word of the API
        run_ids: Sequence[str] | None = None,
        options: Mapping[str, Any] | None = None,
        rate: float | None = None,
    ) -> BulkJob:
        """Cancel or retry the given runs or those that match the filter, or change their `priority` or `lane`."""
        return parse(BulkJob, await self._http.change("POST", _BULK, _body(action, filter, run_ids, options, rate)))

    async def preview(
        self,
        action: RunAction,
        *,
        filter: Mapping[str, Any] | None = None,  # noqa: A002 - the word of the API
        run_ids: Sequence[str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> BulkPreview:
        """Return the exact number of runs that a job would change."""
        body = {**_body(action, filter, run_ids, options, None), "dry_run": True}
        return parse(BulkPreview, await self._http.change("POST", _BULK, body))

    def list(self, *, state: str | None = None, tenant: str | None = None, page: int = 100) -> AsyncGenerator[BulkJob]:
        """Yield jobs with their progress, newest first."""
        return self._http.pages(BulkJob, _BULK, "jobs", {"state": state, "tenant": tenant, "limit": page})

    async def get(self, job_id: str) -> BulkJob:
        """Return a job with its exact progress."""
        return parse(BulkJob, await self._http.read(f"{_BULK}/{part(job_id)}"))

    def items(self, job_id: str, *, state: str | None = None, page: int = 1000) -> AsyncGenerator[BulkItem]:
        """Yield the runs of a job, in order. A refused run has the reason."""
        return self._http.pages(BulkItem, f"{_BULK}/{part(job_id)}/items", "items", {"state": state, "limit": page})

    async def stop(self, job_id: str) -> BulkJob:
        """Stop a job. When this returns, no further run is changed."""
        return parse(BulkJob, await self._http.change("POST", f"{_BULK}/{part(job_id)}/stop"))

    async def wait(self, job_id: str, timeout: float | None = None) -> BulkJob:
        """Wait until the job has ended, and return it. Raise TimeoutError after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            job = await self.get(job_id)
            if job.state is not BulkState.RUNNING:
                return job
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"Bulk job {job_id} is running after {timeout:g} s; {job.pending} runs are left.")
            await asyncio.sleep(_POLL_SECONDS)


def _body(
    action: str,
    selected: Mapping[str, Any] | None,
    run_ids: Sequence[str] | None,
    options: Mapping[str, Any] | None,
    rate: float | None,
) -> dict[str, Any]:
    given = {"filter": selected, "run_ids": run_ids, "options": options, "rate": rate}
    return {"action": action, **{name: value for name, value in given.items() if value is not None}}
