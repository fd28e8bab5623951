"""Redaction: a registered value is found in every form, and nothing else is changed."""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, quote_plus, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from runlane.errors import TooManySecrets
from runlane.redaction import LOGS, REDACTED, LogRedactor, RedactedStream, Redactor, forms, is_hidable
from runlane.redaction.forms import HEAD
from runlane.settings import Settings, redact_settings

VALUE = 's3cr/t+"va lü\\e&'
# Of values that redaction accepts: long enough, and not the same few characters.
values = st.text(min_size=8, max_size=40).filter(lambda text: text == text.strip() and is_hidable(text))


def test_nothing_is_touched_while_nothing_is_known() -> None:
    value: dict[str, Any] = {"a": ["b", 1]}
    nothing = Redactor()
    assert nothing.is_empty
    assert (nothing.clean("text"), nothing.clean_json("{x")) == ("text", "{x")
    assert nothing.clean_value(value) is value


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
    redactor = Redactor([VALUE])
    for text in (form, f"before{form}after", f"{form}{form}"):
        cleaned = redactor.clean(text)
        assert REDACTED in cleaned
        # What is left of a longer base64 text is at most what the bytes beside the value are mixed into.
        for again in (form, VALUE, base64.b64encode(VALUE.encode()).decode()[4:-4]):
            assert again not in cleaned


@given(value=values, before=st.text(), after=st.text())
def test_no_value_survives_wherever_it_occurs(value: str, before: str, after: str) -> None:
    assert value not in Redactor([value]).clean(f"{before}{value}{after}").replace(REDACTED, "\0")


@pytest.mark.parametrize("count", [1, 3, 40, 400])
def test_many_values_are_found_as_well_as_few(count: int) -> None:
    known = [f"value-{number:04}-{number * 7919:08x}" for number in range(count)]
    redactor = Redactor(known)
    ordinary = "value- and other words, " * 300
    assert redactor.clean(ordinary) == ordinary
    for at in range(9):
        text = "x" * at + f"{known[0]} {known[-1]}" + "y" * 70_000 + known[count // 2]
        cleaned = redactor.clean(text)
        assert not [value for value in known if value in cleaned]
        assert cleaned.count(REDACTED) == 3


def test_of_two_values_that_begin_alike_the_longer_one_is_replaced() -> None:
    redactor = Redactor(["password-1", "password-1-long"])
    assert redactor.clean("a password-1-long b") == f"a {REDACTED} b"


def test_a_value_of_several_lines_is_found_line_by_line() -> None:
    lines = ["-----BEGIN PRIVATE KEY-----", "MIIEvQIBADANBgkqhkiG9w0BAQ", "EFAASCBKcwggSjAgEAAoIBAQC7", "short"]
    redactor = Redactor(["\n".join(lines)])
    for line in lines[1:3]:
        assert redactor.clean(f"> {line}") == f"> {REDACTED}"
    for line in ("-----BEGIN PRIVATE KEY-----", "short"):
        assert redactor.clean(line) == line


@pytest.mark.parametrize("value", ["", "1234567", "aaaaaaaaaaaa", "ababababab", "        "])
def test_values_that_would_damage_ordinary_text_are_not_redacted(value: str) -> None:
    assert Redactor([value]).is_empty


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
    assert json.loads(Redactor(["12345678"]).clean_json(text)) == wanted


def test_values_that_are_not_json_are_cleaned_as_text() -> None:
    assert Redactor(["12345678"]).clean_json("{12345678") == f"{{{REDACTED}"


@given(value=values, data=st.data())
def test_a_json_value_is_cleaned_as_its_text_is(value: str, data: st.DataObject) -> None:
    redactor = Redactor([value])
    texts = st.one_of(st.text(), st.just(value), st.just(f"x{value}y"))
    tree = data.draw(st.recursive(texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=8))
    assert json.loads(redactor.clean_json(json.dumps(tree))) == redactor.clean_value(tree)


def test_a_value_without_secrets_is_the_same_object() -> None:
    value = {"a": [1, "two", {"b": None}]}
    assert Redactor(["12345678"]).clean_value(value) is value


def in_pieces(known: list[str], data: st.DataObject) -> list[str]:
    """Draw a string that may contain these values, cut anywhere."""
    parts = st.lists(st.one_of(st.text(max_size=5), *(st.just(value) for value in known)), max_size=6)
    rest, pieces = "".join(data.draw(parts)), list[str]()
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        pieces.append(rest[:size])
        rest = rest[size:]
    return pieces


@given(known=st.lists(values, min_size=1, max_size=3), data=st.data())
def test_text_in_pieces_is_cleaned_as_the_whole(known: list[str], data: st.DataObject) -> None:
    pieces = in_pieces(known, data)
    redactor = Redactor(known)
    stream = RedactedStream(redactor)
    shown = "".join(stream.feed(piece) for piece in pieces)
    assert shown + stream.rest() == redactor.clean("".join(pieces))


def test_a_stream_holds_back_no_more_than_it_must() -> None:
    stream = RedactedStream(Redactor(["password-1"]))
    assert stream.feed("my pass") == "my "
    assert stream.feed("port is blue") == "passport is blue"
    assert stream.feed(" pa") == " "
    assert stream.feed("ssword-1") == REDACTED
    assert stream.rest() == ""


@given(known=st.lists(values, min_size=1, max_size=3), data=st.data())
def test_text_that_pauses_reveals_no_value_and_loses_nothing(known: list[str], data: st.DataObject) -> None:
    pieces = in_pieces(known, data)
    whole = "".join(pieces)
    redactor = Redactor(known)
    stream, shown = RedactedStream(redactor), ""
    for piece in pieces:
        shown += stream.feed(piece)
        if data.draw(st.booleans()):
            shown += stream.pause()
    shown += stream.rest()
    assert not any(value in shown for value in known)
    if redactor.clean(whole) == whole:
        assert shown == whole


def test_a_pause_reveals_too_little_to_be_of_use() -> None:
    stream = RedactedStream(Redactor(["password-1"]))
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
    redact_settings(
        Settings(
            database_url=SecretStr("postgresql://app:hunter2%2Fhunter2@db.local/shop"),
            redis_url=SecretStr("redis://:letmein-redis@cache:6379/0"),
            secret_key=SecretStr(f"{key},{'ab12' * 16}"),
        )
    )
    for hidden in ("hunter2%2Fhunter2", "hunter2/hunter2", "letmein-redis", key, "ab12" * 16):
        assert LOGS.clean(f"<{hidden}>") == f"<{REDACTED}>"
    assert LOGS.clean("app db.local shop cache postgresql") == "app db.local shop cache postgresql"


def test_a_password_that_is_a_name_hides_nothing() -> None:
    redact_settings(Settings(database_url=SecretStr("postgresql://postgres:postgres@localhost/runlane")))
    assert LOGS.clean("postgres") == "postgres"


def test_log_lines_of_ours_and_of_libraries_are_cleaned(capfd: pytest.CaptureFixture[str]) -> None:
    import structlog

    from runlane.cli.logs import configure_logs

    before, handlers = structlog.get_config(), logging.root.handlers[:]
    LOGS.learn("canary-of-a-secret")
    try:
        configure_logs(dev=False)
        log = structlog.get_logger("test")
        try:
            raise ValueError("it is canary-of-a-secret")
        except ValueError:
            log.exception("broken", shown={"token": "canary-of-a-secret"}, count=3)
            logging.getLogger("library").exception("with %s", "canary-of-a-secret")
        configure_logs(dev=True)
        structlog.get_logger("other").warning("canary-of-a-secret")
    finally:
        structlog.configure(**before)
        logging.root.handlers[:] = handlers
    output = capfd.readouterr().err
    assert "canary-of-a-secret" not in output
    assert output.count(REDACTED) >= 5
    first = json.loads(output.splitlines()[0])
    assert (first["shown"], first["count"]) == ({"token": REDACTED}, 3)


def test_the_log_of_a_failure_shows_no_values_of_variables(capfd: pytest.CaptureFixture[str]) -> None:
    """Neither the input nor the values of a run belong in a terminal, whatever else is installed."""
    import structlog

    from runlane.cli.logs import configure_logs

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
    output = capfd.readouterr().err
    assert "ValueError: 18" in output
    assert given not in output


# --- what it costs


def test_a_long_value_is_found_in_all_forms_though_only_its_prefix_is_kept() -> None:
    value = "".join(f"{number:05x}/" for number in range(10_000))
    redactor = Redactor([value])
    assert redactor.size_bytes < 2 * len(value)
    for form in (value, base64.b64encode(value.encode()).decode(), quote(value, safe=""), json.dumps(value)):
        cleaned = redactor.clean(f"<{form}>")
        assert REDACTED in cleaned
        assert len(cleaned) < 20
    # What only begins like it is not it.
    assert redactor.clean(value[:-1]) == value[:-1]


def test_a_long_value_in_pieces_is_held_back_until_its_end() -> None:
    value = "".join(f"{number:04x}-" for number in range(400))
    stream = RedactedStream(Redactor([value]))
    shown = "".join(stream.feed(value[start : start + 7]) for start in range(0, len(value), 7))
    assert shown + stream.feed("!") + stream.rest() == f"{REDACTED}!"
    other = RedactedStream(Redactor([value]))
    assert other.feed(value[:-1]) == ""
    assert other.feed("?") == f"{value[:-1]}?"


@pytest.mark.parametrize("lines", [1, 1000, 4000])
def test_a_value_of_the_largest_size_costs_a_few_times_its_size(lines: int) -> None:
    width = 64 * 1024 // lines
    value = "\n".join(f"{number:06x}{'abcdefghij' * (width // 10 + 1)}"[: width - 1] for number in range(lines))
    assert Redactor([value]).size_bytes < 5 * 64 * 1024


def test_logs_forget_a_value_that_was_replaced_or_deleted() -> None:
    logs = LogRedactor()
    logs.learn_secret(("acme", "TOKEN"), "first-value")
    logs.learn_secret(("acme", "TOKEN"), "second-value")
    assert logs.clean("first-value second-value") == f"first-value {REDACTED}"
    logs.learn_secret(("other", "TOKEN"), "second-value")
    logs.forget_secret(("acme", "TOKEN"))
    assert logs.clean("second-value") == REDACTED
    logs.forget_secret(("other", "TOKEN"))
    assert logs.is_empty
    assert logs.size_bytes == 0


def test_logs_keep_what_was_used_last_and_what_the_process_itself_has() -> None:
    logs = LogRedactor(max_bytes=200_000)
    logs.learn("password-of-the-database")
    for number in range(2000):
        logs.learn_secret(("acme", f"S{number}"), f"value-{number:04}-{number * 7919:08x}")
        logs.learn_secret(("acme", "S0"), "value-0000-00000000")
    assert logs.size_bytes < 250_000
    assert logs.clean("password-of-the-database value-0000-00000000") == f"{REDACTED} {REDACTED}"
    newest, oldest = f"value-1999-{1999 * 7919:08x}", f"value-0001-{7919:08x}"
    assert logs.clean(f"{newest} {oldest}") == f"{REDACTED} {oldest}"


@given(known=st.lists(values, min_size=1, max_size=60, unique=True), data=st.data())
def test_logs_find_what_is_left_after_any_change(known: list[str], data: st.DataObject) -> None:
    logs = LogRedactor()
    for number, value in enumerate(known):
        logs.learn_secret(number, value)
    gone = data.draw(st.sets(st.integers(0, len(known) - 1)))
    for number in gone:
        logs.forget_secret(number)
    left = [value for number, value in enumerate(known) if number not in gone]
    text = data.draw(st.text(max_size=3)) + "\0".join(known)
    assert logs.clean(text) == Redactor(left).clean(text)


def test_a_run_gets_no_value_that_could_not_be_taken_out() -> None:
    redactor = Redactor(max_bytes=20_000)
    many = [f"value-{number:04}-{number * 7919:08x}" for number in range(1000)]
    with pytest.raises(TooManySecrets, match="Use fewer or shorter secrets"):
        redactor.learn_all(many)
    assert redactor.size_bytes <= 20_000
    assert redactor.clean("value-0000-00000000") == REDACTED


def test_text_with_the_beginning_of_a_long_value_alone_costs_no_encoding_of_the_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To encode a value of 20 kB takes milliseconds, and a tenant could ask for it with each string of its output."""
    value = "".join(chr(0xC0 + number % 300) for number in range(20_000))
    redactor = Redactor([value])
    computed: list[str] = []
    encode = forms._forms

    def counted(text: str) -> Iterator[str]:
        computed.append(text)
        return encode(text)

    monkeypatch.setattr(forms, "_forms", counted)
    texts = [value[:HEAD], f"{value[:1000]} and {value[-1000:]}", value[:-1] + "x"]
    assert redactor.clean_value(texts) == texts
    assert computed == []
    assert redactor.clean(f"a {value} b") == f"a {REDACTED} b"
    # Text of many beginnings is searched as a whole.
    periodic = "abcdefgh" * 2000
    redactor = Redactor([f"{periodic}!{periodic}"])
    assert redactor.clean(f"{periodic * 3}{periodic}!{periodic}") == f"{periodic * 3}{REDACTED}"
