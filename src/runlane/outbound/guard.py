"""The guard makes every outbound connection, and only to addresses that it has checked.

A name is resolved once and all its addresses are checked. The connection goes to one of these addresses, so a later
change of the name has no effect. TLS still checks the certificate against the name.
"""

from __future__ import annotations

import asyncio
from typing import Final

import httpcore2

from runlane.addresses import Address, AllowList, literal, normal_host, odd_number, refusal
from runlane.errors import OutboundRefused
from runlane.outbound.resolve import Resolve, resolve_name
from runlane.outbound.stream import Stream, connect

# A name may have hundreds of addresses. A few attempts suffice to detect that a server is unavailable.
_TRIED: Final = 4
_SHOWN: Final = 253
_FIX: Final = "To allow it, add it to RUNLANE_OUTBOUND_ALLOW."


class Guard:
    """Connects to allowed destinations and refuses all others."""

    def __init__(self, allowed: AllowList, resolve: Resolve = resolve_name) -> None:
        self._allowed = allowed
        self._resolve = resolve

    async def connect(self, host: str, port: int, timeout: float | None = None) -> Stream:
        """Connect to one of the addresses of the host. All its addresses must be allowed."""
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        try:
            async with asyncio.timeout(timeout):
                addresses = (await self.addresses(host, port))[:_TRIED]
        except TimeoutError:
            raise httpcore2.ConnectTimeout("the name was not resolved in time") from None
        for position, address in enumerate(addresses):
            # The last address gets all the remaining time. Each earlier address gets an equal share.
            left = None if until is None else max(0.001, (until - loop.time()) / (len(addresses) - position))
            try:
                return await connect(str(address), port, left)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                if position == len(addresses) - 1:
                    raise
        raise httpcore2.ConnectError("the name has no address")

    async def addresses(self, host: str, port: int) -> list[Address]:
        """Return the distinct addresses of a host. Raise OutboundRefused if any of them must not be called."""
        name = normal_host(host)
        if "%" in name:
            raise _refused(name, "an address of one network interface")
        if odd_number(name):
            raise _refused(name, "a number that resolves to an address")
        address = literal(name)
        found = [address] if address is not None else await self._resolved(host, port)
        if not self._allowed.has_host(name, port):
            for item in found:
                reason = refusal(item)
                if reason is not None and not self._allowed.has_address(item, port):
                    raise _refused(name, reason)
        return found

    async def _resolved(self, host: str, port: int) -> list[Address]:
        try:
            resolved = await self._resolve(host, port)
        except (OSError, UnicodeError):
            raise httpcore2.ConnectError("the name cannot be resolved") from None
        found: dict[Address, None] = {}
        for text in resolved:
            address = literal(text)
            if address is None:
                raise _refused(host, "not an address")
            found[address] = None
        return list(found)


def _refused(host: str, reason: str) -> OutboundRefused:
    return OutboundRefused(f'"{host[:_SHOWN]}" must not be called: it is {reason}. {_FIX}')
