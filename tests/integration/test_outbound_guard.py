"""Each guard of outbound requests by itself: no other guard covers its cases."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from runlane.addresses import AllowList
from runlane.errors import OutboundRefused, OutboundUnreachable
from runlane.outbound import Outbound, OutboundLimits
from runlane.outbound.guard import Guard
from runlane.settings import load_settings
from tests.integration.http_server import plain, serving


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "0177.0.0.1", "127.1"])
async def test_numbers_that_stand_for_addresses_are_refused_wherever_they_lead(host: str) -> None:
    async def public(_host: str, _port: int) -> Sequence[str]:
        return ["8.8.8.8"]

    with pytest.raises(OutboundRefused):
        await Guard(AllowList(), public).addresses(host, 80)


async def test_the_address_that_was_checked_is_called_and_not_the_name() -> None:
    async def elsewhere(_host: str, _port: int) -> Sequence[str]:
        # Nothing listens there, while the system resolves the name to the server's address.
        return ["127.0.0.2"]

    async with serving(plain()) as server:
        calling = Outbound(load_settings(outbound_allow="127.0.0.2"), resolve=elsewhere)
        with pytest.raises(OutboundUnreachable):
            await calling.request("GET", server.url(host="localhost"), limits=OutboundLimits(connect_seconds=5))
        await calling.close()
        assert server.connections == 0


async def test_a_password_in_a_url_is_refused_even_where_calls_are_allowed() -> None:
    async with serving(plain()) as server:
        calling = Outbound(load_settings(outbound_allow="127.0.0.1"))
        with pytest.raises(OutboundRefused) as caught:
            await calling.request("GET", f"http://user:canary@127.0.0.1:{server.port}/")
        await calling.close()
        assert "canary" not in str(caught.value)
        assert server.connections == 0
