"""Redaction: a value that was learned is found in every form, and nothing else is touched."""

from __future__ import annotations

import base64
import json
import logging
import re
from typing import Any
from urllib.parse import quote, quote_plus, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from runlane import redaction
from runlane.redaction import REDACTED, Stream, clean, clean_json, clean_value, learn
from runlane.settings import Settings, hide

VALUE = 's3cr/t+"va lü\\e&'
# Of values that redaction accepts: long enough, and not the same few characters.
values = st.text(min_size=8, max_size=40).filter(redaction.is_hidable)


def test_nothing_is_touched_while_nothing_is_known() -> None:
    value: dict[str, Any] = {"a": ["b", 1]}
    assert not redaction.knows_any()
    assert (clean("text"), clean_json("{x"), clean_value(value)) == ("text", "{x", value)
    assert clean_value(value) is value


@pytest.mark.parametrize(
    "form",
    [
        VALUE,
        base64.b64encode(VALUE.encode()).decode(),
        base64.urlsafe_b64encode(VALUE.encode()).decode(),
        base64.urlsafe_b64encode(VALUE.encode()).decode().rstrip("="),
        base64.b64encode(f"user:{VALUE}".encode()).decode(),
        base64.b64encode(f"users:{VALUE}:more".encode()).decode(),
        base64.b64encode(f"someone:{VALUE}!".encode()).decode(),
        quote(VALUE),
        quote(VALUE, safe=""),
        quote_plus(VALUE),
        urlencode({"token": VALUE}),
        re.sub("%..", lambda escape: escape[0].lower(), quote(VALUE, safe="")),
        json.dumps(VALUE),
        json.dumps(VALUE, ensure_ascii=False),
        json.dumps({"inner": json.dumps({"token": VALUE})}),
        repr(VALUE),
        repr({"token": VALUE}),
    ],
)
def test_a_value_is_found_in_the_forms_it_takes(form: str) -> None:
    learn(VALUE)
    for text in (form, f"before{form}after", f"{form}{form}"):
        cleaned = clean(text)
        assert REDACTED in cleaned
        # What is left of a longer base64 text is at most what the bytes beside the value are mixed into.
        for again in (form, VALUE, base64.b64encode(VALUE.encode()).decode()[4:-4]):
            assert again not in cleaned


@given(value=values, before=st.text(), after=st.text())
def test_no_value_survives_wherever_it_stands(value: str, before: str, after: str) -> None:
    redaction.forget_all()
    learn(value)
    assert value not in clean(f"{before}{value}{after}").replace(REDACTED, "\0")


@pytest.mark.parametrize("count", [1, 3, 40, 400])
def test_many_values_are_found_as_well_as_few(count: int) -> None:
    known = [f"value-{number:04}-{number * 7919:08x}" for number in range(count)]
    redaction.learn_all(known)
    ordinary = "value- and other words, " * 300
    assert clean(ordinary) == ordinary
    for at in range(9):
        text = "x" * at + f"{known[0]} {known[-1]}" + "y" * 70_000 + known[count // 2]
        cleaned = clean(text)
        assert not [value for value in known if value in cleaned]
        assert cleaned.count(REDACTED) == 3


def test_of_two_that_begin_alike_the_longer_one_is_replaced() -> None:
    redaction.learn_all(["password-1", "password-1-long"])
    assert clean("a password-1-long b") == f"a {REDACTED} b"


def test_a_value_of_several_lines_is_found_line_by_line() -> None:
    lines = ["-----BEGIN PRIVATE KEY-----", "MIIEvQIBADANBgkqhkiG9w0BAQ", "EFAASCBKcwggSjAgEAAoIBAQC7", "short"]
    learn("\n".join(lines))
    for line in lines[1:3]:
        assert clean(f"> {line}") == f"> {REDACTED}"
    for line in ("-----BEGIN PRIVATE KEY-----", "short"):
        assert clean(line) == line


@pytest.mark.parametrize("value", ["", "1234567", "aaaaaaaaaaaa", "ababababab", "        "])
def test_what_would_damage_ordinary_text_is_not_learned(value: str) -> None:
    learn(value)
    assert not redaction.knows_any()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"n":12345678}', {"n": REDACTED}),
        ('{"n":[1,12345678.5,true,null]}', {"n": [1, REDACTED, True, None]}),
        ('{"12345678":"x"}', {REDACTED: "x"}),
        ('"a 12345678 b"', f"a {REDACTED} b"),
        ('{"s":"\\u00e4 \\"12345678\\""}', {"s": f'ä "{REDACTED}"'}),
    ],
)
def test_json_stays_json(text: str, wanted: Any) -> None:
    learn("12345678")
    assert json.loads(clean_json(text)) == wanted


def test_what_is_no_json_is_cleaned_as_text() -> None:
    learn("12345678")
    assert clean_json("{12345678") == f"{{{REDACTED}"


@given(value=values, data=st.data())
def test_a_json_value_is_cleaned_as_its_text_is(value: str, data: st.DataObject) -> None:
    redaction.forget_all()
    learn(value)
    texts = st.one_of(st.text(), st.just(value), st.just(f"x{value}y"))
    tree = data.draw(st.recursive(texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=8))
    assert json.loads(clean_json(json.dumps(tree))) == clean_value(tree)


def test_a_value_without_secrets_is_the_same_object() -> None:
    learn("12345678")
    value = {"a": [1, "two", {"b": None}]}
    assert clean_value(value) is value


def learned_in_pieces(known: list[str], data: st.DataObject) -> list[str]:
    """Learn these values alone; a text that may have them, cut anywhere."""
    redaction.forget_all()
    redaction.learn_all(known)
    parts = st.lists(st.one_of(st.text(max_size=5), *(st.just(value) for value in known)), max_size=6)
    rest, pieces = "".join(data.draw(parts)), list[str]()
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        pieces.append(rest[:size])
        rest = rest[size:]
    return pieces


@given(known=st.lists(values, min_size=1, max_size=3), data=st.data())
def test_a_text_in_pieces_is_cleaned_as_the_whole(known: list[str], data: st.DataObject) -> None:
    pieces = learned_in_pieces(known, data)
    stream = Stream()
    told = "".join(stream.feed(piece) for piece in pieces)
    assert told + stream.rest() == clean("".join(pieces))


def test_a_stream_holds_back_no_more_than_it_must() -> None:
    learn("password-1")
    stream = Stream()
    assert stream.feed("my pass") == "my "
    assert stream.feed("port is blue") == "passport is blue"
    assert stream.feed(" pa") == " "
    assert stream.feed("ssword-1") == REDACTED
    assert stream.rest() == ""


@given(known=st.lists(values, min_size=1, max_size=3), data=st.data())
def test_a_text_that_pauses_tells_no_value_and_loses_nothing(known: list[str], data: st.DataObject) -> None:
    pieces = learned_in_pieces(known, data)
    whole = "".join(pieces)
    stream, told = Stream(), ""
    for piece in pieces:
        told += stream.feed(piece)
        if data.draw(st.booleans()):
            told += stream.pause()
    told += stream.rest()
    assert not any(value in told for value in known)
    if clean(whole) == whole:
        assert told == whole


def test_a_pause_tells_too_little_to_be_of_use() -> None:
    learn("password-1")
    stream = Stream()
    assert stream.feed("my pass") == "my "
    assert stream.pause() == "pass"
    assert stream.pause() == ""
    assert stream.feed("port, pa") == "port, "
    assert stream.pause() == "pa"
    assert stream.feed("sswo") == ""
    assert stream.pause() == ""
    assert stream.feed("rd-1.") == f"{REDACTED}."
    assert stream.rest() == ""


def test_settings_hide_their_passwords_and_keys() -> None:
    key = base64.b64encode(bytes(range(32))).decode()
    hide(
        Settings(
            database_url=SecretStr("postgresql://app:hunter2%2Fhunter2@db.local/shop"),
            redis_url=SecretStr("redis://:letmein-redis@cache:6379/0"),
            secret_key=SecretStr(f"{key},{'ab12' * 16}"),
        )
    )
    for hidden in ("hunter2%2Fhunter2", "hunter2/hunter2", "letmein-redis", key, "ab12" * 16):
        assert clean(f"<{hidden}>") == f"<{REDACTED}>"
    assert clean("app db.local shop cache postgresql") == "app db.local shop cache postgresql"


def test_a_password_that_is_a_name_hides_nothing() -> None:
    hide(Settings(database_url=SecretStr("postgresql://postgres:postgres@localhost/runlane")))
    assert clean("postgres") == "postgres"


def test_log_lines_of_ours_and_of_libraries_are_cleaned(capfd: pytest.CaptureFixture[str]) -> None:
    import structlog

    from runlane.cli.process import configure_logs

    before, handlers = structlog.get_config(), logging.root.handlers[:]
    learn("canary-of-a-secret")
    try:
        configure_logs(dev=False)
        log = structlog.get_logger("test")
        try:
            raise ValueError("it is canary-of-a-secret")
        except ValueError:
            log.exception("broken", told={"token": "canary-of-a-secret"}, count=3)
            logging.getLogger("library").exception("with %s", "canary-of-a-secret")
        configure_logs(dev=True)
        structlog.get_logger("other").warning("canary-of-a-secret")
    finally:
        structlog.configure(**before)
        logging.root.handlers[:] = handlers
    said = capfd.readouterr().err
    assert "canary-of-a-secret" not in said
    assert said.count(REDACTED) >= 5
    first = json.loads(said.splitlines()[0])
    assert (first["told"], first["count"]) == ({"token": REDACTED}, 3)


def test_the_log_of_a_failure_shows_no_values_of_variables(capfd: pytest.CaptureFixture[str]) -> None:
    """Neither what a run was given nor what it found belongs into a terminal, whatever else is installed."""
    import structlog

    from runlane.cli.process import configure_logs

    before, handlers = structlog.get_config(), logging.root.handlers[:]
    given = "-".join(["a", "customer's", "words"])
    try:
        configure_logs(dev=True)
        try:
            raise ValueError(len(given))
        except ValueError:
            structlog.get_logger("dev").exception("broken")
    finally:
        structlog.configure(**before)
        logging.root.handlers[:] = handlers
    said = capfd.readouterr().err
    assert "ValueError: 18" in said
    assert given not in said
