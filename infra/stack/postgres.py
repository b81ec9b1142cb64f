"""PostgreSQL for the stack: a database for Prefect, one for MLflow, one for MLflow's users."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path

from trimtab.infra.stack.programs import as_user, output_of, program, require_reachable
from trimtab.infra.stack.supervisor import Service

HOST = "127.0.0.1"
USER = "trimtab"
SYSTEM_USER = "nobody"  # where this process is root, which PostgreSQL refuses to be
DATABASES = ("prefect", "mlflow", "mlflow_users")


def postgres(folder: Path, port: int) -> Service:
    """The service; its data lie in `folder`, the password is the environment's PGPASSWORD."""
    client = client_options(port)

    def create_databases() -> None:
        query = [program("psql"), *client, "-d", "postgres", "-tAc"]
        known = output_of([*query, "select datname from pg_database"]).split()
        for name in DATABASES:
            if name not in known:
                output_of([program("createdb"), *client, name])

    return Service(
        "postgres",
        # No Unix socket: its folder is another thing to protect.
        [program("postgres"), "-D", str(folder), "-h", HOST, "-p", str(port), "-k", ""],
        is_ready=lambda: _succeeds([program("pg_isready"), "-q", *client]),
        ports=[port],
        prepare=lambda: _initialise(folder),
        once_ready=create_databases,
        stop_signal=signal.SIGINT,  # "fast": it does not wait for clients
        user=SYSTEM_USER,
    )


def client_options(port: int) -> list[str]:
    """How PostgreSQL's programs find the server; they read PGPASSWORD."""
    return ["-h", HOST, "-p", str(port), "-U", USER]


def database_url(port: int, database: str, driver: str = "") -> str:
    """A database's address, without the password: the drivers read PGPASSWORD."""
    return f"postgresql{driver}://{USER}@{HOST}:{port}/{database}"


def _initialise(folder: Path) -> None:
    """Make a cluster beside `folder` and rename it, so that a kill leaves none half-made."""
    require_reachable(SYSTEM_USER, [Path(program("initdb")), folder.parent])
    if folder.exists():
        return
    draft = folder.with_name(f"{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True, mode=0o700)
    if os.geteuid() == 0:
        os.chown(draft, pwd.getpwnam(SYSTEM_USER).pw_uid, -1)
    run = as_user(SYSTEM_USER)
    output_of(
        [
            *(*run, program("initdb"), "-D", str(draft), f"--username={USER}"),
            *("--encoding=UTF8", "--locale=C.UTF-8", "--auth=reject", "--no-instructions"),
        ]
    )
    (draft / "pg_hba.conf").write_text(f"host all {USER} {HOST}/32 scram-sha-256\n")
    # Through stdin: it is in no file and no command line.
    password = os.environ["PGPASSWORD"].replace("'", "''")
    output_of(
        [*run, program("postgres"), "--single", "-D", str(draft), "postgres"],
        stdin=f"alter role {USER} password '{password}'\n",
    )
    draft.rename(folder)


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
