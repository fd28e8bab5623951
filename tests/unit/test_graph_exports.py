"""Every form in which a project may export a graph becomes a graph; what does not is reported, and alone."""

from __future__ import annotations

import operator
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph_sdk.runtime import ServerRuntime
from typing_extensions import TypedDict

from runlane import App
from runlane.domain.graph_registry import GraphSource
from runlane.errors import DuplicateGraph, Fail, GraphNotLoaded
from runlane.graphs.exports import READ, RUN, GraphUse, export_of
from runlane.graphs.loader import forget_modules
from runlane.graphs.registry import load_graphs


class _State(TypedDict):
    items: Annotated[list[str], operator.add]


@dataclass
class _Context:
    name: str


def _builder(item: str = "a") -> StateGraph[Any, Any, Any, Any]:
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(_State)

    def add(state: _State) -> dict[str, Any]:
        return {"items": [item]}

    builder.add_node("add", add)
    builder.add_edge(START, "add")
    return builder


@entrypoint()
def _functional(given: dict[str, Any]) -> dict[str, Any]:
    return {"items": ["a"]}


def _plain() -> Any:
    return _builder()


def _configured(config: RunnableConfig) -> Any:
    return _builder(config.get("configurable", {})["item"]).compile()


def _unnamed(given: Any) -> Any:
    return _builder(given["configurable"]["item"]).compile()


async def _awaited(config: RunnableConfig) -> Any:
    return _builder(config.get("configurable", {})["item"])


def _with_runtime(runtime: ServerRuntime[_Context], config: RunnableConfig) -> Any:
    execution = runtime.execution_runtime
    return _builder(config.get("configurable", {})["item"] if execution is None else execution.context.name)


@contextmanager
def _managed(config: RunnableConfig) -> Generator[Any]:
    yield _builder(config.get("configurable", {})["item"])


@asynccontextmanager
async def _managed_async(runtime: ServerRuntime[_Context]) -> AsyncGenerator[Any]:
    assert runtime.execution_runtime is not None
    yield _builder(runtime.execution_runtime.context.name)


async def _generated(config: RunnableConfig) -> AsyncGenerator[Any]:
    yield _builder(config.get("configurable", {})["item"])


_EXPORTS: list[Any] = [
    _builder(),
    _builder().compile(),
    _functional,
    _plain,
    _configured,
    _unnamed,
    _awaited,
    _with_runtime,
    _managed,
    _managed_async,
    _generated,
]


@pytest.mark.parametrize("exported", _EXPORTS)
async def test_an_export_becomes_a_graph(exported: Any) -> None:
    export = export_of("g", exported)
    use = GraphUse(RUN, {"configurable": {"item": "a"}}, InMemoryStore(), {"name": "a"})
    async with export.open(use) as graph:
        assert (await graph.ainvoke({"items": []}))["items"] == ["a"]


async def test_a_factory_learns_why_it_is_called() -> None:
    async with export_of("g", _with_runtime).open(
        GraphUse(READ, {"configurable": {"item": "b"}}, InMemoryStore())
    ) as graph:
        assert (await graph.ainvoke({"items": []}))["items"] == ["b"]


async def test_a_context_of_another_type_fails_the_run() -> None:
    use = GraphUse(RUN, {"configurable": {}}, InMemoryStore(), {"nome": "a"})
    with pytest.raises(Fail, match="not a valid _Context"):
        async with export_of("g", _managed_async).open(use):
            pass


@pytest.mark.parametrize("exported", [None, "graph", StateGraph, {"a": 1}])
def test_an_export_that_is_not_a_graph_is_refused(exported: Any) -> None:
    with pytest.raises(GraphNotLoaded, match=r'The graph "g" is a .*, not a graph'):
        export_of("g", exported)


def test_a_factory_with_other_parameters_is_refused() -> None:
    def factory(config: RunnableConfig, model: str) -> Any:
        raise AssertionError

    with pytest.raises(GraphNotLoaded, match='takes the parameter "model"'):
        export_of("g", factory)


def _file(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(body)


_GRAPH = """
from typing_extensions import TypedDict
from langgraph.graph import START, StateGraph
class State(TypedDict):
    text: str
def say(state):
    return {"text": TEXT}
graph = StateGraph(State).add_node(say).add_edge(START, "say")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    forget_modules([tmp_path])


async def test_one_broken_graph_does_not_affect_the_others(folder: Path) -> None:
    _file(folder, "pkg_of_graphs/__init__.py", "")
    _file(folder, "pkg_of_graphs/inner.py", "from .text import TEXT\n" + _GRAPH)
    _file(folder, "pkg_of_graphs/text.py", "TEXT = 'inner'")
    _file(folder, "loose/agent_of_test.py", "TEXT = 'loose'\n" + _GRAPH)
    _file(folder, "test.py", "TEXT = 'named as another module'\n" + _GRAPH)
    _file(folder, "broken.py", "raise ValueError('no')")
    _file(folder, "typo.py", "graphs = 1")
    locations = {
        "file": "./pkg_of_graphs/inner.py:graph",
        "dotted": "pkg_of_graphs.inner:graph",
        "loose": "./loose/agent_of_test.py:graph",
        "taken": "test.py:graph",
        "broken": "./broken.py:graph",
        "typo": "./typo.py:graph",
        "absent": "./absent.py:graph",
        "package": "no_such_package_of_anyone:graph",
    }
    loaded = await load_graphs([GraphSource(name, None, given, folder) for name, given in locations.items()])
    assert sorted(loaded.exports) == ["dotted", "file", "loose", "taken"]
    assert "ValueError: no" in loaded.errors["broken"]
    assert 'did you mean "graphs"' in loaded.errors["typo"]
    assert "does not exist" in loaded.errors["absent"]
    assert "dependencies" in loaded.errors["package"]
    # A class of a state is found again by the name of its module.
    assert {"pkg_of_graphs.inner", "loose.agent_of_test"} <= set(sys.modules)


async def test_a_changed_file_is_read_again(folder: Path) -> None:
    source = GraphSource("g", None, "./changing_graph.py:graph", folder)
    for text in ("first", "second"):
        _file(folder, "changing_graph.py", f"TEXT = '{text}'\n" + _GRAPH)
        forget_modules([folder])
        export = (await load_graphs([source])).exports["g"]
        async with export.open(GraphUse(READ, {}, InMemoryStore())) as graph:
            assert (await graph.ainvoke({"text": ""}))["text"] == text


async def test_a_graph_is_described_for_servers() -> None:
    inner = _builder().compile()
    outer: StateGraph[Any, Any, Any, Any] = StateGraph(_State)
    outer.add_node("inner", inner)
    outer.add_edge(START, "inner")
    described = (await load_graphs([GraphSource("g", outer, description="Nested.")])).descriptions[0]
    assert described.error is None
    assert described.description == "Nested."
    assert described.drawing is not None
    assert [node["id"] for node in described.drawing["0"]["nodes"]] == ["__start__", "inner", "__end__"]
    assert "inner:add" in [node["id"] for node in described.drawing["1"]["nodes"]]
    assert described.drawing["0"]["nodes"][1] == {"id": "inner", "type": "runnable", "data": {"name": "inner"}}
    assert described.schemas is not None
    assert described.schemas["state_schema"]["title"] == "g_state"
    assert described.schemas["state_schema"]["properties"]["items"]["type"] == "array"
    assert described.subgraphs is not None
    assert list(described.subgraphs) == ["inner"]


def test_an_id_belongs_to_one_graph() -> None:
    app = App()
    app.graph("g", _builder())
    with pytest.raises(DuplicateGraph, match='"g" is taken'):
        app.graph("g", _builder())
