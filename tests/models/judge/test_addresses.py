"""A worker's run asks a judge on the internet, or where it is allowed, and at no other address."""

from __future__ import annotations

import datetime
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.models.judge.conftest import endpoint, request
from tests.models.judge.endpoint import Reply, completion, serving
from trimtab.models.judge.addresses import AddressError, checked_address
from trimtab.models.judge.client import EndpointError

Names = Callable[..., None]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """Lets a name lead to addresses, the first time to the first of them and so on."""

    def lead(**addresses: list[str]) -> None:
        left = {name.replace("_", "."): list(found) for name, found in addresses.items()}

        def getaddrinfo(host: Any, port: Any, *_: Any, **__: Any) -> list[Any]:
            host = host.decode() if isinstance(host, bytes) else host
            found = left[host].pop(0) if host in left else host
            family = socket.AF_INET6 if ":" in found else socket.AF_INET
            return [(family, socket.SOCK_STREAM, 6, "", (found, port))]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    return lead


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.9.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1"),
        *("169.254.169.254", "100.64.0.1", "198.18.0.1", "224.0.0.1", "255.255.255.255"),
        *("::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1"),
        *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:7f00:1::"),
        *("192.0.0.192", "::ffff:192.0.0.192", "fec0::1"),
    ],
)
def test_addresses_that_are_not_of_the_internet_are_refused(address: str, names: Names) -> None:
    names(judge_example=[address])
    with pytest.raises(AddressError, match=r"judge.example resolves to .* neither public"):
        checked_address("judge.example", 443, {})


@pytest.mark.parametrize("number", ["2130706433", "0x7f.1", "127.1", "017700000001"])
def test_other_spellings_of_loopback_are_loopback(number: str) -> None:
    with pytest.raises((AddressError, OSError)):
        checked_address(number, 80, {})


def test_the_internet_and_what_is_allowed_are_not(names: Names) -> None:
    names(judge_example=["93.184.215.14", "2606:2800:21f::1", "10.1.2.3", "10.2.2.3", "10.2.2.3"])
    allowed = {"TRIMTAB_JUDGE_NETWORKS": "10.1.0.0/16,10.2.2.3/32"}
    found = [checked_address("judge.example", 443, allowed) for _ in range(4)]
    assert found == ["93.184.215.14", "2606:2800:21f::1", "10.1.2.3", "10.2.2.3"]
    with pytest.raises(AddressError):
        checked_address("judge.example", 443, {"TRIMTAB_JUDGE_NETWORKS": "10.1.0.0/16"})


def test_one_bad_address_of_several_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(2, 1, 6, "", (each, 443)) for each in ("93.184.215.14", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(AddressError):
        checked_address("judge.example", 443, {})


def test_a_confined_run_asks_nobody_on_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_IS_CONFINED", "1")
    with serving(lambda *_: completion("A")) as server:
        for address in (server.url, server.url.replace("127.0.0.1", "localhost")):
            with pytest.raises(EndpointError, match="the address is not allowed"):
                list(endpoint(server, base_url=address).answers([("x", request("x"))]))
        assert server.bodies == []
        monkeypatch.setenv("TRIMTAB_JUDGE_NETWORKS", "127.0.0.0/8")
        ((_, answer),) = endpoint(server).answers([("x", request("x"))])
    assert answer.content == "A"


def test_a_name_that_leads_elsewhere_a_moment_later_leads_nowhere(
    monkeypatch: pytest.MonkeyPatch, names: Names
) -> None:
    """What was checked is what the connection is made to; the second time it is checked again."""
    monkeypatch.setenv("TRIMTAB_IS_CONFINED", "1")
    monkeypatch.setenv("TRIMTAB_JUDGE_NETWORKS", "127.0.0.1/32")
    with serving(lambda *_: completion("A")) as server:
        names(judge_example=["127.0.0.1", "127.0.0.2"])
        model = endpoint(server, base_url=f"http://judge.example:{server.server_port}/v1")
        list(model.answers([("x", request("x"))]))
        with pytest.raises(EndpointError, match=r"judge.example resolves to 127.0.0.2"):
            list(model.answers([("y", request("y"))]))
        assert server.headers[0]["Host"] == f"judge.example:{server.server_port}"
    assert len(server.bodies) == 1


def test_a_redirect_is_followed_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_IS_CONFINED", "1")
    monkeypatch.setenv("TRIMTAB_JUDGE_NETWORKS", "127.0.0.0/8")
    with serving(lambda *_: completion("A")) as other:
        away = Reply({}, 307, headers={"Location": f"{other.url}/chat/completions"})
        with serving(lambda *_: away) as server, pytest.raises(EndpointError, match="status 307"):
            list(endpoint(server).answers([("x", request("x"))]))
    assert other.bodies == []


@pytest.mark.parametrize("name", ["judge.example", "other.example"])
def test_a_certificate_must_be_the_name_s_though_the_address_is_asked(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: Names
) -> None:
    monkeypatch.setenv("TRIMTAB_IS_CONFINED", "1")
    monkeypatch.setenv("TRIMTAB_JUDGE_NETWORKS", "127.0.0.0/8")
    monkeypatch.setenv("SSL_CERT_FILE", str(_certificate(tmp_path, name)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    with serving(lambda *_: completion("A")) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        names(judge_example=["127.0.0.1"] * 9)
        address = f"https://judge.example:{server.server_port}/v1"
        model = endpoint(server, base_url=address, max_retries=0)
        if name == "judge.example":
            assert [each.content for _, each in model.answers([("x", request("x"))])] == ["A"]
        else:
            with pytest.raises(EndpointError, match="CERTIFICATE_VERIFY_FAILED"):
                list(model.answers([("x", request("x"))]))


def _certificate(folder: Path, name: str) -> Path:
    """A certificate for a name, which it has signed itself, with its key beside it."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "server.key").write_bytes(private)
    (folder / "server.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
    return folder / "server.crt"
