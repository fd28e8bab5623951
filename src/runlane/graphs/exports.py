"""The forms in which a project exports a graph, and their conversion to a graph for one run.

A compiled graph and a StateGraph are used as they are. A function is a factory: it is called for each use with the
config, the server runtime, or both, according to its signature. It may be async, a generator, or return a context
manager, which is open for as long as the graph is used.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, cast, get_args, get_origin, get_type_hints

from langchain_core.runnables import RunnableConfig
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel
from langgraph.store.base import BaseStore
from langgraph_sdk.runtime import AccessContext, ServerRuntime
from pydantic import TypeAdapter, ValidationError

from runlane.errors import Fail, GraphNotLoaded
from runlane.graphs.langgraph_internals import ExecutionRuntime, ReadRuntime

# A graph with any types of state, context, input and output.
Graph = Pregel[Any, Any, Any, Any]

RUN: Final[AccessContext] = "threads.create_run"
UPDATE: Final[AccessContext] = "threads.update"
READ: Final[AccessContext] = "assistants.read"

_Argument = Literal["config", "runtime"]


@dataclass(frozen=True, slots=True)
class GraphUse:
    """The arguments of a factory. `context` is the context of a run, and None for other uses."""

    access: AccessContext
    config: RunnableConfig
    store: BaseStore
    context: Any = None


class StaticGraph:
    """A graph that is the same for every run."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    @asynccontextmanager
    async def open(self, use: GraphUse) -> AsyncGenerator[Graph]:
        """Return the graph for one use."""
        yield self._graph


class GraphFactory:
    """A function that makes a graph for each use."""

    def __init__(self, graph_id: str, function: Callable[..., Any]) -> None:
        self._id = graph_id
        self._function = function
        self._parameters, self._context_type = _parameters(graph_id, function)

    @asynccontextmanager
    async def open(self, use: GraphUse) -> AsyncGenerator[Graph]:
        """Call the function; its resources are closed after the use."""
        made = self._function(**{name: self._argument(argument, use) for name, argument in self._parameters.items()})
        if inspect.isasyncgen(made):
            made = asynccontextmanager(_again(made))()
        elif inspect.isgenerator(made):
            made = contextmanager(_again(made))()
        elif inspect.isawaitable(made):
            made = await made
        if isinstance(made, AbstractAsyncContextManager):
            async with cast("AbstractAsyncContextManager[Any]", made) as graph:
                yield compiled(self._id, graph)
        elif isinstance(made, AbstractContextManager):
            with cast("AbstractContextManager[Any]", made) as graph:
                yield compiled(self._id, graph)
        else:
            yield compiled(self._id, made)

    def _argument(self, argument: _Argument, use: GraphUse) -> Any:
        if argument == "config":
            return use.config
        if use.access != RUN:
            return ReadRuntime(access_context=use.access, store=use.store)
        return ExecutionRuntime(access_context=RUN, store=use.store, context=self._coerced(use.context))

    def _coerced(self, context: Any) -> Any:
        """Return the context as the type that the factory names for it."""
        if self._context_type is None or context is None:
            return context
        try:
            return TypeAdapter[Any](self._context_type).validate_python(context)
        except ValidationError as error:
            name = getattr(self._context_type, "__name__", str(self._context_type))
            raise Fail(f'The context of the run is not a valid {name} of the graph "{self._id}": {error}') from None


Export = StaticGraph | GraphFactory


def export_of(graph_id: str, exported: Any) -> Export:
    """Return the kind of an exported object. Raise GraphNotLoaded if it is neither a graph nor a factory."""
    if isinstance(exported, (Pregel, StateGraph)):
        return StaticGraph(compiled(graph_id, exported))
    if isinstance(exported, type) or not callable(exported):
        raise _not_a_graph(graph_id, exported)
    return GraphFactory(graph_id, cast("Callable[..., Any]", exported))


def compiled(graph_id: str, graph: Any) -> Graph:
    """Return the compiled graph of an object that a factory returned or a module exports."""
    if isinstance(graph, StateGraph):
        try:
            return cast("StateGraph[Any, Any, Any, Any]", graph).compile()
        except Exception as error:
            raise GraphNotLoaded(f'The graph "{graph_id}" does not compile: {type(error).__name__}: {error}') from error
    if isinstance(graph, Pregel):
        return cast("Graph", graph)
    raise _not_a_graph(graph_id, graph)


def _not_a_graph(graph_id: str, found: Any) -> GraphNotLoaded:
    return GraphNotLoaded(
        f'The graph "{graph_id}" is a {type(found).__name__}, not a graph. Export a compiled graph, a StateGraph, or a '
        "function that returns one."
    )


def _parameters(graph_id: str, function: Callable[..., Any]) -> tuple[Mapping[str, _Argument], Any]:
    """Return which argument each parameter of a factory gets, and the type of the context that it names."""
    target = inspect.unwrap(function)
    try:
        hints = get_type_hints(target)
    except Exception:  # noqa: BLE001 - an annotation that cannot be resolved; the names of parameters decide
        hints = {}
    arguments: dict[str, _Argument] = {}
    context_type: Any = None
    required = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and (parameter.default is parameter.empty or parameter.name in ("config", "runtime"))
    ]
    for parameter in required:
        argument = _argument_of(parameter.name, hints.get(parameter.name))
        if argument is None and len(required) == 1:
            argument = "config"
        if argument is None or parameter.kind is parameter.POSITIONAL_ONLY:
            raise GraphNotLoaded(
                f'The factory of the graph "{graph_id}" takes the parameter "{parameter.name}". A factory may take '
                "config: RunnableConfig and runtime: ServerRuntime."
            )
        if argument == "runtime":
            context_type = _context_type(hints.get(parameter.name))
        arguments[parameter.name] = argument
    return arguments, context_type


def _argument_of(name: str, hint: Any) -> _Argument | None:
    if hint is RunnableConfig:
        return "config"
    if _is_runtime(hint):
        return "runtime"
    if name == "config":
        return "config"
    return "runtime" if name == "runtime" else None


def _is_runtime(hint: Any) -> bool:
    return (get_origin(hint) or hint) in (ServerRuntime, ExecutionRuntime, ReadRuntime)


def _context_type(hint: Any) -> Any:
    """Return T of ServerRuntime[T], or None."""
    found = get_args(hint) if _is_runtime(hint) else ()
    return found[0] if found and isinstance(found[0], type) else None


def _again(generator: Any) -> Callable[[], Any]:
    return lambda: generator
