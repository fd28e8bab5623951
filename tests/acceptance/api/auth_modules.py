"""Auth modules and routes of a project, as files that a server loads."""

from __future__ import annotations

from pathlib import Path

from runlane.app import App
from runlane.domain.graph_registry import AgentServerOptions, AuthSource, HttpOptions

# Users are named by their bearer token. Each sees what it owns, and threads that are shared with it.
OWNERS = """
from langgraph_sdk import Auth

auth = Auth()


@auth.authenticate
async def authenticate(authorization: str | None):
    scheme, _, name = (authorization or "").partition(" ")
    if scheme != "Bearer" or not name or name == "guest":
        raise Auth.exceptions.HTTPException(status_code=401, detail="Sign in first.", headers={"X-Sign-In": "here"})
    if name == "broken":
        raise RuntimeError("the directory of users is down")
    if name == "nameless":
        return {"permissions": []}
    return {"identity": name, "display_name": name.title(), "permissions": ["use"], "token": "secret-of-" + name}


def visible(ctx):
    return {"$or": [{"owner": ctx.user.identity}, {"shared_with": {"$contains": ctx.user.identity}}]}


def owned(ctx, value):
    value.setdefault("metadata", {})["owner"] = ctx.user.identity
    return visible(ctx)


def threads_of(ctx):
    if ctx.user.identity == "raises":
        raise KeyError("no such user")
    if ctx.user.identity == "odd":
        return "yes"
    if ctx.user.identity == "regex":
        return {"owner": {"$regex": ".*"}}
    return visible(ctx)


@auth.on.threads
async def threads(ctx, value):
    owned(ctx, value)
    return threads_of(ctx)


# The filter alone hides threads from a search, except that of carol, which the handler narrows.
@auth.on.threads.search
async def search_threads(ctx, value):
    if ctx.user.identity == "carol":
        value.setdefault("metadata", {})["topic"] = "x"
    return threads_of(ctx)


@auth.on.threads.delete
async def delete_threads(ctx, value):
    if ctx.user.identity != "alice":
        raise Auth.exceptions.HTTPException(status_code=403, detail="Only alice deletes.")
    return {"owner": "alice"}


@auth.on.assistants
async def assistants(ctx, value):
    return owned(ctx, value)


@auth.on.assistants.search
async def search_assistants(ctx, value):
    return {"$or": [{"owner": ctx.user.identity}, {"created_by": "system"}]}


@auth.on.store.put
@auth.on.store.get
@auth.on.store.search
@auth.on.store.list_namespaces
async def items(ctx, value):
    value["namespace"] = (ctx.user.identity, *value["namespace"])
"""

# Crons and items that a user owns, and items that are public.
FILTERS = """
from langgraph_sdk import Auth

auth = Auth()


@auth.authenticate
async def authenticate(authorization: str | None):
    return (authorization or "").removeprefix("Bearer ")


@auth.on.crons
@auth.on.threads
@auth.on.assistants
async def owned(ctx, value):
    value.setdefault("metadata", {})["owner"] = ctx.user.identity
    return {"owner": ctx.user.identity}


@auth.on.store
async def items(ctx, value):
    return {"$or": [{"owner": ctx.user.identity}, {"public": True}]}
"""

OPEN = """
from langgraph_sdk import Auth

auth = Auth()


@auth.authenticate
async def authenticate(headers):
    return headers[b"x-user"].decode()
"""


def with_auth(app: App, folder: Path, source: str = OWNERS, *, studio: bool = True) -> App:
    """Give an app the auth module of this source."""
    name = f"auth_of_{folder.name}".replace("-", "_")
    (folder / f"{name}.py").write_text(source)
    app.agent_server = AgentServerOptions(auth=AuthSource(f"./{name}.py:auth", folder, studio))
    return app


def with_routes(app: App, folder: Path, source: str, *, authenticates: bool = False) -> App:
    """Give an app the routes of this source, beside what it has."""
    name = f"routes_of_{folder.name}".replace("-", "_")
    (folder / f"{name}.py").write_text(source)
    http = HttpOptions(f"./{name}.py:app", folder, authenticates)
    app.agent_server = AgentServerOptions(auth=app.agent_server.auth, http=http)
    return app
