"""Where an endpoint's name leads: to the internet, unless more is allowed.

In a run that a worker took (TRIMTAB_IS_CONFINED) a name is resolved once for each request, what it
leads to is checked, and that is what the connection is made to: a name that leads elsewhere a
moment later leads nowhere. TRIMTAB_JUDGE_NETWORKS names private networks that are allowed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

CONFINED_VARIABLE = "TRIMTAB_IS_CONFINED"
NETWORKS_VARIABLE = "TRIMTAB_JUDGE_NETWORKS"
# IPv6 addresses that stand for an IPv4 address: by NAT64 in their last bits, by 6to4 before.
_NAT64, _SIX_TO_FOUR = ip_network("64:ff9b::/96"), ip_network("2002::/16")
# Special ones that Python 3.11 takes for the internet's: RFC 6890 (a cloud's metadata is at
# 192.0.0.192) and RFC 3879 (private, of old).
_SPECIAL = (ip_network("192.0.0.0/24"), ip_network("fec0::/10"))


class AddressError(ValueError):
    """A name that leads where no judge may be."""


def is_confined(env: Mapping[str, str] = os.environ) -> bool:
    """Whether this process may only ask judges where they are allowed to be."""
    return bool(env.get(CONFINED_VARIABLE))


def checked_address(host: str, port: int, env: Mapping[str, str] = os.environ) -> str:
    """The address to connect to for a name or number.

    Raises AddressError if any of its addresses is loopback, link-local, private or otherwise not of
    the internet, and in no network that is allowed; OSError where it has none.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [ip_address(str(each[4][0]).partition("%")[0]) for each in found]
    networks = [ip_network(text) for text in env.get(NETWORKS_VARIABLE, "").split(",") if text]
    for address in addresses:
        meant = _meant(address)
        if not _is_public(meant) and not any(
            each in n for n in networks for each in (address, meant)
        ):
            raise AddressError(
                f"{host} resolves to {address}, which is not on the internet and not in "
                f"TRIMTAB_JUDGE_NETWORKS"
            )
    return str(addresses[0])


def _meant(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that an IPv6 address stands for, or the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    if address in _SIX_TO_FOUR:
        return IPv4Address(int(address) >> 80 & 0xFFFFFFFF)
    return address


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    is_special = address.is_multicast or address.is_reserved or address.is_unspecified
    is_special = is_special or any(address in each for each in _SPECIAL)
    return address.is_global and not is_special
