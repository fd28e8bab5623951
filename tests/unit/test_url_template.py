"""URL templates: whatever the arguments are, the request goes to the host and path of the template."""

from __future__ import annotations

import tracemalloc
from typing import Any
from urllib.parse import parse_qsl, unquote

import httpx2
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from runlane.errors import UrlTemplateError
from runlane.templates.url_template import fill_header, header_placeholders, parse_url

TEMPLATE = "https://api.example.com:8443/v1/items/{id}/parts/x-{data.part}?fixed=1&q={q}&mix=a-{part}&flag"
SECRETS = {"KEY": "s/e c&ret"}


def fill(template: str, arguments: dict[str, Any], rest: dict[str, Any] | None = None) -> str:
    return parse_url(template).fill(arguments, SECRETS, rest)


@pytest.mark.parametrize(
    ("template", "arguments", "url"),
    [
        ("https://h.example", {}, "https://h.example/"),
        ("https://h.example?x={a}", {"a": 1}, "https://h.example/?x=1"),
        ("https://h.example/{a}", {"a": "x y/z?&#"}, "https://h.example/x%20y%2Fz%3F%26%23"),
        ("https://h.example/{a}", {"a": True}, "https://h.example/true"),
        ("https://h.example/{a}", {"a": 1.5}, "https://h.example/1.5"),
        ("https://h.example/{data.a}", {"a": "ä"}, "https://h.example/%C3%A4"),
        ("https://h.example/?d={data}", {"a": 1}, "https://h.example/?d=%7B%22a%22%3A1%7D"),
        ("https://h.example/?a={a}&b={b}", {"b": "\r\nx: y"}, "https://h.example/?b=%0D%0Ax%3A%20y"),
        ("https://h.example/?a={a}", {"a": [1, "x", None, {"k": 1}]}, "https://h.example/?a=1&a=x&a=%7B%22k%22%3A1%7D"),
        ("https://h.example/{secret.KEY}?k={secret.KEY}", {}, "https://h.example/s%2Fe%20c%26ret?k=s%2Fe%20c%26ret"),
        ("https://h.example/a%2Fb/(x)?a=b%20c#part", {}, "https://h.example/a%2Fb/(x)?a=b%20c"),
        ("https://h.example/{a}", {"a": "..x"}, "https://h.example/..x"),
        ("https://h.example/{a}", {"a": "%2e%2e"}, "https://h.example/%252e%252e"),
        ("https://h.example/{a}", {"a": "\ud800"}, "https://h.example/%3F"),
    ],
)
def test_filling(template: str, arguments: dict[str, Any], url: str) -> None:
    assert fill(template, arguments) == url


def test_the_rest_becomes_parameters() -> None:
    url = fill("https://h.example/?a=1", {}, {"b c": "x&y", "n": None, "l": [1, 2]})
    assert url == "https://h.example/?a=1&b%20c=x%26y&l=1&l=2"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, '"id" is missing'),
        ({"id": None}, '"id" is missing'),
        ({"id": ""}, "must not be empty"),
        ({"id": "."}, "a segment of dots"),
        ({"id": ".."}, "a segment of dots"),
        ({"id": "../../admin"}, "a segment of dots"),
        ({"id": "a/../b"}, "a segment of dots"),
        ({"id": "..\\..\\x"}, "a segment of dots"),
        ({"id": "x" * 20_000}, "more than 16000"),
    ],
)
def test_arguments_that_would_make_another_path_are_refused(arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(UrlTemplateError, match=expected):
        fill("https://h.example/items/{id}", arguments)


def test_dots_of_the_template_and_of_an_argument_are_seen_together() -> None:
    with pytest.raises(UrlTemplateError, match="segment of dots"):
        fill("https://h.example/a/{x}{y}/b", {"x": "", "y": ".."})
    with pytest.raises(UrlTemplateError, match="segment of dots"):
        fill("https://h.example/a/.{x}/b", {"x": "."})


@pytest.mark.parametrize(
    "template",
    [
        "",
        "h.example/x",
        "ftp://h.example/",
        "file:///etc/passwd",
        "//h.example/",
        "https://{host}/",
        "https://{host}.example/",
        "https://h.example:{port}/",
        "https://{secret.KEY}@h.example/",
        "https://user:pw@h.example/",
        "https://h.example\\@evil.example/",
        "https:///x",
        "https://h.example/a b",
        "https://h.example/\nx",
        "https://h.example/{}",
        "https://h.example/{a b}",
        "https://h.example/{a.b}",
        "https://h.example/{a",
        "https://h.example/a}",
        "https://h.example/{{a}}",
        "https://h.example/?{a}=1",
        "https://h.example/?{a}",
        "https://h.example/a/../b",
        "https://h.example/a/%2e%2e/b",
        "{url}",
    ],
)
def test_invalid_templates_are_refused(template: str) -> None:
    with pytest.raises(UrlTemplateError):
        parse_url(template)


def test_a_template_lists_the_arguments_that_it_needs() -> None:
    found = parse_url("https://h.example/{a}/{secret.S}?b={b}&c={data.c}&d={data}")
    assert (found.fields, found.path_fields, found.secrets, found.takes_all_arguments) == (
        {"a", "b", "c"},
        {"a"},
        {"S"},
        True,
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NASTY = st.text(alphabet="./\\?#&=%@:;{}\r\n\0 a2eE[]+ä\u2028", max_size=12)


@given(st.fixed_dictionaries({"id": JSON | NASTY, "part": JSON | NASTY}, optional={"q": NASTY | JSON}))
def test_no_argument_changes_the_shape_of_a_request(arguments: dict[str, Any]) -> None:
    try:
        made = fill(TEMPLATE, arguments)
    except UrlTemplateError:
        return
    url = httpx2.URL(made)
    assert (url.scheme, url.host, url.port, url.userinfo) == ("https", "api.example.com", 8443, b"")
    assert url.fragment == ""
    sent = url.raw_path.decode("ascii")
    assert not any(char in sent for char in "\r\n\0 \\#")
    path, _, query = sent.partition("?")
    segments = path.split("/")
    assert segments[:4] == ["", "v1", "items", segments[3]]
    assert len(segments) == 6
    assert segments[4] == "parts"
    assert segments[5].startswith("x-")
    assert segments[3]
    assert all(unquote(segment) not in (".", "..") for segment in segments)
    names = [pair.partition("=")[0] for pair in query.split("&")]
    assert [name for name in names if name != "q"] == ["fixed", "mix", "flag"]
    if isinstance(arguments["id"], str):
        assert unquote(segments[3]) == arguments["id"]
    if isinstance(arguments.get("q"), str):
        assert dict(parse_qsl(query, keep_blank_values=True, strict_parsing=False))["q"] == arguments["q"]


@given(st.dictionaries(NASTY.filter(bool), NASTY, max_size=4))
def test_the_rest_arrives_as_it_was(rest: dict[str, str]) -> None:
    assume("fixed" not in rest)
    url = httpx2.URL(fill("https://h.example/p?fixed=1", {}, rest))
    assert (url.host, url.path) == ("h.example", "/p")
    assert parse_qsl(url.query.decode(), keep_blank_values=True) == [("fixed", "1"), *rest.items()]


def test_headers_have_placeholders_too() -> None:
    assert header_placeholders("Bearer {secret.KEY} {a} {json: 1}") == ({"a"}, {"KEY"})
    assert fill_header("x", "Bearer {secret.KEY} {a}", {"a": 1}, {"KEY": "k\n"}) == "Bearer k 1"
    assert fill_header("x", "{a}", {}, {}) is None
    assert fill_header("x", '{"a": 1}', {}, {}) == '{"a": 1}'
    with pytest.raises(UrlTemplateError, match='"a" is missing'):
        fill_header("x", "b {a}", {}, {})
    for value in ("x\r\ny: z", "x\ny", "\0"):
        with pytest.raises(UrlTemplateError, match='The header "x" would contain a control character'):
            fill_header("x", "v {a}w", {"a": value}, {})


@pytest.mark.parametrize("place", ["/{a}", "/x?q={a}{a}", "/x?q={a}", "/x?q=1"])
def test_a_long_url_is_refused_before_it_is_built(place: str) -> None:
    """A template of 4,000 characters could name a value of megabytes a thousand times."""
    large = {"a": "x" * 4_000_000, "b": ["y" * 1000] * 1000}
    template = parse_url("https://api.example.com" + place + "{a}" * 1000)
    tracemalloc.start()
    try:
        with pytest.raises(UrlTemplateError, match="more than 16000 characters"):
            template.fill(large, {}, large)
        with pytest.raises(UrlTemplateError, match='The header "x" would have more than 16000 characters'):
            fill_header("x", "{a}" * 1000, large, {})
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()
