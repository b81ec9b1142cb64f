"""The MLflow client calls that need more than one line, and the forms MLflow wants things in.

MLflow is imported inside the functions: it takes two seconds to load.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from trimtab.infra.imports import quick_imports

logger = logging.getLogger(__name__)

EXPERIMENT = "trimtab"
KIND = "custom_model_development"  # of experiment
# End of an address of MLflow's pages, which else open in the view for GenAI, whatever the kind.
VIEW = "?workflowType=machine_learning"
_MAX_DATASET_DIGEST = 36  # MLflow's own limit
# Columns in which MLflow notes where artifacts lie.
_LOCATIONS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
    ("trace_tags", "value"),
)
_MAX_OF = {"params": 100, "metrics": 800, "tags": 100}  # in one request, of a thousand in all

# A metric's name, value, time in milliseconds of the epoch, and step.
MetricPoint = tuple[str, float, int, int]


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested mappings as (`a.b.c`, text) pairs; everything else is a leaf."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)


def parse_line(line: str) -> list[MetricPoint]:
    """The metrics of one line; [] for progress and for a line a killed trainer left in pieces."""
    try:
        record = json.loads(line)
        metrics, time, step = record.get("metrics", {}), record.get("time"), record.get("step")
        return [(k, float(v), int(time * 1000), int(step)) for k, v in metrics.items()]
    except (ValueError, TypeError, KeyError, AttributeError):
        logger.warning("not a metrics line: %.200s", line)
        return []


@dataclass(frozen=True)
class Input:
    """A dataset that a run reads: its content digest, where it is from, and its role there."""

    name: str
    digest: str
    source: str
    context: str


def dataset_input(dataset: Input) -> Any:
    """The `DatasetInput` that MLflow takes."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    source = json.dumps({"uri": dataset.source})
    digest = dataset.digest[:_MAX_DATASET_DIGEST]
    return DatasetInput(
        Dataset(dataset.name, digest, "trimtab", source),
        [InputTag("mlflow.data.context", dataset.context)],
    )


def log_batches(client: Any, run_id: str, batch: Mapping[str, Sequence[Any]]) -> None:
    """Log params and tags (name, text) and metrics (MetricPoint) in as few requests as possible.

    MLflow ignores what it already has.
    """
    from mlflow.entities import Metric, Param, RunTag

    kinds = {"params": Param, "metrics": Metric, "tags": RunTag}
    rest = {kind: [kinds[kind](*item) for item in items] for kind, items in batch.items()}
    while any(rest.values()):
        first = {kind: items[: _MAX_OF[kind]] for kind, items in rest.items()}
        rest = {kind: items[_MAX_OF[kind] :] for kind, items in rest.items()}
        client.log_batch(run_id, **first)


def new_client(uri: str) -> Any:
    """An `MlflowClient` that gives up soon, sends no telemetry and prints nothing."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")  # seconds; its own default is 120,
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # seven times over
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    with quick_imports():
        from mlflow.tracking import MlflowClient

    for name in ("alembic", "mlflow.tracking"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # What it logs, with a traceback for each call to a full disk's database, it raises as well.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def experiment_id(client: Any, name: str, artifact_root: Path | None) -> str:
    """The id of the experiment `name`, which is made where there is none.

    artifact_root: where the embedded SQLite database beside it keeps artifacts; if both were moved
    there, its locations follow (`follow_move`). None: a server knows. Raises what MLflow raises,
    and OSError as `follow_move` does.
    """
    from mlflow.exceptions import MlflowException

    if artifact_root is not None:
        follow_move(artifact_root)
    location = artifact_root.as_uri() if artifact_root else None
    for _ in range(2):
        experiment = client.get_experiment_by_name(name)
        if experiment is not None:
            return str(experiment.experiment_id)
        try:
            tags = {"mlflow.experimentKind": KIND}
            return str(client.create_experiment(name, artifact_location=location, tags=tags))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another process was first
                raise
    raise MlflowException(f"experiment {name!r} exists but cannot be read; was it deleted?")


def follow_move(artifact_root: Path) -> None:
    """Correct the database of an embedded MLflow whose folder was moved or copied.

    MLflow notes absolute locations only, and has no call that changes them: in the copy a run would
    write into the old folder. `artifact_root` lies beside mlflow.db; experiments whose artifacts
    lay in a folder of its name elsewhere say where it was. All names of that folder, and of its
    neighbours as sources of datasets, are rewritten, or none. Raises OSError where SQLite cannot.
    """
    database = artifact_root.with_name("mlflow.db")
    if not database.is_file():
        return
    try:
        with closing(sqlite3.connect(database, timeout=30)) as connection:
            if not _earlier_roots(connection, artifact_root):
                return
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                for old in _earlier_roots(connection, artifact_root):
                    _rewrite(connection, old, artifact_root)
                    logger.warning(
                        "MLflow's artifacts were in %s; its database now names %s",
                        old,
                        artifact_root,
                    )
    except sqlite3.Error as error:
        raise OSError(f"{database}: cannot note that it was moved: {error}") from error


def _earlier_roots(connection: sqlite3.Connection, artifact_root: Path) -> list[str]:
    """Other places, as URIs, of a folder of this name in which experiments have their artifacts."""
    if "experiments" not in _tables(connection):
        return []
    locations = connection.execute("SELECT DISTINCT artifact_location FROM experiments").fetchall()
    end = f"/{artifact_root.name}"
    return [
        location
        for (location,) in locations
        if location
        and location.startswith("file:///")
        and location.endswith(end)
        and location != artifact_root.as_uri()
    ]


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}


def _rewrite(connection: sqlite3.Connection, old: str, artifact_root: Path) -> None:
    tables = _tables(connection)
    for table, column in _LOCATIONS:
        if table in tables:
            connection.execute(
                f"UPDATE {table} SET {column} = :new || substr({column}, length(:old) + 1) "
                f"WHERE substr({column} || '/', 1, length(:old) + 1) = :old || '/'",
                {"old": old, "new": artifact_root.as_uri()},
            )
    if "datasets" in tables:
        home = url2pathname(urlsplit(old).path.rpartition("/")[0])
        before, after = (
            f'"uri": {json.dumps(f"{place}/")[:-1]}' for place in (home, artifact_root.parent)
        )
        connection.execute(
            "UPDATE datasets SET dataset_source = replace(dataset_source, ?, ?) "
            "WHERE instr(dataset_source, ?)",
            (before, after, before),
        )
