"""Which addresses may be called: no private one, in whatever form it is written."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import ip_addresses

from runlane import InvalidSettings
from runlane.addresses import literal, odd_number, parse_allow_list, refusal
from runlane.settings import load_settings

INSIDE = [
    "0.0.0.0",
    "10.1.2.3",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.1",
    "198.18.0.1",
    "198.51.100.7",
    "203.0.113.9",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
]
PUBLIC = ["1.1.1.1", "8.8.8.8", "93.184.216.34", "100.63.255.255", "100.128.0.0", "172.32.0.1", "223.255.255.255"]


@pytest.mark.parametrize("text", INSIDE)
def test_no_form_of_an_inner_address_is_public(text: str) -> None:
    address = IPv4Address(text)
    number = int(address)
    forms = [
        address,
        IPv6Address(f"::ffff:{text}"),
        IPv6Address(f"::{text}"),
        IPv6Address(f"64:ff9b::{text}"),
        IPv6Address(f"64:ff9b:1::{text}"),
        IPv6Address((0x2002 << 112) | (number << 80)),
        IPv6Address((0x20010000 << 96) | (number ^ 0xFFFFFFFF)),
    ]
    assert [str(form) for form in forms if refusal(form) is None] == []


@pytest.mark.parametrize(
    "text",
    [
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "2606:4700::1%eth0",
        "fec0::1",
        "fc00::1",
        "fd00:ec2::254",
        "fd20:ce::254",
        "ff02::1",
        "ff0e::1",
        "2001::1",
        "2001:2::1",
        "2001:10::1",
        "2001:db8::1",
        "3fff::1",
        "100::1",
        "5f00::1",
        "4000::1",
        "::ffff:8.8.8.8",
        "2002:808:808::1",
        "64:ff9b:1::8.8.8.8",
    ],
)
def test_addresses_that_are_not_global_unicast_are_refused(text: str) -> None:
    assert refusal(ip_address(text)) is not None


@pytest.mark.parametrize("text", [*PUBLIC, "2606:4700:4700::1111", "2a00:1450::8a", "64:ff9b::8.8.8.8"])
def test_public_addresses_may_be_called(text: str) -> None:
    assert refusal(ip_address(text)) is None


@given(ip_addresses(v=4))
def test_nothing_that_python_calls_private_is_public(address: IPv4Address) -> None:
    if not address.is_global or address.is_multicast or address.is_reserved:
        assert refusal(address) is not None
    assert refusal(IPv6Address(f"64:ff9b::{address}")) == refusal(address)


@given(ip_addresses(v=6))
def test_ipv6_is_public_only_within_global_unicast(address: IPv6Address) -> None:
    if refusal(address) is None:
        assert address.is_global
        assert not address.is_multicast
        assert address.ipv4_mapped is None
        assert address.sixtofour is None
        assert address.teredo is None


@given(st.sampled_from(INSIDE), st.integers(0, 2**96 - 1))
def test_the_rest_of_a_tunnel_address_changes_nothing(text: str, rest: int) -> None:
    number = int(IPv4Address(text))
    assert refusal(IPv6Address((0x2002 << 112) | (number << 80) | (rest & (2**80 - 1)))) is not None
    assert refusal(IPv6Address((0x20010000 << 96) | rest)) is not None
    assert refusal(IPv6Address((0x64FF9B0001 << 80) | (rest & (2**80 - 1)))) is not None


@pytest.mark.parametrize(
    "host", ["2130706433", "0x7f000001", "0X7F.1", "127.1", "0177.0.0.1", "127.0.0.0x1", "1.2.3.4.5", "127.1.", "0x"]
)
def test_numbers_that_resolvers_take_for_addresses_are_known(host: str) -> None:
    assert odd_number(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "example.com", "1.example", "0x7f.example", "a1"])
def test_other_hosts_are_not_numeric_addresses(host: str) -> None:
    assert not odd_number(host)


def test_the_allow_list_has_names_addresses_and_networks() -> None:
    allowed = parse_allow_list(
        " internal.example ,Api.Example:8443, 127.0.0.1:8080,[::1]:99, ::2, 10.0.0.0/8,fd00::/8 "
    )
    assert allowed.has_host("INTERNAL.example.", 1)
    assert allowed.has_host("api.example", 8443)
    assert not allowed.has_host("api.example", 443)
    assert not allowed.has_host("x.internal.example", 1)
    assert not allowed.has_host("127.0.0.1", 8080), "it is an address, not a name"
    for text, port in (("127.0.0.1", 8080), ("::1", 99), ("::2", 5), ("10.9.9.9", 1), ("fd12::1", 1)):
        assert allowed.has_address(ip_address(text), port), text
    for text, port in (("127.0.0.1", 8081), ("::1", 98), ("11.0.0.1", 1), ("::ffff:10.0.0.1", 1), ("fd12::1%eth0", 1)):
        assert not allowed.has_address(ip_address(text), port), text
    assert parse_allow_list("").entries == ()
    assert parse_allow_list(" , ").entries == ()


@pytest.mark.parametrize(
    "text",
    ["a b", "http://x", "*", "x:", "x:0", "x:70000", "x:y", "10.0.0.1/8", "10.0.0.0/33", "2130706433", "0x7f.1", "[::1",
     "fe80::1%eth0", "a..b", "-a.example", "a,b c", "user@host"],
)  # fmt: skip
def test_invalid_entries_are_refused_at_start(text: str) -> None:
    with pytest.raises(InvalidSettings, match="RUNLANE_OUTBOUND_ALLOW"):
        load_settings(outbound_allow=text)


def test_a_url_is_refused_with_the_form_to_write() -> None:
    with pytest.raises(InvalidSettings, match=r"'http://127.0.0.1:8398' is a URL. Write only its host and port"):
        load_settings(outbound_allow="http://127.0.0.1:8398")


def test_networks_are_compared_as_networks() -> None:
    assert parse_allow_list("10.0.0.0/8").entries[0].network == IPv4Network("10.0.0.0/8")
    assert literal("127.0.0.1") == IPv4Address("127.0.0.1")
    assert literal("127.1") is None
