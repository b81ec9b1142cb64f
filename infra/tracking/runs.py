"""MLflow runs: one for a flow run, nested ones for its stages.

Tracking never fails training. What MLflow is to get of a run goes into a file of the run, and from
there, in order, to MLflow (trimtab.infra.tracking.outbox). When MLflow cannot be reached there is
one warning, and the data waits. A thread retries every half minute, `flush` retries at the end of a
flow, and the next process that connects sends what others left behind. A run whose process died is
then ended as KILLED.

MLflow loads on first use (two seconds), not with this module.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import astuple
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from trimtab.infra.processes.launch import TrainerStoppedError
from trimtab.infra.processes.locks import file_lock
from trimtab.infra.settings import Settings, hide_password
from trimtab.infra.tracking.mlflow_calls import (
    VIEW,
    Input,
    dataset_input,
    experiment_id,
    flatten,
    log_batches,
    new_client,
    parse_line,
)
from trimtab.infra.tracking.outbox import Background, Outbox, Record, take_over_files

__all__ = ["Input", "TrackedRun", "Tracking"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_RETRY_SECONDS = 30.0
_FLUSH_RETRY_SECONDS = 2.0  # between two tries of `flush`
_KEY = "trimtab.run"  # the tag that finds a run whose id is not known
_one_input_at_a_time = threading.Lock()
_CALLS_AT_ONCE = 4  # in the background
# MLflow's own limits, below which every store and server accepts a request.
_MAX_KEY, _MAX_PARAM, _MAX_TAG = 250, 6000, 8000


class Tracking:
    """A connection to one MLflow experiment, made on first use. Thread-safe."""

    def __init__(
        self,
        uri: str,
        experiment: str,
        artifact_root: Path | None = None,
        outbox: Path | None = None,
    ) -> None:
        """`artifact_root` is where the embedded SQLite default keeps files; a server knows.

        `outbox` is a folder for what waits for MLflow; without it that ends with the process. An
        empty `uri` switches tracking off.
        """
        self.uri = uri
        self.experiment = experiment
        self._artifact_root = artifact_root
        self._client: Any = None
        self.experiment_id = ""  # known once there was a connection
        self._lock = threading.Lock()
        self._down_until = 0.0
        self._warned: set[str] = set()
        self.background = Background(_CALLS_AT_ONCE)
        self.outbox = outbox
        self._unsent: list[TrackedRun] = []  # runs that MLflow lacks something of, the oldest first
        self._unsent_lock = threading.Lock()
        self._sender: threading.Thread | None = None

    @classmethod
    def from_settings(cls, settings: Settings, experiment: str) -> Tracking:
        """The tracking these settings name."""
        root = settings.home / "mlartifacts" if settings.embedded_mlflow else None
        # What waits for one MLflow is not for another. An address may hold a password: its hash.
        place = "embedded" if settings.embedded_mlflow else settings.mlflow_uri
        name = hashlib.sha256(f"{place} {experiment}".encode()).hexdigest()[:16]
        return cls(settings.mlflow_uri, experiment, root, settings.home / "outbox" / name)

    def start_run(
        self,
        name: str,
        *,
        parent: TrackedRun | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> TrackedRun:
        """Start a run; with `parent`, nested in that one. In an outage MLflow gets it later."""
        key = uuid.uuid4().hex
        all_tags = {k: str(value)[:_MAX_TAG] for k, value in (tags or {}).items()}
        path = self.outbox / f"{time.time_ns():020d}-{key}.jsonl" if self.outbox else None
        run = TrackedRun(self, tags={_KEY: key}, parent=parent, outbox=Outbox(path))
        of_parent = (parent.run_id, parent.tags) if parent else (None, {})
        values = {"name": name, "tags": {**all_tags, _KEY: key}, "time": _now()}
        run.send({"create": {**values, "parent": of_parent}})
        return run

    def running(self, tags: Mapping[str, str]) -> list[str]:
        """The ids of the runs with these tags that have not ended, the newest first."""
        return self.call(lambda client: self.search(client, tags, "RUNNING")) or []

    def search(
        self,
        client: Any,
        tags: Mapping[str, str],
        status: str | None = None,
        deleted: bool = False,
    ) -> list[str]:
        """The ids of the runs with these tags, the newest first; raises what MLflow raises.

        deleted: those that a user has deleted, too.
        """
        from mlflow.entities import ViewType

        conditions = [f"tags.`{key}` = '{value}'" for key, value in tags.items()]
        conditions += [f"attributes.status = '{status}'"] if status else []
        view = ViewType.ALL if deleted else ViewType.ACTIVE_ONLY
        runs = client.search_runs([self.experiment_id], " and ".join(conditions), view)
        return [run.info.run_id for run in runs]

    def call(self, function: Callable[[Any], _T]) -> _T | None:
        """`function(client)`, or None where MLflow fails or has failed a moment ago."""
        return self.attempt(function)[1]

    def attempt(self, function: Callable[[Any], _T]) -> tuple[bool, _T | None]:
        """Whether `function(client)` is over, done or refused for what it asks, and what it gave.

        What is not over is to be tried again: MLflow fails, or has failed a moment ago.
        """
        if not self.uri:
            return True, None
        if time.monotonic() < self._down_until:
            return False, None
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            return True, function(self.connect())
        except Exception as error:
            # A server's artifacts may lie in S3, whose errors have no class in common.
            is_of_s3 = type(error).__module__.partition(".")[0] in ("boto3", "botocore")
            if not is_of_s3 and not isinstance(error, MlflowException | SQLAlchemyError | OSError):
                raise
            return self._is_refusal(error), None

    def _is_refusal(self, error: Exception) -> bool:
        """Whether it is wrong what was sent; otherwise MLflow is left alone for a while."""
        rejected = _is_rejected(error)
        if not rejected:
            self._down_until = time.monotonic() + _RETRY_SECONDS
        kind = getattr(error, "error_code", type(error).__name__)
        if kind not in self._warned:  # once for each kind of trouble
            self._warned.add(kind)
            logger.warning(
                "MLflow at %s: %s. Training continues; what MLflow missed is sent later",
                self.uri,
                str(error).splitlines()[0] if str(error) else repr(error),
            )
        return rejected

    def send_when_back(self, run: TrackedRun) -> None:
        """Have a thread send what waits of a run once MLflow is back."""
        with self._unsent_lock:
            if run not in self._unsent:
                self._unsent.append(run)
            if self._sender is None:
                self._sender = threading.Thread(target=self._send_later, daemon=True)
                self._sender.start()

    def flush(self, seconds: float = 0.0) -> None:
        """Wait for what is under way in the background, and send what MLflow did not get yet.

        Retries for `seconds`, at least once; a later process sends the rest.
        """
        self.background.wait()
        deadline = time.monotonic() + seconds
        while self._unsent:
            self._down_until = 0.0
            self._send_unsent()
            if not self._unsent:
                return
            if time.monotonic() >= deadline:
                rest = f"; the next run sends what lies in {self.outbox}" if self.outbox else ""
                text = "MLflow at %s lacks data of %d runs%s"
                logger.warning(text, self.uri, len(self._unsent), rest)
                return
            time.sleep(_FLUSH_RETRY_SECONDS)

    def _send_unsent(self) -> None:
        for run in list(self._unsent):
            run.send_all_waiting()
        with self._unsent_lock:
            self._unsent = [run for run in self._unsent if run.has_unsent]

    def _send_later(self) -> None:
        while True:
            time.sleep(max(0.1, self._down_until - time.monotonic()))
            self._send_unsent()
            with self._unsent_lock:
                if not self._unsent:
                    self._sender = None
                    return

    def _send_left_behind(self) -> None:
        for outbox in take_over_files(self.outbox) if self.outbox else ():
            self.send_when_back(TrackedRun(self, outbox=outbox, was_created=True))
        self._send_unsent()

    def connect(self) -> Any:
        """The MLflow client; raises what MLflow raises."""
        with self._lock:
            if self._client is None:
                root = self._artifact_root
                # The client makes the tables of a new SQLite database: one process at a time.
                with file_lock(root.parent / ".mlflow.lock") if root else nullcontext():
                    client = new_client(self.uri)
                    self.experiment_id = experiment_id(client, self.experiment, root)
                self._client = client
                self.background.submit(self._send_left_behind)
            return self._client


class TrackedRun:
    """One MLflow run. As a context manager it ends itself: FINISHED, FAILED or KILLED.

    `run_id` is None while MLflow does not have it.
    """

    def __init__(
        self,
        tracking: Tracking,
        run_id: str | None = None,
        *,
        tags: Mapping[str, str] | None = None,
        parent: TrackedRun | None = None,
        outbox: Outbox | None = None,
        was_created: bool = False,
    ) -> None:
        """A run that was started elsewhere has an id, or `tags` that only it has.

        was_created: MLflow may have it already.
        """
        self.tracking = tracking
        self.run_id = run_id
        self.tags = dict(tags or {})
        self._parent = parent
        self._outbox = outbox or Outbox()
        self._was_created = was_created
        self._sending = threading.RLock()

    @property
    def has_unsent(self) -> bool:
        """Whether something waits for MLflow."""
        return bool(self._outbox.waiting)

    def send(self, record: Record) -> None:
        """Send a record after all that wait: now, or once MLflow is back."""
        if not self.tracking.uri:
            return
        is_next = not self.has_unsent
        self._outbox.add(record)
        if not (is_next and self.send_waiting()):
            self.tracking.send_when_back(self)

    def send_waiting(self) -> bool:
        """Send what waits, in order; whether MLflow has all of it now."""
        with self._sending:
            while self._outbox.waiting:
                record = self._outbox.waiting[0]
                try:
                    is_over, _ = self.tracking.attempt(partial(self._deliver, record))
                except Exception:
                    self._outbox.remove_first()  # it would hold up all that follow
                    raise
                if not is_over:
                    self._outbox.write()
                    return False
                self._outbox.remove_first()
        return True

    def send_all_waiting(self) -> None:
        """Send what waits, leaving out, with a warning, what raises an error of no known kind."""
        while True:
            try:
                self.send_waiting()
            except Exception:
                logger.warning("MLflow lacks a record of a run", exc_info=True)
            else:
                return

    def page(self, artifact: str = "") -> str | None:
        """The address of the run's page, or of one of its artifacts; None without a server."""
        if self.run_id is None or not self.tracking.uri.startswith("http"):
            return None
        server = hide_password(self.tracking.uri)
        page = f"{server}/#/experiments/{self.tracking.experiment_id}/runs/{self.run_id}"
        return f"{page}/artifacts/{artifact}{VIEW}" if artifact else f"{page}{VIEW}"

    @property
    def link(self) -> str:
        """The run in Markdown: its page where MLflow is a server, else its id."""
        page = self.page()
        return f"[{self.run_id}]({page})" if page else f"`{self.run_id}`"

    def log(
        self,
        *,
        params: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Log nested parameters as `a.b.c`, numbers and tags, in as few requests as MLflow takes.

        Values longer than MLflow's limits are cut. Trainers' metrics go through `log_lines`.
        """
        batch = {
            "params": [(k[:_MAX_KEY], v[:_MAX_PARAM]) for k, v in flatten(params or {})],
            "metrics": [(k, float(v), _now(), 0) for k, v in (metrics or {}).items()],
            "tags": [(k, str(v)[:_MAX_TAG]) for k, v in (tags or {}).items()],
        }
        self.send({"batch": batch})

    def log_lines(self, lines: Sequence[str]) -> None:
        """Log the metrics in lines of a trainer's metrics.jsonl, with their steps and times."""
        points = [point for line in lines for point in parse_line(line)]
        if points:
            self.send({"batch": {"metrics": points}})

    def log_artifacts(self, folder: Path, pattern: str = "**/*") -> None:
        """Copy the files below a folder to the run's artifacts, several at a time."""
        paths = sorted(path for path in folder.glob(pattern) if path.is_file())
        files = [(str(path.resolve()), str(path.parent.relative_to(folder))) for path in paths]
        if files:
            self.send({"artifacts": files})

    def log_inputs(self, inputs: Sequence[Input]) -> None:
        """Record the datasets that a run reads."""
        if inputs:
            self.send({"inputs": [astuple(dataset) for dataset in inputs]})

    def end(self, status: str = "FINISHED") -> None:
        """End the run as FINISHED, FAILED or KILLED, with the time of now."""
        self.send({"end": status, "time": _now()})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        stopped = isinstance(error, KeyboardInterrupt | SystemExit | TrainerStoppedError)
        self.end("FINISHED" if error is None else "KILLED" if stopped else "FAILED")

    def _deliver(self, record: Record, client: Any) -> None:
        """Tell MLflow; what it has of a record already it does not get a second time."""
        kind = next(iter(record))
        value = record[kind]
        if kind == "create":
            self._create(client, value)
        elif self.run_id is None:
            return  # MLflow refused to make it
        elif kind == "batch":
            log_batches(client, self.run_id, value)
        elif kind == "inputs":
            datasets = [dataset_input(Input(*fields)) for fields in value]
            # MLflow checks for the dataset and then inserts it: two that log one would collide.
            with _one_input_at_a_time:
                client.log_inputs(self.run_id, datasets)
        elif kind == "artifacts":
            with ThreadPoolExecutor(_CALLS_AT_ONCE) as pool:
                copies = [pool.submit(self._copy, client, file) for file in value]
            errors = [error for copy in copies if (error := copy.exception())]
            if errors:  # what is to be tried again before what is refused
                raise min(errors, key=_is_rejected)
        elif kind == "end" and not (record.get("unless_ended") and self._has_ended(client)):
            client.set_terminated(self.run_id, value, end_time=record["time"])

    def _copy(self, client: Any, file: tuple[str, str]) -> None:
        path, inner = file
        if Path(path).is_file():
            client.log_artifact(self.run_id, path, None if inner == "." else inner)

    def _has_ended(self, client: Any) -> bool:
        return bool(client.get_run(self.run_id).info.status != "RUNNING")

    def _create(self, client: Any, values: Mapping[str, Any]) -> None:
        if self.run_id is not None:
            return
        tags, tracking = dict(values["tags"]), self.tracking
        # It may have been created though the answer was lost, and deleted by a user since.
        was_created, self._was_created = self._was_created, True
        if was_created and (runs := tracking.search(client, {_KEY: tags[_KEY]}, deleted=True)):
            self.run_id = runs[0]
            return
        if parent := self._id_of_parent(client, *values["parent"]):
            tags["mlflow.parentRunId"] = parent
        run = client.create_run(tracking.experiment_id, values["time"], tags, values["name"])
        self.run_id = str(run.info.run_id)

    def _id_of_parent(self, client: Any, known: str | None, tags: Mapping[str, str]) -> str | None:
        parent = self._parent
        if parent is None:
            return known or (next(iter(self.tracking.search(client, tags)), None) if tags else None)
        run_id = parent.find(client)
        if run_id is None and (parent.has_unsent or parent.tags.keys() != {_KEY}):
            raise ConnectionError("the MLflow run of the flow is not there yet")
        return run_id

    def find(self, client: Any) -> str | None:
        """Its id, making it now where it was to be made, or looking for it by its tags."""
        if self.run_id is None and self.has_unsent:
            self.send_waiting()
        elif self.run_id is None and self.tags:
            self.run_id = next(iter(self.tracking.search(client, self.tags, "RUNNING")), None)
        return self.run_id


def _is_rejected(error: BaseException) -> bool:
    """Whether MLflow refuses a request for what it asks."""
    code = getattr(error, "error_code", "")
    return code in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST")


def _now() -> int:
    return int(time.time() * 1000)
