"""MLflow's model registry: the versions of a policy, and which of them holds an alias.

Tracking never fails a run; the registry decides which policy people get, so here an outage is an
error. Nothing is lost by it: stages are in the store, and the same command registers again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from trimtab.infra.tracking.runs import TrackedRun, Tracking

# The tag of a logged model whose files lie elsewhere.
ADDRESS = "trimtab.address"
MAX_DESCRIPTION = 5000  # characters; PostgreSQL refuses more


class RegistryError(RuntimeError):
    """MLflow's registry cannot be reached, or has no such version."""


@dataclass(frozen=True)
class Version:
    """A version of a registered model; it loads as `models:/<name>/<number>`."""

    name: str
    number: str
    tags: Mapping[str, str]


@dataclass(frozen=True)
class ModelCard:
    """What MLflow says of a version. kind: of model. metrics: by name, numbers of the same run.

    loader: the module whose `load_model` loads it; the description then ends with the call.
    model: the description of the registered model, where the version is its first.
    """

    kind: str = ""
    description: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    loader: str = ""
    model: str = ""


NO_CARD = ModelCard()


class Registry:
    """The registered models of one MLflow."""

    def __init__(self, tracking: Tracking) -> None:
        self.tracking = tracking

    def register(
        self,
        run: TrackedRun,
        name: str,
        bring: Callable[[], Path | str],
        *,
        identity: Mapping[str, str],
        aliases: Sequence[str] = (),
        tags: Mapping[str, str] | None = None,
        card: ModelCard = NO_CARD,
    ) -> Version:
        """Make the folder that `bring` returns, and nobody changes, a version of `name`.

        The tags of `identity` say which model it is. It becomes a logged model of the run, whose
        files are linked where MLflow's artifacts are on the same disk, and copied elsewhere. Where
        `bring` returns an address, the version names that, and nothing is copied. A model that is
        a version already is not brought again, and gets only aliases it never had, so that a run
        repeated later takes none back from a newer version. The version that had an alias before
        is noted, for `find_earlier`.
        """
        with self._client() as client:
            _create_model(client, name, card.model)
            versions = _versions(client, name, identity)
            version = (
                versions[0]
                if versions
                else self._new_version(client, run, name, bring, dict(identity), card)
            )
            for alias in aliases:
                if f"was.{alias}" not in version.tags:
                    _give_alias(client, version, alias, tags or {})
            return _version(client.get_model_version(name, version.version))

    def find(self, name: str, which: str) -> Version | None:
        """A version by number or by alias; None without one."""
        with self._client() as client:
            return _find(client, name, which)

    def versions_of(self, name: str, identity: Mapping[str, str]) -> list[Version]:
        """The versions with these tags, the oldest first.

        One that has or had an alias, and is not given it again, has the tag `was.<alias>`.
        """
        with self._client() as client:
            return [_version(version) for version in _versions(client, name, identity)]

    def tag_values(self, prefix: str, key: str) -> set[str]:
        """The values that a tag has at any version of the models whose names begin so."""
        with self._client() as client:
            models = client.search_registered_models(f"name LIKE '{prefix}%'", max_results=1000)
            versions = [
                version
                for model in models
                for version in client.search_model_versions(f"name = '{model.name}'")
            ]
        return {version.tags[key] for version in versions if key in version.tags}

    def tag(self, version: Version, tags: Mapping[str, str]) -> None:
        """Set tags of a version."""
        with self._client() as client:
            for key, value in tags.items():
                client.set_model_version_tag(version.name, version.number, key, value)

    def find_earlier(self, name: str, alias: str, to: str | None = None) -> Version:
        """The version that held an alias before, or version `to`, if it can have the alias again.

        Raises RegistryError.
        """
        with self._client() as client:
            current = _find(client, name, alias)
            if current is None:
                raise RegistryError(
                    f"no version of {name} is {alias}: there is nothing to roll back"
                )
            to = to or current.tags.get(f"replaces.{alias}")
            if to is None:
                raise RegistryError(
                    f"version {current.number} of {name} is its first {alias}; there is no "
                    "earlier one"
                )
            known = [str(version.version) for version in _versions(client, name)]
            if to not in known:
                raise RegistryError(f"{name} has no version {to!r}; it has {', '.join(known)}")
            return _version(client.get_model_version(name, to))

    def give_alias(self, version: Version, alias: str) -> None:
        """Give an alias to a version."""
        with self._client() as client:
            client.set_registered_model_alias(version.name, alias, version.number)

    def _new_version(
        self,
        client: Any,
        run: TrackedRun,
        name: str,
        bring: Callable[[], Path | str],
        identity: dict[str, str],
        card: ModelCard,
    ) -> Any:
        """Bring the folder to MLflow, and only then make a version of it."""
        if run.run_id is None:
            raise RegistryError(
                f"MLflow at {self.tracking.uri} could not be reached when this run began, so there "
                f"is no MLflow run to keep {name} in; run the same command again to register it"
            )
        experiment = client.get_run(run.run_id).info.experiment_id
        logged = _logged_before(client, experiment, name, identity)
        if logged is None:
            logged = client.create_logged_model(
                experiment, name, run.run_id, tags=identity, model_type=card.kind or None
            )
            try:
                brought = bring()
                if isinstance(brought, str):
                    client.set_logged_model_tags(logged.model_id, {ADDRESS: brought})
                elif not _link(brought, logged.artifact_location):
                    client.log_model_artifacts(logged.model_id, str(brought))
            except BaseException:
                client.delete_logged_model(logged.model_id)
                raise
            logged = client.finalize_logged_model(logged.model_id, "READY")
        for key, value in card.metrics.items():
            client.log_metric(run.run_id, key, value, model_id=logged.model_id)
        import mlflow

        mlflow.set_tracking_uri(self.tracking.uri)  # where the registry's client looks for it
        version = client.create_model_version(
            name,
            logged.tags.get(ADDRESS) or f"models:/{logged.model_id}",
            run.run_id,
            tags=identity,
            description=card.description[:MAX_DESCRIPTION] or None,
            model_id=logged.model_id,
        )
        if card.loader:  # the number is known only now
            call = f'`{card.loader}.load_model("models:/{name}/{version.version}")`'
            described = f"{card.description[: MAX_DESCRIPTION - 200]}\n\nLoad: {call}"
            client.update_model_version(name, version.version, described[:MAX_DESCRIPTION])
        link = json.dumps([{"name": name, "version": int(version.version)}])
        client.set_logged_model_tags(logged.model_id, {"mlflow.modelVersions": link})
        return version

    @contextmanager
    def _client(self) -> Iterator[Any]:
        if not self.tracking.uri:
            raise RegistryError("MLflow is switched off (its tracking URI is empty): no registry")
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield self.tracking.connect()
        except (MlflowException, SQLAlchemyError, OSError) as error:
            first = (str(error).splitlines() or [repr(error)])[0]
            raise RegistryError(
                f"MLflow's registry at {self.tracking.uri}: {first}. What was trained is in the "
                "store: run the same command again when MLflow answers"
            ) from error


def _logged_before(
    client: Any, experiment: str, name: str, identity: Mapping[str, str]
) -> Any | None:
    """The model as an earlier try left it that was stopped before there was a version of it."""
    wanted = " and ".join(f"tags.`{key}` = '{value}'" for key, value in identity.items())
    for model in client.search_logged_models([experiment], wanted):
        if model.name == name and str(model.status) == "READY":
            return model
    return None


def _link(folder: Path, location: str) -> bool:
    """Hard-link a folder's files to MLflow's place for them; False where that is not possible.

    Links of files of the store, which are read-only: MLflow deletes and never writes them.
    """
    place = urlsplit(location)
    if place.scheme not in ("", "file"):
        return False
    target = Path(url2pathname(place.path))
    if not target.parents[2].is_dir():  # of a server, whose disk is another one
        return False
    try:
        shutil.copytree(folder, target, copy_function=os.link, dirs_exist_ok=True)
    except (OSError, shutil.Error):
        shutil.rmtree(target, ignore_errors=True)
        return False
    return True


def _create_model(client: Any, name: str, description: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name, description=description or None)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _versions(client: Any, name: str, tags: Mapping[str, str] | None = None) -> list[Any]:
    """The versions of a model that have these tags, the oldest first."""
    versions = client.search_model_versions(f"name = '{name}'")
    tagged = [version for version in versions if (tags or {}).items() <= version.tags.items()]
    return sorted(tagged, key=lambda version: int(version.version))


def _give_alias(client: Any, version: Any, alias: str, tags: Mapping[str, str]) -> None:
    """The tag that it had the alias comes last: after a kill, all of this is done again."""
    before = _find(client, version.name, alias)
    if before is not None and before.number != str(version.version):
        tags = {**tags, f"replaces.{alias}": before.number}
    for key, value in tags.items():
        client.set_model_version_tag(version.name, version.version, key, value)
    client.set_registered_model_alias(version.name, alias, version.version)
    client.set_model_version_tag(version.name, version.version, f"was.{alias}", "yes")


def _find(client: Any, name: str, which: str) -> Version | None:
    """A version by number or by alias; None where MLflow has no such model or version."""
    from mlflow.exceptions import MlflowException

    get = client.get_model_version if which.isdecimal() else client.get_model_version_by_alias
    try:
        return _version(get(name, which))
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        return None


def _version(version: Any) -> Version:
    return Version(str(version.name), str(version.version), dict(version.tags))
