"""The client's calls for definitions and bundles."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from runlane.client.http import PREFIX, Http, part
from runlane.client.wire import ownership, parse
from runlane.domain.mcp_check import McpCheck


class DefinitionCalls:
    """Calls for definitions and bundles. A part of Client."""

    _http: Http

    async def sync(
        self,
        definitions: Mapping[str, Sequence[Mapping[str, Any]]],
        *,
        dry_run: bool = False,
        remove_missing: bool = False,
        source: str | None = None,
        take_over: bool = False,
        tenant: str | None = None,
    ) -> dict[str, Any]:
        """Sync definitions, given as lists by folder name, such as `orchestrations`. Return the result for each.

        `remove_missing` removes the definitions that the same `source` (default: "default") synced earlier and that
        this sync does not contain. Without `take_over`, a change of another source's definition raises Conflict.
        """
        body = {**definitions, "dry_run": dry_run, "remove_missing": remove_missing, "tenant": tenant}
        body |= ownership(source, take_over)
        return await self._http.change("POST", f"{PREFIX}/sync", body)

    async def definition(
        self, kind: str, name: str, version: str | None = None, *, tenant: str | None = None
    ) -> dict[str, Any]:
        """Return the current or the given version of a definition.

        `kind` is a name such as `orchestrations` or `mcp-servers`.
        """
        return await self._http.read(f"{_folder(kind)}/{part(name)}", {"version": version, "tenant": tenant})

    async def definitions(self, kind: str, *, tenant: str | None = None) -> AsyncGenerator[dict[str, Any]]:
        """Yield the current definitions of a kind by id, read page by page."""
        key = kind.replace("-", "_")
        async for item in self._http.pages(dict[str, Any], _folder(kind), key, {"tenant": tenant}):
            yield item

    async def definition_versions(self, kind: str, name: str, *, tenant: str | None = None) -> list[dict[str, Any]]:
        """Return the versions of a definition, newest first, at most 100."""
        path = f"{_folder(kind)}/{part(name)}/versions"
        return (await self._http.read(path, {"tenant": tenant}))["versions"]

    async def definition_users(self, kind: str, name: str, *, tenant: str | None = None) -> dict[str, Any]:
        """Return the definitions whose runs may use this one as `used_by`, and those that its own runs may use."""
        path = f"{PREFIX}/definitions/{part(kind.replace('_', '-'))}/{part(name)}/used-by"
        return await self._http.read(path, {"tenant": tenant})

    async def definition_user_counts(self, kind: str, *, tenant: str | None = None) -> dict[str, int]:
        """Return how many definitions may use each definition of a kind, by id; those that none uses are left out."""
        path = f"{PREFIX}/definitions/{part(kind.replace('_', '-'))}/used-by"
        return (await self._http.read(path, {"tenant": tenant}))["counts"]

    async def check_mcp_server(self, name: str, *, tenant: str | None = None) -> McpCheck:
        """Let the server connect to a stored MCP server, as agents do. Return its tools, or why it cannot be used."""
        query = "" if tenant is None else f"?tenant={part(tenant)}"
        path = f"{PREFIX}/mcp-servers/{part(name)}/check{query}"
        return parse(McpCheck, await self._http.change("POST", path))

    async def export_bundle(
        self,
        chosen: Mapping[str, Sequence[str]] | None = None,
        *,
        with_used: bool = True,
        tenant: str | None = None,
    ) -> dict[str, Any]:
        """Return a bundle of all definitions, or of the chosen ones (lists of ids by kind) and all that they use."""
        body = {**(chosen or {}), "with_used": with_used, "tenant": tenant}
        return await self._http.change("POST", f"{PREFIX}/bundles/export", body)

    async def import_bundle(
        self,
        bundle: Mapping[str, Any],
        chosen: Mapping[str, Sequence[str]] | None = None,
        *,
        keep_existing: bool = False,
        source: str | None = None,
        take_over: bool = False,
        dry_run: bool = False,
        tenant: str | None = None,
    ) -> dict[str, Any]:
        """Import a bundle, or the chosen part of it. Return the result for each definition and the secrets that it
        needs.

        Definitions that belong to a source are skipped unless `take_over` is set.
        """
        body = {"bundle": bundle, **(chosen or {}), "keep_existing": keep_existing, "dry_run": dry_run}
        body |= {"tenant": tenant, **ownership(source, take_over)}
        return await self._http.change("POST", f"{PREFIX}/bundles/import", body)

    async def check_definition(
        self, kind: str, definition: Mapping[str, Any], *, tenant: str | None = None
    ) -> dict[str, Any]:
        """Check a definition as `runlane validate` does, together with the stored definitions. Nothing is stored."""
        body = {"kind": kind, "definition": definition, "tenant": tenant}
        return await self._http.change("POST", f"{PREFIX}/definitions/check", body)

    async def put_definition(
        self,
        kind: str,
        name: str,
        definition: Mapping[str, Any],
        *,
        version: str | None = None,
        take_over: bool = False,
        tenant: str | None = None,
    ) -> dict[str, Any]:
        """Store one definition. With `version`, raise Conflict if the stored definition has another version.

        Without `take_over`, a definition that files or another source own raises Conflict.
        """
        path = f"{PREFIX}/definitions/{part(kind.replace('_', '-'))}/{part(name)}"
        body = {"definition": definition, "take_over": take_over, "tenant": tenant}
        return await self._http.change("PUT", path, body, if_match=version)

    async def definition_schema(self, kind: str) -> dict[str, Any]:
        """Return the JSON Schema of definition files. `kind` is in the singular, such as `orchestration`."""
        return await self._http.read(f"{PREFIX}/schemas/{part(kind)}")

    async def input_form(self, orchestration_id: str, *, tenant: str | None = None) -> dict[str, Any]:
        """Return the JSON Schema of the input of an orchestration as `input_schema`, with an example."""
        path = f"{PREFIX}/orchestrations/{part(orchestration_id)}/input"
        return await self._http.read(path, {"tenant": tenant})

    async def import_openapi(
        self,
        spec: Mapping[str, Any],
        *,
        base_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        name_prefix: str = "",
        save: bool = False,
        take_over: bool = False,
        tenant: str | None = None,
    ) -> dict[str, Any]:
        """Create tools from an OpenAPI description. They are stored with `save`, and returned in any case."""
        body = {"spec": spec, "base_url": base_url, "headers": dict(headers or {}), "name_prefix": name_prefix}
        body |= {"save": save, "take_over": take_over, "tenant": tenant}
        return await self._http.change("POST", f"{PREFIX}/tools/import/openapi", body)


def _folder(kind: str) -> str:
    return f"{PREFIX}/{part(kind.replace('_', '-'))}"
