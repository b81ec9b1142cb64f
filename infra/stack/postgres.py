"""PostgreSQL for the stack: a database for Prefect, one for MLflow, one for MLflow's users.

It has no port, as drivers send the password to whoever listens there: it listens at a Unix socket
in the folder of its data, which is its user's alone.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path
from urllib.parse import quote

from trimtab.infra.stack.programs import (
    StackError,
    output_of,
    program,
    require_reachable,
    run_as_user,
)
from trimtab.infra.stack.supervisor import Service

USER = "trimtab"
SYSTEM_USER = "nobody"  # where this process is root, which PostgreSQL refuses to be
_PORT = 5432  # a part of the socket's name
_MOST_BYTES = 107  # of a socket's path (Linux)
DATABASES = ("prefect", "mlflow", "mlflow_users")


def postgres(folder: Path) -> Service:
    """The service; its data lie in `folder`, the password is the environment's PGPASSWORD.

    StackError where the folder's path is too long for a socket in it.
    """
    client = client_options(folder)
    length = len(os.fsencode(folder / f".s.PGSQL.{_PORT}"))
    if length > _MOST_BYTES:
        raise StackError(
            f"{folder}: found a path by which PostgreSQL's socket has {length} bytes; allowed: "
            f"{_MOST_BYTES}; give a shorter --folder"
        )

    def create_databases() -> None:
        query = [program("psql"), *client, "-d", "postgres", "-tAc"]
        known = output_of([*query, "select datname from pg_database"]).split()
        for name in DATABASES:
            if name not in known:
                output_of([program("createdb"), *client, name])

    places = ["-D", str(folder), "-k", str(folder), "-h", "", "-p", str(_PORT)]
    return Service(
        "postgres",
        [program("postgres"), *places, "-c", "unix_socket_permissions=0700"],
        is_ready=lambda: _succeeds([program("pg_isready"), "-q", *client]),
        prepare=lambda: _initialise(folder),
        once_ready=create_databases,
        stop_signal=signal.SIGINT,  # "fast": it does not wait for clients
        user=SYSTEM_USER,
    )


def client_options(folder: Path) -> list[str]:
    """How PostgreSQL's programs find the server; they read PGPASSWORD."""
    return ["-h", str(folder), "-p", str(_PORT), "-U", USER]


def database_url(folder: Path, database: str, driver: str = "") -> str:
    """A database's address, without the password: the drivers read PGPASSWORD."""
    return f"postgresql{driver}://{USER}@/{database}?host={quote(str(folder))}&port={_PORT}"


def _initialise(folder: Path) -> None:
    """Make a cluster beside `folder` and rename it, so that a kill leaves none half-made."""
    require_reachable(SYSTEM_USER, [Path(program("initdb")), folder.parent])
    if folder.exists():
        _admit(folder)
        return
    draft = folder.with_name(f"{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True, mode=0o700)
    if os.geteuid() == 0:
        os.chown(draft, pwd.getpwnam(SYSTEM_USER).pw_uid, -1)
    run = run_as_user(SYSTEM_USER)
    options = ["--encoding=UTF8", "--locale=C.UTF-8", "--auth=reject", "--no-instructions"]
    output_of([*run, program("initdb"), "-D", str(draft), f"--username={USER}", *options])
    _admit(draft)
    # Through stdin: it is in no file and no command line.
    password = os.environ["PGPASSWORD"].replace("'", "''")
    output_of(
        [*run, program("postgres"), "--single", "-D", str(draft), "postgres"],
        stdin=f"alter role {USER} password '{password}'\n",
    )
    draft.rename(folder)


def _admit(folder: Path) -> None:
    """Have the server let in its one user, with the password, and nobody else."""
    rules, wanted = folder / "pg_hba.conf", f"local all {USER} scram-sha-256\n"
    if rules.read_text() != wanted:  # made by initdb, or changed since
        rules.write_text(wanted)


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
