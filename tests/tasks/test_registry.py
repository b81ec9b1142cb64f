"""Policies that a run registers: what MLflow gives for an alias is what the store has."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from tests.registered import downloaded
from trimtab.infra.settings import Settings
from trimtab.infra.store.manifest import Provenance
from trimtab.infra.store.store import Store, open_store
from trimtab.infra.tracking.registry import Registry, Version
from trimtab.infra.tracking.runs import Tracking
from trimtab.models.data.records import ArtifactRef
from trimtab.tasks import registry as registry_module
from trimtab.tasks.execution import StageResult
from trimtab.tasks.registry import (
    DIGEST,
    KEY,
    REPORT,
    ROUND,
    Approval,
    LineageError,
    RegisteredRun,
    champion_to_replace,
    model_name,
    register_models,
    registered,
    registry,
    roll_back,
)

VERDICT = {
    "answer": "better",
    "sentence": "Better: by far.",
    "judged_by": "gold",
    "net": {"count": 24},
}
PLACE = "model/model.safetensors"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "id2label": {"0": "reward"},
    "eos_token_id": 1,
    "pad_token_id": 0,
}


class _Runs:
    """Registers runs of toy policies, by the task that flows end with."""

    def __init__(self, home: Path) -> None:
        settings = Settings.from_env({"TRIMTAB_HOME": str(home)})
        self.store: Store = open_store(settings.store_url)
        self.tracking = Tracking.from_settings(settings, "toy")
        self.context = SimpleNamespace(settings=settings, store=self.store, tracking=self.tracking)
        self.scratch = home / "scratch"
        self.store_folder = settings.home / "store"

    def published(self, stage: str, key: str, **parents: StageResult) -> StageResult:
        """An artifact whose weights are its key."""
        path = self.scratch / key / PLACE
        path.parent.mkdir(parents=True)
        path.write_text(key)
        path.with_name("config.json").write_text(json.dumps(CONFIG))
        words = Tokenizer(WordLevel({"<pad>": 0, "<eos>": 1, "a": 2}, unk_token="<pad>"))
        words.add_special_tokens(["<pad>", "<eos>"])
        words.save(str(path.with_name("tokenizer.json")))
        path.with_name("tokenizer_config.json").write_text('{"eos_token": "<eos>"}')
        (path.parents[1] / "critic").mkdir()
        (path.parents[1] / "critic" / "model.safetensors").write_text(f"critic of {key}")
        refs = {role: made.ref for role, made in parents.items()}
        manifest = self.store.publish(
            *(stage, key, self.scratch / key),
            Provenance(
                config={"config": {"rounds": {"meta_rm": {}}}},
                parents={
                    role: {"stage": ref.stage, "key": ref.key, "digest": ref.digest}
                    for role, ref in refs.items()
                },
            ),
        )
        return StageResult(ArtifactRef(stage, key, manifest.digest), {}, False, 1.0)

    def end(
        self,
        recipe: str,
        policies: dict[int, str],
        champion: int | None,
        scorers: dict[str, StageResult] | None = None,
    ) -> str | None:
        """Register a run's policies, given by the keys of rounds; returns the MLflow run."""
        found = {number: self.published("ppo_max", key) for number, key in policies.items()}
        made = {f"policy_{number}": policy for number, policy in found.items()}
        made |= scorers or {}
        report = self.published("report", f"report-{'-'.join(policies.values())}", **made)
        numbers = {
            "1_main_net": 0.25,
            "relabelled_label_accuracy": 0.75,
        }
        report = dataclasses.replace(report, summary=numbers)
        run = self.tracking.start_run(recipe)
        register_models.fn(
            run.run_id,
            RegisteredRun(
                recipe,
                found,
                champion,
                report,
                "settings",
                scorers or {},
                name=recipe,
                command="again",
                verdict={"policy": "1", **VERDICT},
                page="http://mlflow/report",
            ),
        )
        return run.run_id

    def in_store(self, key: str) -> str:
        manifest = self.store.find("ppo_max", key)
        assert manifest is not None
        return next(file.sha256 for file in manifest.files if file.name == PLACE)

    def in_mlflow(self, recipe: str, which: str) -> str:
        folder = downloaded(self.tracking.uri, f"models:/{model_name(recipe)}{which}")
        return hashlib.sha256((folder / PLACE).read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> _Runs:
    """One database for the module: making its tables takes seconds."""
    return _Runs(tmp_path_factory.mktemp("home"))


@pytest.fixture(autouse=True)
def _context(runs: _Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "base_context", lambda: runs.context)
    monkeypatch.setattr(registry_module, "emit", lambda *_, **__: None)


@pytest.mark.slow
def test_a_last_round_that_is_not_promoted_leaves_the_champion_its_weights(runs: _Runs) -> None:
    runs.end("toy", {1: "one", 2: "two"}, champion=1)
    assert runs.in_mlflow("toy", "@champion") == runs.in_store("one")
    assert runs.in_mlflow("toy", "@candidate") == runs.in_store("two")
    other = runs.tracking.connect().get_model_version_by_alias(model_name("toy"), "candidate")
    assert "Better" not in other.description  # the verdict is on round 1
    assert "trimtab.verdict" not in other.tags

    runs.end("toy", {2: "better", 3: "worse"}, champion=2)
    assert runs.in_mlflow("toy", "@champion") == runs.in_store("better")
    assert runs.in_mlflow("toy", "@candidate") == runs.in_store("worse")
    roll_back("toy", None)
    assert runs.in_mlflow("toy", "@champion") == runs.in_store("one")
    assert runs.in_mlflow("toy", "@candidate") == runs.in_store("worse")


@pytest.mark.slow
def test_a_champion_that_a_person_rejects_is_a_version_and_the_alias_stays(runs: _Runs) -> None:
    runs.end("asked", {1: "stands"}, champion=1)
    client, name = runs.tracking.connect(), model_name("asked")
    policies = {2: runs.published("ppo_max", "comes")}
    report = runs.published("report", "report-comes", policy_2=policies[2])
    run = RegisteredRun("asked", policies, 2, report, "settings")
    assert champion_to_replace.fn(run) == "1"
    for decision, holder, reason in (("rejected", "1", "longer"), ("approved", "2", "it wins")):
        decided = Approval(decision, reason, "Ada", "2026-11-26 14:05 UTC")
        again = runs.tracking.start_run("asked")
        register_models.fn(again.run_id, dataclasses.replace(run, approval=decided))
        assert str(client.get_model_version_by_alias(name, "champion").version) == holder
        tags = client.get_model_version(name, "2").tags
        assert decided.tags.items() <= tags.items()
        assert tags["trimtab.approval"] == decision and tags["trimtab.approval.reason"] == reason
        # The same command where nobody is asked.
        said = str(register_models.fn(runs.tracking.start_run("asked").run_id, run))
        assert f"champion version {holder}" in said
        assert ("version 2 not champion, as Ada rejected it" in said) == (decision == "rejected")
        assert str(client.get_model_version_by_alias(name, "champion").version) == holder
    assert champion_to_replace.fn(run) is None  # it was champion, and nobody is asked again
    assert champion_to_replace.fn(dataclasses.replace(run, champion=None)) is None
    new = dataclasses.replace(run, model="new")
    assert champion_to_replace.fn(new) == ""


def test_a_version_says_what_it_is_and_where_it_is_from(runs: _Runs) -> None:
    run_id = runs.end("said", {1: "told"}, champion=1)
    client = runs.tracking.connect()
    version = client.get_model_version_by_alias("trimtab-policy-said", "champion")
    assert version.description == (
        "1 of said. Better: by far. Judged by the gold scorer on 24 prompts.\n\n"
        "[Report](http://mlflow/report)\n\nMade by `again`\n\n"
        'Load: `mlflow.transformers.load_model("models:/trimtab-policy-said/1")`'
    )
    assert version.tags["trimtab.command"] == "again" and version.run_id == run_id
    assert version.tags["trimtab.run"] == "said" and version.tags["trimtab.verdict"] == "better"
    assert version.tags["trimtab.report_url"] == "http://mlflow/report"
    described = client.get_registered_model("trimtab-policy-said").description
    assert 'load_model("models:/trimtab-policy-said@champion")' in described
    assert "@candidate is" in described and "`trimtab rollback trimtab-policy-said`" in described
    model = client.get_logged_model(version.source.removeprefix("models:/"))
    assert {metric.key: metric.value for metric in model.metrics} == {"1/main_net": 0.25}
    assert (model.model_type, str(model.status)) == ("policy", "READY")
    folder = downloaded(runs.tracking.uri, "models:/trimtab-policy-said@champion")
    assert not (folder / "critic").exists()


def test_a_flow_run_s_page_leads_to_the_version_and_says_who_is_champion(
    runs: _Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, str]] = []
    monkeypatch.setattr(registry_module, "create_link_artifact", lambda **given: made.append(given))
    uri = SimpleNamespace(uri="http://mlflow")
    monkeypatch.setattr(registry_module, "base_context", lambda: SimpleNamespace(tracking=uri))
    registry_module._link("trimtab-policy-toy", "2", "candidate version 2, champion version 1")
    (link,) = made
    assert link["link"] == (
        "http://mlflow/#/models/trimtab-policy-toy/versions/2?workflowType=machine_learning"
    )
    assert link["description"] == "Candidate version 2, champion version 1"


def test_a_champion_by_rule_only_is_said_to_be_one(runs: _Runs) -> None:
    client, name = runs.tracking.connect(), model_name("ruled")
    report = runs.published("report", "report-ruled")
    for rule in ("always", "judgement"):
        policies = {1: runs.published("ppo_max", f"ruled-{rule}")}
        run = RegisteredRun("ruled", policies, 1, report, "settings", promoted_by=rule)
        said = str(register_models.fn(runs.tracking.start_run("ruled").run_id, run))
        champion = client.get_model_version_by_alias(name, "champion")
        assert champion.tags["trimtab.promoted_by"] == rule
        for text in (said, champion.description):
            assert ("rounds.promote=always" in text) == (rule == "always")


def test_a_policy_has_not_the_numbers_of_one_whose_name_goes_on(runs: _Runs) -> None:
    numbers = {"1_main_net": 0.25, "1_sibling_net": 0.75}
    report = StageResult(ArtifactRef("report", "k", "d"), numbers, False, 1.0)
    run = RegisteredRun("toy", {}, None, report, "settings")
    card = registry_module._card(run, {"policy_1": {}, "policy_1_sibling": {}}, "policy", "", "1")
    assert card.metrics == {"1/main_net": 0.25}


@pytest.mark.slow
def test_scorers_are_registered_beside_the_policies(runs: _Runs) -> None:
    scorers = {
        "reward_model": runs.published("reward_model", "rewards"),
        "advantage_model": runs.published("advantage_model", "advantages"),
    }
    runs.end("scored", {1: "first"}, champion=None, scorers=scorers)
    client = runs.tracking.connect()
    found = client.get_model_version_by_alias("trimtab-reward-model-scored", "candidate")
    assert (
        found.tags[KEY] == "rewards"
        and "the tokenizer puts the end token behind" in found.description
    )
    model = client.get_logged_model(found.source.removeprefix("models:/"))
    assert {metric.key: metric.value for metric in model.metrics} == {
        "relabelled/label_accuracy": 0.75
    }
    assert found.description.startswith(
        "Reward model of scored. Agreement with the test labels 75.0 %.\n\n"
    )
    described = client.get_registered_model(found.name).description
    assert 'load_model("models:/trimtab-reward-model-scored@candidate")' in described
    assert "Better" not in found.description  # the verdict is on a policy
    assert 'mlflow.pyfunc.load_model("models:/trimtab-reward-model-scored/1")' in found.description
    assert registry().find("trimtab-advantage-model-scored", "champion") is None
    runs.end("scored", {1: "second"}, champion=1, scorers=scorers)
    champion = registry().find("trimtab-advantage-model-scored", "champion")
    assert champion is not None and champion.number == "1"


@pytest.mark.slow
def test_scorers_go_back_with_the_policy_of_their_run(runs: _Runs) -> None:
    for number in (1, 2):
        scorers = {
            role: runs.published(role, f"{role}-{number}")
            for role in ("reward_model", "advantage_model")
        }
        runs.end("back", {1: f"policy-{number}"}, champion=1, scorers=scorers)
    names = [f"trimtab-{kind}-back" for kind in ("policy", "reward-model", "advantage-model")]
    for to, number in ((None, "1"), ("2", "2")):
        now = roll_back("back", to)
        assert [(each.name, each.number) for each in now] == [(name, number) for name in names]
        for name in names:
            champion = registry().find(name, "champion")
            assert champion is not None and champion.number == number


@pytest.mark.slow
def test_going_back_is_done_again_after_a_failure_halfway(
    runs: _Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        made = {"reward_model": runs.published("reward_model", f"halfway-{number}")}
        runs.end("halfway", {1: f"halfway-policy-{number}"}, champion=1, scorers=made)
    give_alias = Registry.give_alias

    def stopped_at_the_policy(registry: Registry, version: Version, alias: str) -> None:
        if version.name == model_name("halfway"):
            raise KeyboardInterrupt
        give_alias(registry, version, alias)

    with monkeypatch.context() as patch:
        patch.setattr(Registry, "give_alias", stopped_at_the_policy)
        with pytest.raises(KeyboardInterrupt):
            roll_back("halfway", None)
    assert [each.number for each in roll_back("halfway", None)] == ["1", "1"]


def test_weights_are_not_stored_twice(runs: _Runs) -> None:
    runs.end("linked", {1: "shared"}, champion=1)
    folder = downloaded(runs.tracking.uri, "models:/trimtab-policy-linked@champion")
    manifest = runs.store.find("ppo_max", "shared")
    assert manifest is not None
    (ours,) = (runs.store_folder / "artifacts/ppo_max/shared").glob(f"*/{PLACE}")
    assert (folder / PLACE).samefile(ours)


def test_a_registered_scorer_s_settings_are_its_own_and_the_store_keeps_its(runs: _Runs) -> None:
    scorer = runs.published("reward_model", "untouched")
    runs.end("apart", {1: "beside"}, champion=None, scorers={"reward_model": scorer})
    folder = downloaded(runs.tracking.uri, "models:/trimtab-reward-model-apart@candidate")
    (ours,) = (runs.store_folder / "artifacts/reward_model/untouched").glob(f"*/{PLACE}")
    assert (folder / PLACE).samefile(ours)
    assert json.loads(ours.with_name("config.json").read_text()) == CONFIG
    made = json.loads((folder / "model/config.json").read_text())
    assert made["label2id"] == {"reward": 0} and made["problem_type"] == "regression"
    own = json.loads(ours.with_name("tokenizer.json").read_text())
    assert own["normalizer"] is None
    assert json.loads((folder / "model/tokenizer.json").read_text())["normalizer"] is not None


def test_a_try_that_was_stopped_before_there_was_a_version_is_taken_up(
    runs: _Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = runs.tracking.connect()
    with monkeypatch.context() as patch:
        patch.setattr(client, "create_model_version", _stopped)
        with pytest.raises(KeyboardInterrupt):
            runs.end("stopped", {1: "again"}, champion=1)
    before = {model.model_id for model in client.search_logged_models([_experiment(runs)])}
    found = runs.store.find("ppo_max", "again")
    assert found is not None
    policy = StageResult(ArtifactRef("ppo_max", "again", found.digest), {}, False, 1.0)
    report = runs.published("report", "of-the-second-try", policy_1=policy)
    run = runs.tracking.start_run("second")
    again = RegisteredRun("stopped", {1: policy}, 1, report, "settings")
    assert "champion version 1" in str(register_models.fn(run.run_id, again))
    after = {model.model_id for model in client.search_logged_models([_experiment(runs)])}
    assert after == before
    assert runs.in_mlflow("stopped", "@champion") == runs.in_store("again")


def test_a_model_that_cannot_be_brought_leaves_nothing_behind(
    runs: _Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = runs.tracking.connect()
    before = {model.model_id for model in client.search_logged_models([_experiment(runs)])}
    monkeypatch.setattr(registry_module, "make_model_folder", _stopped)
    with pytest.raises(KeyboardInterrupt):
        runs.end("broken", {1: "unbrought"}, champion=1)
    after = {model.model_id for model in client.search_logged_models([_experiment(runs)])}
    assert after == before
    assert not list(runs.context.settings.work.glob("register-*"))


def test_what_a_killed_registration_left_goes_with_the_next(runs: _Runs) -> None:
    left = runs.context.settings.work / "register-trimtab-policy-killed" / "mlflow"
    left.mkdir(parents=True)
    (left / "half").write_text("of a model")
    runs.end("killed", {1: "killed"}, champion=1)
    assert runs.in_mlflow("killed", "@champion") == runs.in_store("killed")
    assert not list(runs.context.settings.work.glob("register-*"))


def _stopped(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def _experiment(runs: _Runs) -> str:
    runs.tracking.connect()
    return runs.tracking.experiment_id


def test_a_version_that_its_run_does_not_know_is_nobody_s_to_continue_from(runs: _Runs) -> None:
    """Such as anybody makes who may write in MLflow."""
    scorer = runs.published("reward_model", "scorer-of-forged")
    runs.end("forged", {1: "genuine"}, 1, {"reward_model": scorer})
    own = registered("forged", "champion")
    assert own is not None and own.artifacts["policy_1"].ref.key == "genuine"
    client, name = runs.tracking.connect(), model_name("forged")
    for forged in (
        {KEY: "another"},
        {DIGEST: "another"},
        {KEY: scorer.ref.key, DIGEST: scorer.ref.digest},  # of the same run, but no policy
        {ROUND: "first"},
        {ROUND: "-1"},
        {REPORT: "report-of-nobody"},
    ):
        tags = {**own.version.tags, **forged}
        made = client.create_model_version(name, str(runs.scratch / "genuine"), tags=tags)
        client.set_registered_model_alias(name, "champion", made.version)
        with pytest.raises(LineageError, match=f"version {made.version} of {name}"):
            registered("forged", "champion")
