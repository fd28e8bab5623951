"""Addresses that outbound calls may reach: public ones, and those that an operator allows by name or network.

Pure rules, without a resolver. `ipaddress.is_global` alone would accept NAT64, 6to4 and multicast, so IPv6 has the
opposite rule: only global unicast addresses that are not tunnels may be called.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# NAT64 embeds an IPv4 address in the last four bytes.
_NAT64: Final = IPv6Network("64:ff9b::/96")
_GLOBAL_V6: Final = IPv6Network("2000::/3")
_REFUSED_V4: Final[tuple[tuple[IPv4Network, str], ...]] = tuple(
    (IPv4Network(network), reason)
    for network, reason in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared with a provider's network"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "a service of a cloud provider"),
        ("169.254.0.0/16", "link-local, the metadata service of clouds"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "for documentation"),
        ("192.88.99.0/24", "a 6to4 relay"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "for benchmarks"),
        ("198.51.100.0/24", "for documentation"),
        ("203.0.113.0/24", "for documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
)
_REFUSED_V6: Final[tuple[tuple[IPv6Network, str], ...]] = tuple(
    (IPv6Network(network), reason)
    for network, reason in (
        ("::1/128", "loopback"),
        ("::/128", "unspecified"),
        ("::ffff:0:0/96", "IPv4 in another form"),
        ("::/96", "IPv4 in another form"),
        # The length of the prefix differs between networks, so the embedded address is unknown.
        ("64:ff9b:1::/48", "a translation to IPv4 of the local network"),
        ("2001::/32", "a Teredo tunnel"),
        ("2001::/23", "reserved"),
        ("2001:db8::/32", "for documentation"),
        ("2002::/16", "a 6to4 tunnel"),
        ("3fff::/20", "for documentation"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "private"),
        ("ff00::/8", "multicast"),
    )
)
_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT: Final = re.compile(r"[0-9]{1,5}")


def refusal(address: Address) -> str | None:
    """Return why this address must not be called; None if it is public."""
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return "an address of one network interface"
        if address in _NAT64:
            return refusal(IPv4Address(int(address) & 0xFFFFFFFF))
        reason = next((reason for network, reason in _REFUSED_V6 if address in network), None)
        return reason or (None if address in _GLOBAL_V6 and address.is_global else "reserved")
    reason = next((reason for network, reason in _REFUSED_V4 if address in network), None)
    return reason or (None if address.is_global else "reserved")


def normal_host(host: str) -> str:
    """Return a host in the form used for comparison: lower case, without brackets and trailing dot."""
    return host.lower().removeprefix("[").removesuffix("]").removesuffix(".")


def literal(host: str) -> Address | None:
    """Return the address that a host is in standard notation; None if it is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def odd_number(host: str) -> bool:
    """Return whether only some resolvers accept a host as an address: 2130706433, 0x7f.1, 0177.0.0.1."""
    return _NUMBER.fullmatch(normal_host(host).rpartition(".")[2]) is not None and literal(normal_host(host)) is None


@dataclass(frozen=True, slots=True)
class _Allowed:
    """An entry of the list: a name or a network, on one port or on all ports."""

    name: str | None
    network: Network | None
    port: int | None


@dataclass(frozen=True, slots=True)
class AllowList:
    """Hosts and networks that may be called although they are not public."""

    entries: Sequence[_Allowed] = ()

    def has_host(self, host: str, port: int) -> bool:
        """Return whether every address of this name may be called."""
        name = normal_host(host)
        return any(entry.name == name and entry.port in (None, port) for entry in self.entries)

    def has_address(self, address: Address, port: int) -> bool:
        """Return whether this address may be called. One with a zone may not: its meaning differs between machines."""
        if isinstance(address, IPv6Address) and address.scope_id is not None:
            return False
        return any(
            entry.network is not None and address in entry.network and entry.port in (None, port)
            for entry in self.entries
        )


def parse_allow_list(text: str) -> AllowList:
    """Parse the value of a setting: names, name:port, addresses, address:port, networks. Raises ValueError for the
    first part that is none of these."""
    return AllowList(tuple(_entry(part.strip()) for part in text.split(",") if part.strip()))


def parse_networks(text: str) -> tuple[Network, ...]:
    """Parse addresses and networks, separated by commas. Raises ValueError for the first part that is neither."""
    networks: list[Network] = []
    for part in (part.strip() for part in text.split(",")):
        if not part:
            continue
        try:
            networks.append(ip_network(part))
        except ValueError as error:
            raise ValueError(
                f"{part!r} is not a valid address or network ({error}). Write one as 10.0.0.5 or 10.0.0.0/8"
            ) from None
    return tuple(networks)


def _entry(text: str) -> _Allowed:
    if "://" in text:
        raise ValueError(f"{text!r} is a URL. Write only its host and port, such as 127.0.0.1:8080")
    if "/" in text:
        try:
            return _Allowed(None, ip_network(text), None)
        except ValueError as error:
            raise ValueError(
                f"{text!r} is not a valid network ({error}). Write one as 10.0.0.0/8 or fd00::/8"
            ) from None
    address = literal(text)
    host, port = (text, None) if address is not None else _split(text)
    address = literal(normal_host(host))
    if address is not None:
        if isinstance(address, IPv6Address) and address.scope_id is not None:
            raise ValueError(f"{text!r} has a zone, whose meaning differs between machines. Remove the zone")
        return _Allowed(None, ip_network(address), port)
    name = normal_host(host)
    if odd_number(name) or not all(_LABEL.fullmatch(label) for label in name.split(".")):
        raise ValueError(
            f"{text!r} is not a valid host. Write internal.example, internal.example:8080, 127.0.0.1:8080, [::1]:8080 "
            "or 10.0.0.0/8, separated by commas"
        )
    return _Allowed(name, None, port)


def _split(text: str) -> tuple[str, int | None]:
    host, separator, port = text.rpartition(":")
    if not separator or text.endswith("]"):
        return text, None
    if _PORT.fullmatch(port) is None or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} has no port between 1 and 65535 after its colon")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Return whether an address or name can be reached from this machine only."""
    name = host.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
