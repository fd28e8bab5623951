"""Secrets. Requests contain values; responses never do."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints

from runlane.api.schemas.editing import UsedBy
from runlane.api.schemas.fields import Name, RequestModel, ResponseModel, text_only
from runlane.api.schemas.listing import Listing
from runlane.domain.secret import MAX_BYTES, MIN_CHARACTERS, Secret

Value = Annotated[str, StringConstraints(min_length=MIN_CHARACTERS, max_length=MAX_BYTES), AfterValidator(text_only)]


class PutSecret(RequestModel):
    """The new value of a secret."""

    model_config = ConfigDict(
        # Errors name the field, not its value.
        hide_input_in_errors=True,
        json_schema_extra={"examples": [{"value": "ghp-example-of-a-token"}]},
    )

    value: Value = Field(description="At least 8 characters and at most 64 KiB. It is never returned.")
    tenant: Name | None = Field(
        default=None, description="The tenant, for platform admins. Other keys use their own tenant."
    )


class SecretUsers(ResponseModel):
    """The definitions that refer to a secret."""

    used_by: list[UsedBy]


SECRETS = Listing("secrets", Secret, cursor="name")


class RotateSecrets(RequestModel):
    """Options of a re-encryption with the current key."""

    model_config = ConfigDict(json_schema_extra={"examples": [{}]})

    tenant: Name | None = Field(default=None, description="The tenant, for platform admins. Default: all.")
