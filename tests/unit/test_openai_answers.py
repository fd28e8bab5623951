"""Answers for OpenAI-compatible clients: derived from live and stored events, whatever is missing or repeated."""

from __future__ import annotations

from typing import Any

import pytest

from runlane.api.openai.errors import translated
from runlane.api.openai.fold import AnswerFold, PieceKind
from runlane.api.openai.ids import RESPONSE, AnswerId
from runlane.api.openai.questions import parse_reply
from runlane.api.openai.reader import Subject
from runlane.api.openai.response_format import ResponseRenderer, resume_point
from runlane.domain.run import Status

SUBJECT = Subject(AnswerId(f"run_{'a' * 32}"), "helper", 1, None, ())


def live(
    text: str, offset: int = 0, attempt: int = 1, answer: str = "0/model/0", path: str = "answer"
) -> dict[str, Any]:
    return {"type": "text", "attempt": attempt, "answer": answer, "path": path, "offset": offset, "text": text}


def stored(seq: int, kind: str, attempt: int = 1, **data: Any) -> dict[str, Any]:
    return {"type": kind, "seq": seq, "attempt": attempt, **data}


def answered(seq: int, text: str, turn: int = 0, attempt: int = 1, path: str = "answer", **more: Any) -> dict[str, Any]:
    found = {"path": path, "answer": f"0/model/{turn}", "text": text, "tokens_in": 2, "tokens_out": 3, **more}
    return stored(seq, "model_response", attempt, **found)


def folded(*events: dict[str, Any]) -> tuple[AnswerFold, list[tuple[str, int, str]]]:
    fold = AnswerFold()
    pieces = [(piece.kind.name, piece.index, piece.text) for event in events for piece in fold.add(event)]
    return fold, pieces


def test_live_text_is_sent_once_and_the_stored_answer_adds_the_rest() -> None:
    fold, pieces = folded(live("One, "), live("two", 5), answered(5, "One, two, three."))
    assert pieces == [
        ("OPENED", 0, ""),
        ("TEXT", 0, "One, "),
        ("TEXT", 0, "two"),
        ("TEXT", 0, ", three."),
        ("CLOSED", 0, "One, two, three."),
    ]
    assert (fold.texts, fold.tokens_in, fold.tokens_out) == (["One, two, three."], 2, 3)


def test_a_takeover_that_writes_the_same_text_repeats_nothing() -> None:
    _, pieces = folded(
        live("One, two"),
        stored(4, "worker_picked_up", 2),
        live("late", 8, attempt=1),
        live("One", 0, attempt=2),
        live(", two, three", 3, attempt=2),
        answered(6, "One, two, three", attempt=2),
    )
    assert "".join(text for kind, _, text in pieces if kind == "TEXT") == "One, two, three"
    assert [kind for kind, _, _ in pieces].count("OPENED") == 1


def test_a_takeover_that_writes_another_text_withdraws_the_first_one() -> None:
    fold, pieces = folded(
        live("One, two"), stored(4, "worker_picked_up", 2), live("On", 0, 2), answered(6, "Once", attempt=2)
    )
    assert pieces[2:] == [
        ("WITHDRAWN", 0, "One, two"),
        ("OPENED", 1, ""),
        ("TEXT", 1, "Once"),
        ("CLOSED", 1, "Once"),
    ]
    assert fold.texts == ["Once"]


def test_a_piece_after_a_gap_waits_for_the_stored_answer() -> None:
    _, pieces = folded(live("three", 10), answered(5, "One, two, three"))
    assert [text for kind, _, text in pieces if kind == "TEXT"] == ["One, two, three"]


def test_the_text_of_other_agents_is_not_part_of_the_answer() -> None:
    fold, pieces = folded(
        live("inner", answer="0/tool/0/call/model/0"),
        answered(5, "inner", answer="0/tool/0/call/model/0"),
        answered(6, "nested", path="answer>step"),
        answered(7, "outer", 1),
    )
    assert [text for kind, _, text in pieces if kind == "CLOSED"] == ["outer"]
    # Their tokens are paid for all the same.
    assert fold.tokens_out == 9


def test_a_result_that_no_turn_has_as_its_text_is_a_message() -> None:
    fold, _ = folded(
        answered(3, "Let me see."),
        stored(5, "final", response={"city": "Graz"}, intent="orchestration"),
        stored(6, "done", status="completed"),
    )
    assert fold.texts == ["Let me see.", '{"city":"Graz"}']
    assert fold.outcome is not None
    assert fold.outcome.status is Status.COMPLETED


def test_a_run_that_continues_has_no_outcome() -> None:
    fold, _ = folded(stored(3, "paused"))
    assert fold.outcome is not None
    list(fold.add(stored(4, "resumed")))
    assert fold.outcome is None
    fold, _ = folded(stored(3, "attempt_failed", error={"type": "x"}), stored(4, "done", status="failed"))
    assert fold.outcome is not None
    assert fold.outcome.error == {"type": "x"}


@pytest.mark.parametrize("characters", [0, 1, 4, 9])
def test_a_client_that_has_some_of_a_message_gets_the_rest(characters: int) -> None:
    fold = AnswerFold(seq=3)
    fold.resume_open(characters)
    pieces = [*fold.add(live("One, two")), *fold.add(answered(5, "One, two."))]
    assert "".join(piece.text for piece in pieces if piece.kind is PieceKind.TEXT) == "One, two."[characters:]
    assert [piece.kind for piece in pieces][-1] is PieceKind.CLOSED
    assert PieceKind.OPENED not in [piece.kind for piece in pieces]


def test_numbers_name_the_event_and_the_characters() -> None:
    fold = AnswerFold(seq=3)
    renderer = ResponseRenderer(SUBJECT)
    frames = b"".join(renderer.piece(piece, fold.seq, live=True) for piece in fold.add(live("One, ")))
    number = int(frames.rsplit(b'"sequence_number":', 1)[1].split(b",")[0])
    assert resume_point(number) == (3, 5)
    assert resume_point(0) == (0, None)


def test_ids_lead_back_to_the_run() -> None:
    for found in (AnswerId(f"run_{'0' * 32}"), AnswerId(f"run_{'a' * 32}", 17)):
        assert AnswerId.parse(found.text(RESPONSE), RESPONSE) == found
    for text in ("resp_", "resp_xyz", f"resp_{'a' * 31}", f"resp_{'a' * 32}_0", f"chatcmpl-{'a' * 32}", "run_1"):
        assert AnswerId.parse(text, RESPONSE) is None


def test_a_message_is_the_value_of_the_field_that_a_question_needs() -> None:
    decision = {"name": "decision", "type": "select", "options": ["approve", "deny"], "required": True}
    reason = {"name": "reason", "type": "text"}
    assert parse_reply([decision, reason], " Approve ") == {"decision": "approve"}
    assert parse_reply([decision, reason], '{"decision": "deny"}') == {"decision": "deny"}
    assert parse_reply([reason], "because") == {"reason": "because"}
    assert parse_reply([], "free") == "free"
    assert parse_reply([], "7") == "7"


def test_errors_are_translated() -> None:
    body = b'{"message": "m", "code": "invalid_request", "fields": [{"field": "body.messages.0.role", "message": "x"}]}'
    assert translated(422, body) == (
        400,
        {
            "error": {
                "message": "m",
                "type": "invalid_request_error",
                "param": "messages[0].role",
                "code": "invalid_request",
            }
        },
    )
    assert translated(502, b"no JSON")[1]["error"]["type"] == "server_error"
