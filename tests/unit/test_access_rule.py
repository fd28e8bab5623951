"""Access rules: filters of auth modules as disjunctions of documents, and nothing that allows more than it says."""

from __future__ import annotations

from typing import Any

import pytest

from runlane.domain.access_rule import AccessRule, InvalidRule
from runlane.domain.graph_registry import WebhookUrlRules
from runlane.domain.text import dump_json
from runlane.errors import InvalidRequest
from runlane.store.sql.json_containment import text_contains_any
from runlane.submit.webhook_urls import check_webhook_url


def _allows(rule: AccessRule, metadata: dict[str, Any]) -> bool:
    return bool(text_contains_any(dump_json(metadata), rule.text))


# A filter, metadata that it allows, and metadata that it hides.
FILTERS: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({"owner": "a"}, {"owner": "a", "x": 1}, {"owner": "b"}),
    ({"owner": {"$eq": "a"}}, {"owner": "a"}, {}),
    ({"owner": "a"}, {"owner": "a"}, {"owner": ["a"]}),
    ({"team": {"$contains": "a"}}, {"team": ["b", "a"]}, {"team": "a"}),
    ({"team": {"$contains": ["a", "b"]}}, {"team": ["b", "c", "a"]}, {"team": ["a"]}),
    ({"owner": "a", "open": True}, {"owner": "a", "open": True}, {"owner": "a", "open": 1}),
    ({"$or": [{"owner": "a"}, {"open": True}]}, {"open": True}, {"open": False}),
    ({"x": 1, "$or": [{"owner": "a"}, {"owner": "b"}]}, {"x": 1, "owner": "b"}, {"x": 2, "owner": "b"}),
    ({"$and": [{"$or": [{"a": 1}, {"b": 1}]}, {"c": 1}]}, {"b": 1, "c": 1}, {"b": 1}),
    ({"$and": [{"t": {"$contains": "a"}}, {"t": {"$contains": "b"}}]}, {"t": ["a", "b"]}, {"t": ["a"]}),
]


@pytest.mark.parametrize(("given", "allowed", "hidden"), FILTERS)
def test_filters(given: dict[str, Any], allowed: dict[str, Any], hidden: dict[str, Any]) -> None:
    rule = AccessRule.parse(given)
    assert rule is not None
    assert _allows(rule, allowed)
    assert not _allows(rule, hidden)


def test_contradictions_allow_nothing() -> None:
    for given in ({"$and": [{"a": "x"}, {"a": "y"}]}, {"$and": [{"a": "x"}, {"a": {"$contains": "x"}}]}):
        rule = AccessRule.parse(given)
        assert rule is not None
        assert not any(_allows(rule, metadata) for metadata in ({}, {"a": "x"}, {"a": "y"}, {"a": ["x"]}))


def test_an_empty_filter_is_not_a_rule() -> None:
    assert AccessRule.parse({}) is None


_WRONG: list[dict[str, Any]] = [
    {"owner": None},
    {"owner": ["a"]},
    {"owner": {"$regex": "a"}},
    {"owner": {"$eq": "a", "$contains": "b"}},
    {"owner": {}},
    {"$or": []},
    {"$or": [{}]},
    {"$or": "a"},
    {"$not": {"owner": "a"}},
    {"$and": [{"$or": [{str(a): 1} for a in range(11)]}, {"$or": [{f"b{b}": 1} for b in range(11)]}]},
]


@pytest.mark.parametrize("given", _WRONG)
def test_what_is_not_understood_is_an_error(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRule):
        AccessRule.parse(given)


@pytest.mark.parametrize(
    ("rules", "allowed", "refused"),
    [
        (WebhookUrlRules(require_https=True), "https://a.example/", "http://a.example/"),
        (WebhookUrlRules(allowed_domains=("a.example",)), "http://A.example:81/", "http://b.a.example/"),
        (WebhookUrlRules(allowed_domains=("*.a.example",)), "http://b.a.example/", "http://xa.example/"),
        (WebhookUrlRules(allowed_ports=(443,)), "https://a.example/", "http://a.example/"),
        (WebhookUrlRules(max_url_length=20), "https://a.example/", "https://a.example/long"),
    ],
)
def test_urls_of_webhooks(rules: WebhookUrlRules, allowed: str, refused: str) -> None:
    check_webhook_url(rules, allowed)
    with pytest.raises(InvalidRequest, match=r"webhooks\.url"):
        check_webhook_url(rules, refused)
