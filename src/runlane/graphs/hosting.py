"""Host the graphs of a worker: load them, register them for servers, and execute their runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from langgraph.store.base import IndexConfig, TTLConfig, ensure_embeddings

from runlane.domain.graph_registry import GraphSource, StoreIndex, StoreOptions
from runlane.errors import ConfigurationError, GraphNotLoaded
from runlane.graphs.executor import GraphExecutor
from runlane.graphs.item_store import ItemStore
from runlane.graphs.loader import load_export
from runlane.graphs.registry import load_graphs
from runlane.store.sql.database import Database
from runlane.store.threads.graphs import register_graphs


async def host_graphs(
    database: Database, sources: Collection[GraphSource], store: StoreOptions, max_run_bytes: int
) -> GraphExecutor:
    """Return the executor of these graphs. Graphs that do not load are registered with the reason."""
    stores = ItemStores(database, store)
    loaded = await load_graphs(sources)
    await register_graphs(database, loaded.descriptions)
    return GraphExecutor(database, loaded, stores.of, max_run_bytes)


class ItemStores:
    """The stores of the tenants, with the same options."""

    def __init__(self, database: Database, options: StoreOptions) -> None:
        self._database = database
        self._index = None if options.index is None else _index(options.index)
        self._ttl: TTLConfig | None = None
        if options.ttl is not None:
            self._ttl = {"refresh_on_read": options.ttl.refresh_on_read, "default_ttl": options.ttl.minutes}
        self._stores: dict[str, ItemStore] = {}

    def of(self, tenant: str) -> ItemStore:
        """Return the store of a tenant."""
        store = self._stores.get(tenant)
        if store is None:
            store = self._stores[tenant] = ItemStore(self._database, tenant, index=self._index, ttl=self._ttl)
        return store


def _index(index: StoreIndex) -> IndexConfig:
    """Return the index with the function that computes embeddings. ConfigurationError if it cannot be loaded."""
    embed: Any = index.embed
    try:
        if ".py:" in index.embed or "/" in index.embed.partition(":")[0]:
            embed = load_export(GraphSource("store.index.embed", None, index.embed, index.folder))
        else:
            embed = ensure_embeddings(embed)
    except (GraphNotLoaded, ValueError, ImportError) as error:
        raise ConfigurationError(f'The embeddings "{index.embed}" of "store.index" cannot be loaded: {error}') from None
    return {"dims": index.dims, "embed": embed, "fields": list(index.fields)}
