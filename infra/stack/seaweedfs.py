"""SeaweedFS: an S3 server on loopback whose keys come from the environment.

S3 asks for a signature made with the keys. The servers behind it, which know no users, ask for a
certificate that only they have (mutual TLS), on HTTP and on gRPC; it is made anew at each start.

python -m trimtab.infra.stack.seaweedfs makes the stack's bucket where it is not there yet.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from trimtab.infra.stack.programs import program
from trimtab.infra.stack.supervisor import LOOPBACK, Service, answers

BUCKET = "trimtab"
_GRPC = ("master", "volume", "filer", "s3", "client")
_HTTPS = ("master", "volume", "filer")
_INNER = [*(f"{name}.port{kind}" for name in _HTTPS for kind in ("", ".grpc")), "s3.port.grpc"]
NUM_INNER_PORTS = len(_INNER)
AUTHORITY, CERTIFICATE, KEY = "ca.crt", "server.crt", "server.key"
_AGE = datetime.timedelta(days=3650)
_SKEW = datetime.timedelta(days=1)


def seaweedfs(folder: Path, port: int, first_inner_port: int) -> Service:
    """S3 on `port` with the bucket; the seven servers inside take the ports from `first` on.

    AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are its only user. It gets them in memory: from its
    environment it would write the first to its log.
    """
    endpoint = f"http://{LOOPBACK}:{port}"
    user = _memory_file(json.dumps(_only_user()))

    def prepare() -> None:
        _make_certificates(folder, LOOPBACK)
        (folder / "security.toml").write_text(_security())

    ports = {name: first_inner_port + index for index, name in enumerate(_INNER)}
    options = {
        **{name: str(number) for name, number in ports.items()},
        "dir": str(folder),
        "ip": LOOPBACK,
        "ip.bind": LOOPBACK,
        "s3.port": str(port),
        "s3.port.iceberg": "0",
        "s3.port.lance": "0",
        "s3.iam": "false",
        "s3.config": f"/proc/self/fd/{user}",
        "s3.localSocket": "s3.sock",  # in its folder; a path would soon be too long
        "filer.localSocket": "filer.sock",
        "volume.max": "64",
        "volume.preStopSeconds": "0",
        "master.volumeSizeLimitMB": "256",
        "master.electionTimeout": "1s",
        "master.heartbeatInterval": "200ms",
        "master.telemetry": "false",
    }
    return Service(
        "seaweedfs",
        [program("weed"), f"-logdir={folder}", "server", "-s3"]
        + [f"-{name}={value}" for name, value in options.items()],
        is_ready=lambda: answers(endpoint, refusal=403),  # up: it refuses what has no keys
        ports=[port, *ports.values()],
        env={"GOMEMLIMIT": "300MiB"},
        descriptors=[user],
        folder=folder,
        prepare=prepare,
        once_ready=lambda: create_bucket(endpoint),
        stop_seconds=2.0,  # a gentle stop takes it 20; its data survive a kill
    )


def create_bucket(endpoint: str | None = None) -> None:
    """Make the bucket; keys, and the endpoint where none is given, are the environment's."""
    import boto3

    # A session of its own: boto3 keeps the keys of the first one that it made.
    client = boto3.session.Session().client("s3", endpoint_url=endpoint, region_name="us-east-1")
    buckets = client.list_buckets()["Buckets"]
    if BUCKET not in {bucket["Name"] for bucket in buckets}:
        client.create_bucket(Bucket=BUCKET)


def _only_user() -> dict[str, object]:
    keys = {
        "accessKey": os.environ["AWS_ACCESS_KEY_ID"],
        "secretKey": os.environ["AWS_SECRET_ACCESS_KEY"],
    }
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    return {"identities": [{"name": "trimtab", "credentials": [keys], "actions": actions}]}


def _memory_file(text: str) -> int:
    """The descriptor of a file that is on no disk; what is started with it may open it anew."""
    descriptor = os.memfd_create("s3")
    os.write(descriptor, text.encode())
    return descriptor


def _security() -> str:
    """security.toml: every server shows the certificate, and demands it of whoever calls."""
    pair = f'cert = "{CERTIFICATE}"\nkey = "{KEY}"\n'
    authority = f'ca = "{AUTHORITY}"\n'
    sections = [f"[grpc]\n{authority}", *(f"[grpc.{name}]\n{pair}" for name in _GRPC)]
    sections += [f"[https.{name}]\n{pair}{authority}" for name in _HTTPS]
    sections.append(f"[https.client]\nenabled = true\n{pair}{authority}")
    return "\n".join(sections)


def _make_certificates(folder: Path, host: str) -> None:
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


if __name__ == "__main__":
    create_bucket()
