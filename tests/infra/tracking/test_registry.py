"""The model registry: one version a model, aliases that are not taken back, the way back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.registered import downloaded
from trimtab.infra.settings import Settings
from trimtab.infra.tracking.registry import Registry, RegistryError, Version
from trimtab.infra.tracking.runs import TrackedRun, Tracking


@pytest.fixture(scope="module")
def tracking(tmp_path_factory: pytest.TempPathFactory) -> Tracking:
    """One database for the module: making its tables takes seconds."""
    home = tmp_path_factory.mktemp("home")
    return Tracking.from_settings(Settings.from_env({"TRIMTAB_HOME": str(home)}), "toy")


class _Models:
    """Registers toy models under one name."""

    def __init__(self, tracking: Tracking, name: str, folder: Path) -> None:
        self.tracking, self.name, self.folder = tracking, name, folder
        self.registry = Registry(tracking)

    def register(
        self, weights: str, *aliases: str, run: TrackedRun | None = None, **tags: str
    ) -> str:
        def bring() -> Path:
            folder = self.folder / weights
            folder.mkdir(exist_ok=True)
            (folder / "weights").write_text(weights)
            return folder

        version = self.registry.register(
            run or self.tracking.start_run(weights),
            self.name,
            bring,
            identity={"digest": weights},
            aliases=aliases,
            tags=tags,
        )
        return version.number

    def roll_back(self, alias: str, to: str | None = None) -> Version:
        version = self.registry.find_earlier(self.name, alias, to)
        self.registry.give_alias(version, alias)
        return version

    def downloaded(self, which: str) -> str:
        """What MLflow gives for `models:/<name><which>`."""
        folder = downloaded(self.tracking.uri, f"models:/{self.name}{which}")
        return (folder / "weights").read_text()

    def holder(self, alias: str) -> Version:
        found = self.registry.find(self.name, alias)
        assert found is not None
        return found


@pytest.fixture
def models(tracking: Tracking, tmp_path: Path, request: pytest.FixtureRequest) -> _Models:
    return _Models(tracking, request.node.name, tmp_path)


@pytest.mark.slow
def test_a_model_loads_by_alias(models: _Models) -> None:
    assert models.register("one", "champion", round="1") == "1"
    assert models.register("two", "candidate") == "2"
    assert models.holder("champion").number == "1"
    assert models.holder("champion").tags["round"] == "1"
    assert models.downloaded("@candidate") == "two"


def test_versions_of_one_run_keep_their_own_weights(models: _Models) -> None:
    run = models.tracking.start_run("rounds")
    models.register("first", "champion", run=run)
    models.register("second", "champion", run=run)
    models.register("third", "candidate", run=run)
    found = {which: models.downloaded(which) for which in ("@champion", "@candidate", "/1")}
    assert found == {"@champion": "second", "@candidate": "third", "/1": "first"}
    models.roll_back("champion")
    assert models.downloaded("@champion") == "first"


def test_a_model_is_one_version_and_takes_no_alias_back(models: _Models) -> None:
    assert models.register("a", "candidate") == "1"
    assert models.register("a", "candidate", "champion") == "1"
    assert models.register("b", "candidate", "champion") == "2"
    assert models.register("a", "candidate", "champion") == "1"
    assert models.holder("candidate").number == models.holder("champion").number == "2"


def test_a_registration_cut_short_is_completed(
    models: _Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 between the version and its alias: the next try makes no second version."""
    models.register("a", "champion")
    client = models.tracking.connect()
    with monkeypatch.context() as patch:
        patch.setattr(client, "set_registered_model_alias", _killed)
        with pytest.raises(KeyboardInterrupt):
            models.register("b", "champion")
    assert models.holder("champion").number == "1"
    assert models.register("b", "champion") == "2"
    assert models.holder("champion").number == "2"


def _killed(*_: Any) -> None:
    raise KeyboardInterrupt


def test_going_back(models: _Models) -> None:
    for weights in "abc":
        models.register(weights, "champion")
    assert models.roll_back("champion").number == "2"
    assert models.roll_back("champion").number == "1"
    with pytest.raises(RegistryError, match="version 1 of .* is its first champion"):
        models.roll_back("champion")
    assert models.roll_back("champion", "3").number == "3"
    assert models.holder("champion").number == "3"
    with pytest.raises(RegistryError, match="has no version '7'; it has 1, 2, 3"):
        models.roll_back("champion", "7")
    with pytest.raises(RegistryError, match="no version of .* is champion"):
        models.registry.find_earlier("nobody", "champion")


def test_found_by_alias_or_number(models: _Models) -> None:
    models.register("a", "champion")
    models.register("b")
    for which, number in (("champion", "1"), ("1", "1"), ("2", "2")):
        found = models.registry.find(models.name, which)
        assert found is not None and found.number == number
    for nobody in ("candidate", "3"):
        assert models.registry.find(models.name, nobody) is None
    assert models.registry.find("nobody", "1") is None


def test_tag_values_of_all_models_of_a_family(models: _Models) -> None:
    models.register("a", "champion", report="one")
    models.register("b", "champion", report="two")
    models.register("c")
    assert models.registry.tag_values(models.name[:-3], "report") == {"one", "two"}
    assert models.registry.tag_values("nobody", "report") == set()


def test_an_outage_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    tracking = Tracking("http://127.0.0.1:9", "toy")
    with pytest.raises(RegistryError, match=r"127\.0\.0\.1:9.*run the same command again"):
        Registry(tracking).register(TrackedRun(tracking, "x"), "m", tmp_path, identity={"a": "b"})


def test_a_run_that_began_in_an_outage_cannot_keep_a_model(models: _Models) -> None:
    with pytest.raises(RegistryError, match="could not be reached when this run began"):
        models.registry.register(
            TrackedRun(models.tracking), models.name, models.folder, identity={"digest": "x"}
        )


def test_with_tracking_off_nothing_is_registered(tmp_path: Path) -> None:
    off = Tracking("", "")
    with pytest.raises(RegistryError, match="switched off"):
        Registry(off).register(TrackedRun(off), "m", tmp_path, identity={})
    with pytest.raises(RegistryError, match="switched off"):
        Registry(off).find("m", "champion")
