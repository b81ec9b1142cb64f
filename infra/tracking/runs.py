"""MLflow runs: one for a flow run, nested ones for its stages.

Tracking never fails training. When MLflow cannot be reached there is one warning, and data waits to
be sent in a file for each run (trimtab.infra.tracking.outbox). A thread retries every half minute,
`flush` retries at the end of a flow, and the next process that connects sends what others left
behind. A run whose process died is then ended as KILLED.

MLflow loads on first use (two seconds), not with this module.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
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
from trimtab.infra.tracking.outbox import Background, Outbox, Record, left_behind

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
        run = TrackedRun(self, tags={_KEY: key}, parent=parent, outbox=Outbox(self.outbox, key))
        run.start(name, all_tags)
        return run

    def attach(
        self, run_id: str | None = None, tags: Mapping[str, str] | None = None
    ) -> TrackedRun:
        """A handle on a run that was started elsewhere, by its id, or by tags that only it has."""
        return TrackedRun(self, run_id, tags=tags)

    def running(self, tags: Mapping[str, str]) -> list[str]:
        """The ids of the runs with these tags that have not ended, the newest first."""
        return self.call(lambda client: self.search(client, tags, "RUNNING")) or []

    def search(self, client: Any, tags: Mapping[str, str], status: str | None = None) -> list[str]:
        """The ids of the runs with these tags, the newest first; raises what MLflow raises."""
        wanted = [f"tags.`{key}` = '{value}'" for key, value in tags.items()]
        wanted += [f"attributes.status = '{status}'"] if status else []
        runs = client.search_runs([self.experiment_id], " and ".join(wanted))
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
        except (MlflowException, SQLAlchemyError, OSError) as error:
            return self._is_refusal(error), None

    def _is_refusal(self, error: Exception) -> bool:
        """Whether it is wrong what was sent; otherwise MLflow is left alone for a while."""
        rejected = getattr(error, "error_code", "") in (
            "INVALID_PARAMETER_VALUE",
            "RESOURCE_DOES_NOT_EXIST",
        )
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
                place = self.outbox or "memory"
                text = "MLflow at %s lacks data of %d runs; the next run sends it from %s"
                logger.warning(text, self.uri, len(self._unsent), place)
                return
            time.sleep(_FLUSH_RETRY_SECONDS)

    def _send_unsent(self) -> None:
        for run in list(self._unsent):
            if run.send_waiting():
                with self._unsent_lock:
                    if run in self._unsent and not run.has_unsent:
                        self._unsent.remove(run)

    def _send_later(self) -> None:
        while True:
            time.sleep(max(0.1, self._down_until - time.monotonic()))
            self._send_unsent()
            with self._unsent_lock:
                if not self._unsent:
                    self._sender = None
                    return

    def _send_left_behind(self) -> None:
        for outbox in left_behind(self.outbox) if self.outbox else ():
            run = TrackedRun(self, outbox=outbox)
            run.continue_abandoned()
            self.send_when_back(run)
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
    ) -> None:
        """`tags` find it; what MLflow does not take goes to `outbox`, and is lost without one."""
        self.tracking = tracking
        self.run_id = run_id
        self.tags = dict(tags or {})
        self._parent = parent
        self._outbox = outbox
        self._was_tried = False
        self._has_ended = False
        self._sending = threading.RLock()

    def start(self, name: str, tags: Mapping[str, str]) -> None:
        """Make it, or have it made later, with the time of now. Its process is known to be at it:
        where that dies, another one ends the run.
        """
        parent = (self._parent.run_id, self._parent.tags) if self._parent else (None, {})
        given = {"name": name, "tags": {**tags, **self.tags}, "time": _now(), "parent": parent}
        if self.tracking.uri and self._outbox:
            self._outbox.add({"create": given})
            if not self.send_waiting():
                self.tracking.send_when_back(self)

    def continue_abandoned(self) -> None:
        """Go on with a run that its process has left, which ends it."""
        assert self._outbox is not None
        self._was_tried = True
        records = list(self._outbox.waiting)
        self.run_id = next((str(each["run_id"]) for each in records if "run_id" in each), None)
        if not any("end" in each for each in records):
            self._outbox.add({"end": "KILLED", "time": int(self._outbox.written * 1000)})

    @property
    def has_unsent(self) -> bool:
        """Whether something waits for MLflow."""
        return self._outbox is not None and bool(self._outbox.waiting)

    def send_waiting(self) -> bool:
        """Send what waits, in order; whether MLflow has all of it now."""
        if self._outbox is None:
            return True
        with self._sending:
            while self._outbox.waiting:
                if not self._is_over(self._outbox.waiting[0]):
                    return False
                self._outbox.waiting.popleft()
            if self._has_ended:
                self._outbox.remove()
        return True

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
        self._send({"batch": batch})

    def log_lines(self, lines: Sequence[str]) -> None:
        """Log the metrics in lines of a trainer's metrics.jsonl, with their steps and times."""
        points = [point for line in lines for point in parse_line(line)]
        if points:
            self._send({"batch": {"metrics": points}})

    def log_artifacts(self, folder: Path, pattern: str = "**/*") -> None:
        """Copy the files below a folder to the run's artifacts, several at a time."""
        for path in sorted(path for path in folder.glob(pattern) if path.is_file()):
            inner = str(path.parent.relative_to(folder))
            record = {"artifact": (str(path.resolve()), None if inner == "." else inner)}
            self.tracking.background.submit(partial(self._send, record))
        self.tracking.background.wait()

    def log_inputs(self, inputs: Sequence[Input]) -> None:
        """Record the datasets that a run reads."""
        if inputs:
            given = [(each.name, each.digest, each.source, each.context) for each in inputs]
            self._send({"inputs": given})

    def end(self, status: str = "FINISHED") -> None:
        """End the run as FINISHED, FAILED or KILLED, with the time of now."""
        self._send({"end": status, "time": _now()})
        if self._has_ended:
            self.send_waiting()

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

    def _send(self, record: Record) -> None:
        if not self.tracking.uri or (not self.has_unsent and self._is_over(record)):
            return
        if self._outbox is not None:
            self._outbox.add(record)
            self.tracking.send_when_back(self)

    def _is_over(self, record: Record) -> bool:
        return self.tracking.attempt(partial(self._deliver, record))[0]

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
            entries = [dataset_input(Input(*each)) for each in value]
            # MLflow checks for the dataset and then inserts it: two that log one would collide.
            with _one_input_at_a_time:
                client.log_inputs(self.run_id, entries)
        elif kind == "artifact" and Path(value[0]).is_file():
            client.log_artifact(self.run_id, *value)
        elif kind == "end":
            client.set_terminated(self.run_id, value, end_time=record["time"])
            self._has_ended = True

    def _create(self, client: Any, given: Mapping[str, Any]) -> None:
        if self.run_id is not None:
            return
        tags, tracking = dict(given["tags"]), self.tracking
        # It may have been made though the answer was lost.
        made = tracking.search(client, {_KEY: tags[_KEY]}) if self._was_tried else []
        self._was_tried = True
        if made:
            self.run_id = made[0]
        else:
            if parent := self._id_of_parent(client, *given["parent"]):
                tags["mlflow.parentRunId"] = parent
            run = client.create_run(tracking.experiment_id, given["time"], tags, given["name"])
            self.run_id = str(run.info.run_id)
        if self._outbox is not None:
            self._outbox.note({"run_id": self.run_id})

    def _id_of_parent(self, client: Any, known: str | None, tags: Mapping[str, str]) -> str | None:
        parent = self._parent
        if parent is None:
            return known or (next(iter(self.tracking.search(client, tags)), None) if tags else None)
        found = parent.find(client)
        if found is None and (parent.has_unsent or parent.tags.keys() != {_KEY}):
            raise ConnectionError("the MLflow run of the flow is not there yet")
        return found

    def find(self, client: Any) -> str | None:
        """Its id, making it now where it was to be made, or looking for it by its tags."""
        if self.run_id is None and self._outbox is not None:
            self.send_waiting()
        elif self.run_id is None and self.tags:
            self.run_id = next(iter(self.tracking.search(client, self.tags, "RUNNING")), None)
        return self.run_id


def _now() -> int:
    return int(time.time() * 1000)
