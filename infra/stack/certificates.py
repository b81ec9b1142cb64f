"""Certificates for servers that trust only one another (mutual TLS), made anew at each start."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY, CERTIFICATE, KEY = "ca.crt", "server.crt", "server.key"
_AGE = datetime.timedelta(days=3650)
_SKEW = datetime.timedelta(days=1)


def make_certificates(folder: Path, host: str) -> None:
    """Write an authority's certificate, and a server's and client's with its key, for an address.

    The authority's own key is not kept: nobody can sign a further certificate. The key can be read
    by its owner only.
    """
    signer = ec.generate_private_key(ec.SECP256R1())
    authority = (
        _unsigned("authority", signer.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(signer, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    certificate = (
        _unsigned("server", key.public_key())
        .add_extension(names, critical=False)
        .add_extension(both, critical=False)
        .sign(signer, hashes.SHA256())
    )
    (folder / AUTHORITY).write_bytes(authority.public_bytes(Encoding.PEM))
    (folder / CERTIFICATE).write_bytes(certificate.public_bytes(Encoding.PEM))
    (folder / KEY).touch(mode=0o600)
    (folder / KEY).write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _unsigned(name: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_named(name))
        .issuer_name(_named("authority"))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _AGE)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
