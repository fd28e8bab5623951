"""Requests with very many invalid fields: they are counted, and not described one by one.

The description of a million fields takes seconds of the event loop and gigabytes, and any valid key could cause it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from runlane.domain.validation import MAX_COUNTED, MAX_LISTED
from tests.acceptance.api.flows import ARTICLE, bring
from tests.acceptance.api.serving import API, Api
from tests.acceptance.api.test_orchestrations import paused
from tests.acceptance.api.test_runs import problem_of

MANY = MAX_COUNTED + 1
SOME = MAX_LISTED + 50


def unknown(count: int) -> dict[str, Any]:
    return {f"unknown-{number}": number for number in range(count)}


@pytest.mark.parametrize(
    "path", ["/stream-tokens", "/tasks/greet/run", "/runs/batch", "/definitions/check", "/events", "/schedules"]
)
async def test_a_body_with_thousands_of_invalid_fields_is_refused_with_their_number(idle_api: Api, path: str) -> None:
    answer = await idle_api.post(path, unknown(MANY))
    problem = problem_of(answer, 422, "invalid_request")
    assert "fields are invalid or unknown" in problem["message"]
    assert "unknown-" not in answer.text
    # Fewer of them are described, up to a number.
    answer = await idle_api.post(path, unknown(SOME))
    assert len(problem_of(answer, 422, "invalid_request")["fields"]) == MAX_LISTED


async def test_a_chunked_body_and_the_agent_server_are_bounded_as_well(idle_api: Api) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"{"
        for number in range(MANY):
            yield f'"unknown-{number}": 1, '.encode()
        yield b'"last": 1}'

    headers = {"content-type": "application/json"}
    answer = await idle_api.client.post(f"{API}/stream-tokens", content=pieces(), headers=headers)
    assert "fields are invalid or unknown" in problem_of(answer, 422, "invalid_request")["message"]
    many = [unknown(1) for _ in range(MANY)]
    answer = await idle_api.client.post("/threads/search", json={"metadata": {}, **unknown(MANY), "ids": many})
    assert answer.status_code == 422
    assert len(answer.content) < 10_000


async def test_an_input_with_thousands_of_unknown_arguments_is_refused_with_their_number(idle_api: Api) -> None:
    answer = await idle_api.post("/tasks/greet/run", {"input": unknown(MANY)})
    assert "fields are invalid or unknown" in problem_of(answer, 422, "invalid_input")["message"]
    few = problem_of(await idle_api.post("/tasks/greet/run", {"input": unknown(SOME)}), 422, "invalid_input")
    assert few["message"].count("is not an argument") == 20


async def test_an_answer_with_thousands_of_unknown_fields_is_refused_after_some(api: Api) -> None:
    await bring(api.parts.database, ARTICLE)
    run_id = await paused(api, "article", message="lanes")
    answer = await api.post(f"/runs/{run_id}/resume", {"response": unknown(MANY)})
    # The 20 unknown fields, and the missing one that is required.
    assert len(problem_of(answer, 422, "invalid_input")["fields"]) == 21
    await api.post(f"/runs/{run_id}/cancel")
