"""langgraph.json and aegra.json: every form of their keys, and a report of those without effect."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from runlane.domain.graph_registry import (
    AgentServerOptions,
    AuthSource,
    DefaultTtl,
    HttpOptions,
    StoreIndex,
    StoreOptions,
    StoreTtl,
    WebhookUrlRules,
)
from runlane.errors import ConfigurationError
from runlane.graphs.config_file import read_graphs_file
from runlane.graphs.find_file import find_graphs_file


def _write(folder: Path, content: Any, name: str = "langgraph.json") -> Path:
    file = folder / name
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_graphs_are_strings_or_objects(tmp_path: Path) -> None:
    file = _write(
        tmp_path,
        {"graphs": {"a": "./src/agent.py:graph", "b": {"path": "shop.graphs:build", "description": "Sells."}}},
    )
    a, b = read_graphs_file(file).graphs
    assert (a.id, a.location, a.folder, a.description) == ("a", "./src/agent.py:graph", tmp_path, None)
    assert (b.id, b.location, b.description) == ("b", "shop.graphs:build", "Sells.")


def test_the_file_of_aegra_comes_first(tmp_path: Path) -> None:
    assert find_graphs_file(tmp_path) is None
    langgraph = _write(tmp_path, {})
    assert find_graphs_file(tmp_path) == langgraph
    aegra = _write(tmp_path, {}, "aegra.json")
    assert find_graphs_file(tmp_path) == aegra


def test_dependencies_are_folders_or_installed_packages(tmp_path: Path) -> None:
    (tmp_path / "lib" / "src").mkdir(parents=True)
    (tmp_path / "lib" / "pyproject.toml").touch()
    given = [".", "./lib", "pydantic>=2", "no-such-package-of-anyone==1"]
    file = read_graphs_file(_write(tmp_path, {"graphs": {"a": "a:b"}, "dependencies": given}))
    assert file.folders == (tmp_path, tmp_path / "lib", tmp_path / "lib" / "src")
    assert file.missing_packages == ("no-such-package-of-anyone==1",)


def test_variables_are_set_unless_they_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("GRAPH_TEST_KEPT", "mine")
    monkeypatch.setenv("GRAPH_TEST_NEW", "")
    monkeypatch.delenv("GRAPH_TEST_NEW")
    (tmp_path / ".env").write_text('GRAPH_TEST_KEPT=theirs\nGRAPH_TEST_NEW="with space"\n')
    read_graphs_file(_write(tmp_path, {"graphs": {"a": "a:b"}, "env": ".env"})).activate()
    assert (os.environ["GRAPH_TEST_KEPT"], os.environ["GRAPH_TEST_NEW"]) == ("mine", "with space")
    assert str(tmp_path) in sys.path


def test_variables_may_be_an_object(tmp_path: Path) -> None:
    file = read_graphs_file(_write(tmp_path, {"graphs": {"a": "a:b"}, "env": {"A": "x", "B": 1}}))
    assert file.environment == {"A": "x", "B": "1"}


def test_every_key_without_effect_is_named(tmp_path: Path) -> None:
    content: dict[str, Any] = {
        "$schema": "https://example.org",
        "graphs": {"a": "a:b"},
        "python_version": "3.11",
        "dockerfile_lines": [],
        "auth": {"path": "./auth.py:auth", "openapi": {}},
        "http": {"app": "./web.py:app", "disable_store": True, "cors": {"allow_origins": [], "max_age": 1}},
        "checkpointer": {"ttl": {"default_ttl": 5, "sweep_limit": 1}, "serde": {}},
        "store": {
            "index": {"embed": "openai:small", "dims": 3, "fields": ["text"]},
            "ttl": {"default_ttl": 5, "sweep_interval_minutes": 1},
            "size": 1,
        },
        "webhooks": {"headers": {}, "url": {"disable_loopback": True}},
        "colour": "blue",
    }
    file = read_graphs_file(_write(tmp_path, content))
    assert {item.key for item in file.unsupported} == {
        "auth.openapi",
        "http.disable_store",
        "http.cors.max_age",
        "checkpointer.serde",
        "checkpointer.ttl.sweep_limit",
        "store.size",
        "store.ttl.sweep_interval_minutes",
        "webhooks.headers",
        "webhooks.url.disable_loopback",
        "colour",
    }
    assert all(item.cure for item in file.unsupported)
    assert file.store == StoreOptions(StoreIndex("openai:small", 3, ("text",), tmp_path), StoreTtl(5))


def test_what_servers_apply(tmp_path: Path) -> None:
    content: dict[str, Any] = {
        "graphs": {"a": "a:b"},
        "auth": {"path": "./auth.py:auth", "disable_studio_auth": True},
        "http": {
            "app": "shop.web:app",
            "enable_custom_route_auth": True,
            "cors": {"allow_origins": ["https://a.example"], "expose_headers": ["X-A"]},
        },
        "checkpointer": {"ttl": {"default_ttl": 1.5, "strategy": "keep_latest"}},
        "webhooks": {
            "url": {
                "require_https": True,
                "allowed_domains": ["*.a.example"],
                "allowed_ports": [443],
                "max_url_length": 9,
            }
        },
    }
    assert read_graphs_file(_write(tmp_path, content)).server == AgentServerOptions(
        AuthSource("./auth.py:auth", tmp_path, studio=False),
        HttpOptions("shop.web:app", tmp_path, True, ("https://a.example",), ("X-A",)),
        WebhookUrlRules(True, ("*.a.example",), (443,), 9),
        DefaultTtl(2, "keep_latest"),
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "is not valid JSON"),
        ([], "must be an object"),
        ({}, '"graphs" is empty'),
        ({"graphs": {"a": "agent.py"}}, 'The path "agent.py" of the graph "a" is not valid'),
        ({"graphs": {"a": {"description": "x"}}}, 'The path null of the graph "a" is not valid'),
        ({"graphs": {"a": {"path": "a:b", "description": 1}}}, "must be a string"),
        ({"graphs": {"a": "a:b"}, "dependencies": "."}, '"dependencies" must be a list of strings'),
        ({"graphs": {"a": "a:b"}, "dependencies": ["./none"]}, 'The folder "./none" of "dependencies" does not exist'),
        ({"graphs": {"a": "a:b"}, "env": ".none"}, 'The file ".none" of "env" does not exist'),
        ({"graphs": {"a": "a:b"}, "env": {"A": []}}, 'The variable "A" of "env" must be a string'),
        ({"graphs": {"a": "a:b"}, "store": {"index": {"embed": "x"}}}, '"store.index" needs'),
        ({"graphs": {"a": "a:b"}, "store": {"ttl": {"default_ttl": 0}}}, '"store.ttl.default_ttl" must be'),
        ({"graphs": {"a": "a:b"}, "auth": []}, '"auth" must be an object'),
        ({"graphs": {"a": "a:b"}, "auth": {"disable_studio_auth": True}}, '"auth.path" is not a location'),
        ({"graphs": {"a": "a:b"}, "auth": {"path": "a:b", "disable_studio_auth": 1}}, "must be true or false"),
        ({"graphs": {"a": "a:b"}, "http": {"app": "web"}}, '"http.app" is not a location'),
        ({"graphs": {"a": "a:b"}, "http": {"cors": {"allow_origins": "x"}}}, "must be a list of strings"),
        ({"graphs": {"a": "a:b"}, "checkpointer": {"ttl": {"strategy": "x"}}}, '"checkpointer.ttl.strategy" is'),
        ({"graphs": {"a": "a:b"}, "checkpointer": {"ttl": {"default_ttl": -1}}}, "number of minutes above 0"),
        ({"graphs": {"a": "a:b"}, "webhooks": {"url": {"allowed_ports": ["x"]}}}, "must be a list of numbers"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(tmp_path: Path, content: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem.replace("(", r"\(")):
        read_graphs_file(_write(tmp_path, content))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.json does not exist"):
        read_graphs_file(tmp_path / "none.json")
