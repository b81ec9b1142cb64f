"""SeaweedFS: an S3 server on loopback whose keys come from the environment."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

from infra.stack.bucket import create_bucket
from infra.stack.programs import program
from infra.stack.supervisor import Service

HOST = "127.0.0.1"
_INNER = (
    *("master.port", "master.port.grpc", "volume.port", "volume.port.grpc"),
    *("filer.port", "filer.port.grpc", "s3.port.grpc"),
)
NUM_INNER_PORTS = len(_INNER)


def seaweedfs(folder: Path, port: int, first_inner_port: int, bucket: str) -> Service:
    """S3 on `port` with one bucket; the seven servers inside take the ports from `first` on.

    AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are its only user.
    """
    endpoint = f"http://{HOST}:{port}"
    ports = {name: first_inner_port + index for index, name in enumerate(_INNER)}
    options = {
        **{name: str(number) for name, number in ports.items()},
        "dir": str(folder),
        "ip": HOST,
        "ip.bind": HOST,
        "s3.port": str(port),
        "s3.port.iceberg": "0",
        "s3.port.lance": "0",
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
        [
            *(program("weed"), f"-logdir={folder}", "server", "-s3"),
            *(f"-{name}={value}" for name, value in options.items()),
        ],
        is_ready=lambda: _answers(endpoint),
        ports=[port, *ports.values()],
        env={"GOMEMLIMIT": "300MiB"},
        folder=folder,
        once_ready=lambda: create_bucket(endpoint, bucket),
        stop_seconds=2.0,  # a gentle stop takes it 20; its data survive a kill
    )


def _answers(endpoint: str) -> bool:
    """S3 is up as soon as it refuses a request without keys."""
    try:
        with urllib.request.urlopen(endpoint, timeout=5):
            return True
    except urllib.error.HTTPError as error:
        return error.code == 403
    except OSError:
        return False
