"""The user of a run, for its graph: `langgraph_auth_user` and its id in `config.configurable`.

Only the identity, the display name and the permissions are stored with the run. Other fields that an auth module
returns may be credentials, and a stored run must not contain them. A request cannot set these keys.
"""

from __future__ import annotations

from dataclasses import replace

from runlane.domain.access import Principal, UserPrincipal
from runlane.domain.graph import USER_PREFIX, GraphRequest, without_user


def with_user(request: GraphRequest, principal: Principal) -> GraphRequest:
    """Return the request with its user, if an auth module has authenticated one."""
    config = without_user(request.config)
    if isinstance(principal, UserPrincipal):
        user = principal.user
        shown = {
            "identity": principal.name,
            "display_name": str(user.display_name),
            "is_authenticated": True,
            "permissions": [str(permission) for permission in user.permissions],
        }
        config["configurable"] = {
            **(config.get("configurable") or {}),
            f"{USER_PREFIX}user": shown,
            f"{USER_PREFIX}user_id": principal.name,
            f"{USER_PREFIX}permissions": shown["permissions"],
        }
    return request if config == request.config else replace(request, config=config)
