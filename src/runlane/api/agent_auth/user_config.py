"""The user of a run, for its graph: `langgraph_auth_user` and its id in `config.configurable`.

Only the identity, the display name and the permissions are stored with the run. Other fields that an auth module
returns may be credentials, and a stored run must not contain them. A request cannot set these keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, cast

from runlane.domain.access import Principal, UserPrincipal
from runlane.domain.graph import GraphRequest

_PREFIX: Final = "langgraph_auth_"


def with_user(request: GraphRequest, principal: Principal) -> GraphRequest:
    """Return the request of a run with its user, if an auth module has authenticated one."""
    given = cast("Mapping[str, Any]", request.config.get("configurable") or {})
    configurable = {name: value for name, value in given.items() if not name.startswith(_PREFIX)}
    if isinstance(principal, UserPrincipal):
        user = principal.user
        shown = {
            "identity": principal.name,
            "display_name": str(user.display_name),
            "is_authenticated": True,
            "permissions": [str(permission) for permission in user.permissions],
        }
        configurable |= {
            f"{_PREFIX}user": shown,
            f"{_PREFIX}user_id": principal.name,
            f"{_PREFIX}permissions": shown["permissions"],
        }
    if configurable == given:
        return request
    return replace(request, config={**request.config, "configurable": configurable})
