"""Calls for the data of pages about runs, and for the inbox."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from runlane.client import wire
from runlane.client.http import PREFIX, Http, part
from runlane.domain.action_link import MAX_LINK_SECONDS, ActionLink
from runlane.domain.graph_view import OrchestrationGraph, RunGraph
from runlane.domain.series import RunSeries
from runlane.domain.timeline import Timeline
from runlane.domain.wait import AnswerResult, InboxCount, Question, QuestionDetail, QuestionKind


class RunViewCalls:
    """Timelines, graphs, values and questions. A part of Client."""

    _http: Http

    async def timeline(
        self, run_id: str, parent: str = "", *, cursor: str | None = None, limit: int = 2000
    ) -> Timeline:
        """Return the steps of a run as spans of time; with `parent`, the spans inside that span."""
        query = {"parent": parent, "cursor": cursor, "limit": limit}
        return wire.parse(Timeline, await self._http.read(f"{PREFIX}/runs/{part(run_id)}/timeline", query))

    async def run_graph(self, run_id: str, path: str = "") -> RunGraph:
        """Return the graph of a run with the status of each step; with `path`, the graph of an inner orchestration."""
        return wire.parse(RunGraph, await self._http.read(f"{PREFIX}/runs/{part(run_id)}/graph", {"path": path}))

    async def value(self, run_id: str, ref: str) -> Any:
        """Return one whole value of a run: the input, the result, or a value that an event or step has only in part."""
        place = "/".join(map(part, ref.split("/")))
        return await self._http.read(f"{PREFIX}/runs/{part(run_id)}/values/{place}")

    async def graph(
        self, orchestration_id: str, *, version: str | None = None, tenant: str | None = None
    ) -> OrchestrationGraph:
        """Return the steps of an orchestration and the edges between them."""
        query = {"version": version, "tenant": tenant}
        path = f"{PREFIX}/orchestrations/{part(orchestration_id)}/graph"
        return wire.parse(OrchestrationGraph, await self._http.read(path, query))

    def inbox(
        self,
        *,
        tenant: str | None = None,
        about: QuestionKind | str | None = None,
        target: str | None = None,
        agent: str | None = None,
        tool: str | None = None,
        asked_before: str | None = None,
        page: int = 100,
    ) -> AsyncGenerator[Question]:
        """Yield the questions that wait for a person, oldest first. Pages are read as needed.

        `asked_before` is a time in RFC 3339.
        """
        query: dict[str, Any] = {"tenant": tenant, "about": about, "target": target, "agent": agent, "tool": tool}
        query |= {"asked_before": asked_before, "limit": page}
        return self._http.pages(Question, f"{PREFIX}/inbox", "questions", query)

    async def inbox_count(self, *, tenant: str | None = None) -> InboxCount:
        """Return the number of open questions by kind, up to 1,000."""
        return wire.parse(InboxCount, await self._http.read(f"{PREFIX}/inbox/count", {"tenant": tenant}))

    async def question(self, run_id: str, path: str) -> QuestionDetail:
        """Return one question of a run, and its answer if it was answered."""
        return wire.parse(QuestionDetail, await self._http.read(f"{PREFIX}/inbox/{part(run_id)}/{part(path)}"))

    async def answer_many(
        self, answers: Sequence[Mapping[str, Any]], *, note: str | None = None
    ) -> Sequence[AnswerResult]:
        """Answer up to 100 questions. Each answer has `run_id`, `response`, and `step` if several steps ask."""
        body: dict[str, Any] = {"answers": [dict(answer) for answer in answers]}
        if note is not None:
            body["note"] = note
        given = await self._http.change("POST", f"{PREFIX}/inbox/answer", body)
        return [wire.parse(AnswerResult, outcome) for outcome in given["outcomes"]]

    async def create_link(
        self,
        run_id: str,
        path: str,
        response: Mapping[str, Any] | str,
        *,
        person: str,
        expires_in_seconds: int = MAX_LINK_SECONDS,
    ) -> ActionLink:
        """Create a link that gives this answer to a question without a key. Only this call returns its `url`."""
        body: dict[str, Any] = {"run_id": run_id, "path": path, "response": response, "person": person}
        body["expires_in_seconds"] = expires_in_seconds
        return wire.parse(ActionLink, await self._http.change("POST", f"{PREFIX}/inbox/links", body))

    async def links(self, *, run_id: str | None = None, tenant: str | None = None) -> Sequence[ActionLink]:
        """Return the valid action links, without their URLs; at most 1,000."""
        query = {"run_id": run_id, "tenant": tenant}
        return await self._http.read_list(ActionLink, f"{PREFIX}/inbox/links", "links", query)

    async def revoke_link(self, link_id: str) -> ActionLink:
        """Revoke an action link, at once and everywhere."""
        return wire.parse(ActionLink, await self._http.change("DELETE", f"{PREFIX}/inbox/links/{part(link_id)}"))

    async def claim_question(self, run_id: str, path: str, *, release: bool = False) -> QuestionDetail:
        """Claim a question for ten minutes, so that other users see the claim; with `release`, end the claim."""
        body = {"run_id": run_id, "path": path, "release": release}
        return wire.parse(QuestionDetail, await self._http.change("POST", f"{PREFIX}/inbox/claim", body))

    async def series(
        self,
        step: int = 60,
        *,
        group: str = "none",
        since: str | None = None,
        to: str | None = None,
        target: str | None = None,
        lane: str | None = None,
        tenant: str | None = None,
    ) -> RunSeries:
        """Return the numbers of accepted and ended runs over time, in buckets of `step` seconds. Times are RFC 3339."""
        query = {
            "step": step, "group": group, "from": since, "to": to, "target": target, "lane": lane, "tenant": tenant,
        }  # fmt: skip
        return wire.parse(RunSeries, await self._http.read(f"{PREFIX}/runs/series", query))
