"""The stack as a command.

python -m trimtab.infra.stack secrets    prints `export` lines for the secrets that are not set
python -m trimtab.infra.stack env        prints `export` lines of the addresses that clients need
python -m trimtab.infra.stack up         runs all servers until Ctrl-C
python -m trimtab.infra.stack upgrade    brings MLflow's database to the installed version
python -m trimtab.infra.stack backup     writes databases and objects into a new folder below --to
python -m trimtab.infra.stack restore    makes the stack's folder anew from the backup --from
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from trimtab.infra.processes.locks import try_folder_lock
from trimtab.infra.stack import backup
from trimtab.infra.stack.programs import StackError, export_lines, new_secrets
from trimtab.infra.stack.services import Ports, Stack, default_limit
from trimtab.infra.stack.supervisor import Supervisor, adopt_orphans
from trimtab.infra.store.manifest import StorageError

_TEMPORARY = "tmp-"


def main() -> int:
    """Entry point; returns the exit status."""
    options = _parser().parse_args()
    if options.command == "secrets":
        print(export_lines(new_secrets()))
        return 0
    ports = replace(Ports(), **dict(options.port))
    limit = getattr(options, "limit", default_limit())
    stack = Stack(options.folder.resolve(), ports, limit)
    if options.command == "env":
        print(export_lines(stack.client_environment))
        return 0
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("trimtab.infra").setLevel(logging.INFO)
    # A script that starts this with `&` has it ignore SIGINT, and so would the servers: Prefect's
    # worker, which sends itself SIGINT to stop, would keep taking runs.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        if options.command == "up":
            _up(stack)
        elif options.command == "upgrade":
            stack.upgrade()
        else:
            os.environ.update(stack.client_environment)
            if options.command == "backup":
                backup.back_up(stack, options.to.resolve(), options.keep)
            else:
                backup.restore(stack, options.source.resolve())
    except (StackError, StorageError) as error:
        print(f"trimtab.infra.stack: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # of `up` the way to end
        return 0 if options.command == "up" else 130
    return 0


def _up(stack: Stack) -> None:
    if os.geteuid() == 0:
        logging.getLogger("trimtab.infra").warning(
            "running as root, as are all servers except PostgreSQL and all flow runs: use a "
            "dedicated user instead"
        )
    adopt_orphans()
    stack.folder.mkdir(parents=True, exist_ok=True)
    with try_folder_lock(stack.folder) as is_ours:
        if not is_ours:
            raise StackError(f"{stack.folder} is in use: a stack is up there, or a backup is taken")
        services = stack.services()
        with temporary_folder(stack.folder), Supervisor(services, stack.folder / "logs") as running:
            prefect, mlflow = stack.ports.prefect, stack.ports.mlflow
            print(
                f"Prefect: http://127.0.0.1:{prefect}   MLflow: http://127.0.0.1:{mlflow}   "
                f"logs: {stack.folder / 'logs'}   Ctrl-C stops all",
                flush=True,
            )
            running.watch()


@contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """Keep temporary files of all processes in the stack's folder, and remove them in the end.

    Killed processes leave files behind. Those of an earlier stack that was killed are removed, too:
    this process holds the folder's lock.
    """
    for old in folder.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(old, ignore_errors=True)
    with TemporaryDirectory(prefix=_TEMPORARY, dir=folder, ignore_cleanup_errors=True) as place:
        os.environ["TMPDIR"] = place
        yield Path(place)


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--folder", type=Path, default=Path(".trimtab-stack"), help="default: .trimtab-stack"
    )
    names = ", ".join(f"{port.name} {port.default}" for port in fields(Ports))
    common.add_argument(
        "--port",
        action="append",
        default=[],
        type=_port,
        metavar="NAME=NUMBER",
        help=f"another port than {names}",
    )
    parser = argparse.ArgumentParser(prog="python -m trimtab.infra.stack", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parsers = {
        name: commands.add_parser(name, parents=[common])
        for name in ("secrets", "env", "up", "upgrade", "backup", "restore")
    }
    parsers["up"].add_argument(
        "--limit",
        type=_count,
        metavar="N",
        default=default_limit(),
        help="flow runs at once, others wait; default: two for each core, or one for each GPU if "
        "there are more (here %(default)s)",
    )
    parsers["backup"].add_argument(
        "--to", type=Path, required=True, metavar="FOLDER", help="folder of all backups"
    )
    parsers["backup"].add_argument(
        "--keep", type=_count, metavar="N", help="remove older ones beyond N; default: none"
    )
    parsers["restore"].add_argument(
        "--from", type=Path, required=True, dest="source", metavar="BACKUP", help="one of them"
    )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _port(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    known = [port.name for port in fields(Ports)]
    if name not in known or not number.isdecimal() or not 0 < int(number) < 65536:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not one of {', '.join(known)}, an equals sign and a port"
        )
    return name, int(number)


if __name__ == "__main__":
    sys.exit(main())
