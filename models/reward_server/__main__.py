"""Serve a reward: `python -m trimtab.models.reward_server REQUEST`, as `trimtab serve-reward` does.

REQUEST is the JSON of a `ServeRequest`. The port is taken first and listened at once the models
are loaded. SIGTERM ends it when what is queued is answered.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from trimtab.models.config.training import Precision

# Addresses that no other machine reaches, and so need no key.
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
KEY = "TRIMTAB_REWARD_KEY"
MIN_KEY = 16  # characters
# Seconds that a connection may be idle: longer than clients keep theirs (aiohttp 15), so that none
# sends a request to one that closes.
KEEP_ALIVE = 75
ENVIRONMENT = {
    "TQDM_DISABLE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}


class ServeRequest(BaseModel):
    """What `trimtab serve-reward` was asked for; its options say what each is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folders: tuple[str, ...]
    host: str
    port: int
    key_file: Path | None
    std_coef: float
    answers: Path | None
    strip: tuple[str, ...]
    precision: Precision
    batch_tokens: int
    wait_ms: float
    queue_texts: int
    queue_tokens: int
    request_texts: int
    body_mib: float


class ServeError(ValueError):
    """A server that cannot be started as it was asked for."""


def main(text: str) -> int:
    """Serve until SIGTERM or Ctrl-C; returns the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    request = ServeRequest.model_validate_json(text)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        key = read_key(request.key_file, os.environ)
        os.environ.pop(KEY, None)
        if key is None and request.host not in LOOPBACK:
            raise ServeError(
                f"--host: found {request.host} without a key; allowed: {KEY} or --key-file, or an "
                f"address of this machine alone: {', '.join(sorted(LOOPBACK))}"
            )
        with bind(request.host, request.port) as listener:
            serve(request, key, listener)
    except KeyboardInterrupt:
        return 130
    except ServeError as error:
        print(f"trimtab: {error}", file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:  # of the models and their files
        first = (str(error).splitlines() or [repr(error)])[0]
        print(f"trimtab: {first}", file=sys.stderr)
        return 1
    return 0


def read_key(file: Path | None, env: Mapping[str, str]) -> str | None:
    """The key that clients must have, of a file or the environment; None where there is none.

    Raises ServeError for one that is short or holds what no header does, and for a file that others
    may read.
    """
    source, key = KEY, env.get(KEY)
    if file is not None:
        source = f"--key-file {file}"
        try:
            if file.stat().st_mode & 0o077:
                raise ServeError(f"{source}: found a file that others may read; allowed: mode 600")
            key = file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ServeError(f"{source}: found no file that can be read: {error}") from None
    if key is None:
        return None
    if len(key) < MIN_KEY or not key.isascii() or not key.isprintable() or " " in key:
        raise ServeError(
            f"{source}: found {len(key)} characters; allowed: {MIN_KEY} or more, printable ASCII "
            "without blanks"
        )
    return key


def bind(host: str, port: int) -> socket.socket:
    """A socket with the address, which listens later. Raises ServeError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # By its protocol asyncio knows to send at once what is written (TCP_NODELAY): answers, headers
    # and body apart, would else wait for 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise _refused(host, port, error) from None
    return listener


def listen(listener: socket.socket, backlog: int) -> str:
    """Take connections; returns the server's address. Raises ServeError.

    Two programs may have bound an address (SO_REUSEADDR), and one of them listens.
    """
    host, port = listener.getsockname()[:2]
    try:
        listener.listen(backlog)
    except OSError as error:
        raise _refused(host, port, error) from None
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _refused(host: str, port: int, error: OSError) -> ServeError:
    return ServeError(
        f"--host {host} --port {port}: found {error.strerror}; allowed: an address of this "
        "machine with a free port"
    )


def serve(request: ServeRequest, key: str | None, listener: socket.socket) -> None:
    """Load the models and answer. Raises OSError and ValueError for what cannot be loaded."""
    import torch
    import uvicorn

    from trimtab.models.nets.precision import set_product_precision
    from trimtab.models.reward_server.app import Access, RewardServer, create_app
    from trimtab.models.reward_server.batching import QueueLimits
    from trimtab.models.reward_server.ensemble import Ensemble
    from trimtab.models.training.distributed import use_gpu

    if torch.accelerator.current_accelerator(check_available=True) is not None:
        use_gpu()
    set_product_precision(request.precision)
    ensemble = Ensemble.load(request.folders, request.std_coef, request.strip, request.answers)
    limits = QueueLimits(
        request.queue_texts, request.queue_tokens, request.batch_tokens, request.wait_ms / 1000
    )
    server = RewardServer(
        ensemble,
        Path(request.folders[0]).name,
        Access(key, LOOPBACK),
        limits,
        request.request_texts,
        int(request.body_mib * 2**20),
    )
    config = uvicorn.Config(
        create_app(server),
        log_level="warning",
        access_log=False,
        lifespan="on",
        timeout_keep_alive=KEEP_ALIVE,
    )
    url = listen(listener, config.backlog)  # whoever reads the next line may connect at once
    print(f"rewards at {url}", flush=True)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
