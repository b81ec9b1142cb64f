"""The addresses that a judge's endpoint may have: public ones, and networks that are allowed.

In a confined run (TRIMTAB_IS_CONFINED, set by workers) a name is resolved once per request. Its
addresses are checked, and the connection is made to a checked address, so a name that resolves to
another one a moment later (DNS rebinding) has no effect. TRIMTAB_JUDGE_NETWORKS lists private
networks that are allowed, such as 10.1.0.0/16,10.2.2.3/32.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

CONFINED_VARIABLE = "TRIMTAB_IS_CONFINED"
NETWORKS_VARIABLE = "TRIMTAB_JUDGE_NETWORKS"
# IPv6 addresses whose last 32 bits are an IPv4 address.
_NAT64 = ip_network("64:ff9b::/96")
# Not public, though Python 3.11 says so: RFC 6890 (a cloud's metadata server is at 192.0.0.192)
# and RFC 3879 (site-local, deprecated).
_SPECIAL = (ip_network("192.0.0.0/24"), ip_network("fec0::/10"))


class AddressError(ValueError):
    """A name that resolves to an address that is not allowed."""


def is_confined() -> bool:
    """Whether this process may only connect to allowed addresses."""
    return bool(os.environ.get(CONFINED_VARIABLE))


def checked_address(host: str, port: int, env: Mapping[str, str] = os.environ) -> str:
    """The address to connect to for a host name or number.

    Raises AddressError if any of its addresses is not public (loopback, link-local, private, ...)
    and in no allowed network; OSError if it has no address.
    """
    resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [ip_address(str(place[0]).partition("%")[0]) for *_, place in resolved]
    networks = [ip_network(text) for text in env.get(NETWORKS_VARIABLE, "").split(",") if text]
    for address in addresses:
        unwrapped = _unwrapped(address)
        is_allowed = any(address in network or unwrapped in network for network in networks)
        if not is_allowed and not _is_public(unwrapped):
            raise AddressError(
                f"{host} resolves to {address}, which is neither public nor in "
                f"TRIMTAB_JUDGE_NETWORKS"
            )
    return str(addresses[0])


def _unwrapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that an IPv6 address embeds, or else the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    is_special = address.is_multicast or address.is_reserved or address.is_unspecified
    is_special = is_special or any(address in network for network in _SPECIAL)
    return address.is_global and not is_special
