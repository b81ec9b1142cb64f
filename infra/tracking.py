"""MLflow runs: one for a flow run, nested ones for its stages.

Tracking is a courtesy to the user and never fails training: when MLflow cannot be reached there is
one warning, calls are skipped for a while and then tried again. Metrics are read from the trainer's
metrics.jsonl by offset, and the offset moves only when MLflow has taken them, so a passing outage
loses none; the file itself becomes part of the artifact.

MLflow loads on first use (two seconds), not with this module.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from infra.background import Background
from infra.launch import TrainerStoppedError
from infra.locks import file_lock
from infra.mlflow_calls import (
    Input,
    dataset_input,
    experiment_id,
    flatten,
    metric,
    new_client,
    parse_line,
)
from infra.settings import Settings
from infra.tail import LineTail

__all__ = ["Input", "TrackedRun", "Tracking"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_RETRY_SECONDS = 30.0
_one_input_at_a_time = threading.Lock()
_CALLS_AT_ONCE = 4  # in the background
# MLflow's own limits, below which every store and server accepts a request.
_MAX_OF = {"params": 100, "metrics": 800, "tags": 100}  # in one request, of a thousand in all
_MAX_KEY, _MAX_PARAM, _MAX_TAG = 250, 6000, 8000


class Tracking:
    """A connection to one MLflow experiment, made on first use. Thread-safe."""

    def __init__(self, uri: str, experiment: str, artifact_root: Path | None = None) -> None:
        """`artifact_root` is where the embedded SQLite default keeps files; a server knows.

        An empty `uri` switches tracking off.
        """
        self.uri = uri
        self.experiment = experiment
        self._artifact_root = artifact_root
        self._client: Any = None
        self._experiment_id = ""
        self._lock = threading.Lock()
        self._down_until = 0.0
        self._warned: set[str] = set()
        self.background = Background(_CALLS_AT_ONCE)

    @classmethod
    def from_settings(cls, settings: Settings, experiment: str) -> Tracking:
        """The tracking these settings name."""
        root = settings.home / "mlartifacts" if settings.embedded_mlflow else None
        return cls(settings.mlflow_uri, experiment, root)

    def start_run(
        self, name: str, *, parent_id: str | None = None, tags: Mapping[str, str] | None = None
    ) -> TrackedRun:
        """Start a run; with `parent_id`, nested in that one. Its id is None in an outage."""
        all_tags = {key: str(value)[:_MAX_TAG] for key, value in (tags or {}).items()}
        if parent_id:
            all_tags["mlflow.parentRunId"] = parent_id
        run_id = self.call(
            lambda client: (
                client.create_run(self._experiment_id, tags=all_tags, run_name=name).info.run_id
            )
        )
        return TrackedRun(self, run_id)

    def attach(self, run_id: str | None) -> TrackedRun:
        """A handle on a run that was started elsewhere."""
        return TrackedRun(self, run_id)

    def running(self, tags: Mapping[str, str]) -> list[str]:
        """The ids of the runs with these tags that have not ended, the newest first."""
        wanted = [f"tags.`{key}` = '{value}'" for key, value in tags.items()]
        found = self.call(
            lambda client: client.search_runs(
                [self._experiment_id], " and ".join([*wanted, "attributes.status = 'RUNNING'"])
            )
        )
        return [run.info.run_id for run in found or []]

    def call(self, function: Callable[[Any], _T]) -> _T | None:
        """`function(client)`, or None where MLflow fails or has failed a moment ago."""
        if not self.uri or self.down:
            return None
        with self._failing_softly():
            return function(self.connect())
        return None

    @contextmanager
    def _failing_softly(self) -> Iterator[None]:
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (MlflowException, SQLAlchemyError, OSError) as error:
            rejected = getattr(error, "error_code", "") in (
                "INVALID_PARAMETER_VALUE",
                "RESOURCE_DOES_NOT_EXIST",
            )
            if not rejected:  # nothing wrong with what was sent: wait, then try again
                self._down_until = time.monotonic() + _RETRY_SECONDS
            kind = getattr(error, "error_code", type(error).__name__)
            if kind not in self._warned:  # once for each kind of trouble
                self._warned.add(kind)
                logger.warning(
                    "MLflow at %s: %s. Training goes on; metrics stay in metrics.jsonl",
                    self.uri,
                    str(error).splitlines()[0] if str(error) else repr(error),
                )

    @property
    def down(self) -> bool:
        """Whether the last call failed so recently that calls are skipped."""
        return time.monotonic() < self._down_until

    def connect(self) -> Any:
        """The MLflow client; raises what MLflow raises."""
        with self._lock:
            if self._client is None:
                client = new_client(self.uri)
                root = self._artifact_root
                # Two processes that create one SQLite database get in each other's way.
                with file_lock(root.parent / ".mlflow.lock") if root else nullcontext():
                    self._experiment_id = experiment_id(client, self.experiment, root)
                self._client = client
            return self._client


class TrackedRun:
    """One MLflow run. As a context manager it ends itself: FINISHED, FAILED or KILLED."""

    def __init__(self, tracking: Tracking, run_id: str | None) -> None:
        self.tracking = tracking
        self.run_id = run_id

    @property
    def link(self) -> str:
        """The run in Markdown: its page where MLflow is a server, else its id."""
        if not self.tracking.uri.startswith("http"):
            return f"`{self.run_id}`"
        experiment = self._call(lambda client, run: client.get_run(run).info.experiment_id)
        page = f"{self.tracking.uri}/#/experiments/{experiment}/runs/{self.run_id}"
        return f"[{self.run_id}]({page})"

    def child(self, name: str, tags: Mapping[str, str] | None = None) -> TrackedRun:
        """Start a run nested in this one."""
        return self.tracking.start_run(name, parent_id=self.run_id, tags=tags)

    def log(
        self,
        *,
        params: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Log nested parameters as `a.b.c`, numbers and tags, in as few requests as MLflow takes.

        Long values are cut to its limits. What trainers report by the thousand goes through `pump`.
        """
        if self.run_id is None:
            return
        from mlflow.entities import Param, RunTag

        self._send(
            params=[Param(k[:_MAX_KEY], v[:_MAX_PARAM]) for k, v in flatten(params or {})],
            metrics=[metric(k, v, time.time(), 0) for k, v in (metrics or {}).items()],
            tags=[RunTag(k, str(v)[:_MAX_TAG]) for k, v in (tags or {}).items()],
        )

    def pump(self, tail: LineTail) -> bool:
        """Send the new lines of a metrics.jsonl; False, and they are kept, if MLflow is down."""
        if self.run_id is None or self.tracking.down:
            return False
        while lines := tail.read(limit=1 << 18):
            self._send(metrics=[item for line in lines for item in parse_line(line)])
            if self.tracking.down:
                tail.unread()
                return False
        return True

    def log_artifacts(self, folder: Path) -> None:
        """Copy all files below a folder to the run's artifacts, several at a time."""
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            inner = str(path.parent.relative_to(folder))
            log = partial(self._log_artifact, path, None if inner == "." else inner)
            self.tracking.background.later(log)
        self.tracking.background.settle()

    def _log_artifact(self, path: Path, folder: str | None) -> None:
        self._call(lambda client, run: client.log_artifact(run, str(path), folder))

    def log_inputs(self, inputs: Sequence[Input]) -> None:
        """Record the datasets that a run reads."""
        if self.run_id is None or not inputs:
            return
        entries = [dataset_input(each) for each in inputs]
        # MLflow checks for the dataset and then inserts it: two stages logging one would collide.
        with _one_input_at_a_time:
            self._call(lambda client, run: client.log_inputs(run, entries))

    def end(self, status: str = "FINISHED") -> None:
        """End the run as FINISHED, FAILED or KILLED."""
        self._call(lambda client, run: client.set_terminated(run, status))

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

    def _send(self, **rest: list[Any]) -> None:
        while any(rest.values()):
            batch = {kind: items[: _MAX_OF[kind]] for kind, items in rest.items()}
            rest = {kind: items[_MAX_OF[kind] :] for kind, items in rest.items()}
            self._call(lambda client, run, batch=batch: client.log_batch(run, **batch))

    def _call(self, function: Callable[..., _T]) -> _T | None:
        run = self.run_id
        if run is None:
            return None
        return self.tracking.call(lambda client: function(client, run))
