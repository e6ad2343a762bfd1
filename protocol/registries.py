"""What an operator may say of single model registries: a table of the settings."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

_HOST = re.compile(r"(?:[a-z0-9_][a-z0-9_.-]*|\[[0-9a-f:.]+\])(?::([1-9][0-9]{0,4}))?")


def canonical_host(text: str) -> str:
    """`host` or `host:port` in lower case, without the port that https has anyway.

    Raises ValueError for what is none, such as a URL.
    """
    host = text.strip().lower()
    found = _HOST.fullmatch(host)
    if len(host) > 350 or not found or int(found[1] or 1) > 65535:
        raise ValueError("is not a host; write registry.example.org, or with a port host:5000")
    return host.removesuffix(":443")


class RegistryAccess(BaseModel):
    """What holds for one registry."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )

    username: str | None = Field(default=None, min_length=1, max_length=512)
    """Who Pronk says to be there. Needs a password."""

    password: SecretStr | None = None
    """That user's password, or an access token that the registry takes for one."""

    token: SecretStr | None = None
    """A bearer token, instead of user and password."""

    realm: str | None = None
    """Host of the registry's token server where it is not the registry itself, such as
    `auth.example.org`. User and password are shown to that host then, and it may have a private
    address. No other host is ever shown them, whatever the registry says."""

    storage: list[Annotated[str, Field(max_length=350)]] = Field(default_factory=list[str])
    """Hosts on private addresses that the registry may redirect downloads to, such as
    `minio.local:9000`. Hosts on the internet need not be named."""

    insecure: bool = False
    """Whether user, password and token may be sent over plain HTTP, or to a certificate that cannot
    be verified, when a pull or push is `insecure`. Anybody on the way can read them then."""

    @field_validator("realm")
    @classmethod
    def _host(cls, value: str | None) -> str | None:
        return canonical_host(value) if value else value

    @field_validator("storage")
    @classmethod
    def _hosts(cls, value: list[str]) -> list[str]:
        return [canonical_host(host) for host in value]

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password belong together")
        if self.username and self.token is not None:
            raise ValueError("has a token as well as a username; one of them is enough")
        if self.username and ":" in self.username:
            raise ValueError("a username cannot hold a colon")
        secrets = (self.password, self.token)
        if any(s is not None and not _sendable(s.get_secret_value()) for s in secrets):
            raise ValueError("a password or token is empty, or holds what no header can")
        return self


def canonical_registries(registries: dict[str, RegistryAccess]) -> dict[str, RegistryAccess]:
    """The same by canonical hosts. Raises ValueError for what is no host, or is named twice."""
    canonical: dict[str, RegistryAccess] = {}
    for host, access in registries.items():
        full = canonical_host(host)
        if full in canonical:
            raise ValueError(f"names {full} twice")
        canonical[full] = access
    return canonical


def _sendable(secret: str) -> bool:
    return 0 < len(secret) <= 16 * 1024 and secret.isprintable()
