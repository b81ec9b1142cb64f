"""A worker's run is limited, one of one's own machine is not; every field that names a place is."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from prefect.context import FlowRunContext
from pydantic import BaseModel

from trimtab.flows.config.config import RunConfig, load_config
from trimtab.flows.config.recipes import RECIPES, recipe_named
from trimtab.infra.access import AccessError
from trimtab.infra.settings import Settings
from trimtab.infra.store.store import Store, open_store
from trimtab.models.config.data import PreferencesConfig
from trimtab.models.config.external_reward import ExternalRewardVotesConfig, RewardConfig
from trimtab.models.config.judge import JudgePreferencesConfig
from trimtab.models.config.packages import PACKAGED_MODELS
from trimtab.models.config.policy import PPOConfig
from trimtab.models.config.reporting import EvaluateConfig
from trimtab.models.config.reward import ExternalVotesConfig
from trimtab.models.config.training import SFTConfig
from trimtab.models.judge.constitutions import ConstitutionError
from trimtab.models.training.embedding import PACKAGED_ENCODERS
from trimtab.tasks import context, judges, sources
from trimtab.tasks.access import (
    OUR_OWN,
    PLACES,
    access_of_run,
    kind_of,
    require_access,
)
from trimtab.tasks.judges import judge_access_env, judge_environment, judge_keys
from trimtab.tasks.sources import import_constitution, import_source

# Fields that are texts and name no place.
WORDS = {
    *("RunConfig.recipe", "JudgeAnswersConfig.name", "SampleResponsesConfig.instruction"),
    *("PreferencesConfig.format", "PreferencesConfig.columns"),
    *("EvaluateConfig.instruction", "HIRConfig.instructions", "PreferencesConfig.categories"),
    *("EndpointConfig.model", "HarmlessConfig.categories", "RewardModelConfig.categories"),
    *("RewardServerConfig.model", "RewardServerConfig.end_text"),
    "PreferencesConfig.prompt_columns",
    *("ScorersConfig.safety_categories", "JudgeAnswersConfig.sets"),
    *("JudgeAnswersConfig.categories", "RewardModelConfig.without_categories"),
    *("JudgedPairsConfig.categories", "VotingJudgeConfig.name", "ReviseConfig.categories"),
}
ENDPOINT = {
    *("EndpointConfig.base_url", "EndpointConfig.key_variable", "EndpointConfig.key_block"),
    *("RewardServerConfig.url", "RewardServerConfig.key_variable", "RewardServerConfig.key_block"),
}
JUDGE = "https://judge.example/v1"


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    store = open_store(str(tmp_path / "store"))
    monkeypatch.setattr(sources, "base_context", lambda: SimpleNamespace(store=store))
    for name in ("TRIMTAB_DATA_ROOTS", "TRIMTAB_JUDGES", "TRIMTAB_JUDGE_NETWORKS"):
        monkeypatch.delenv(name, raising=False)
    return store


@pytest.fixture
def at_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a worker has started this process for a flow run."""
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(uuid.uuid4()))


def _raw(store: Store) -> list[str]:
    return [name for name in store.objects.list("") if "raw/" in name]


def _text_fields(kind: Any) -> Iterator[tuple[type[BaseModel], str]]:
    """Every field below a configuration that may hold a text."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            if str in _leaves(field.annotation):
                yield kind, name
            yield from _text_fields(field.annotation)
    for each in get_args(kind):
        yield from _text_fields(each)


def _leaves(kind: Any) -> set[Any]:
    inner = [each for each in get_args(kind) if not isinstance(each, str)]
    return {kind} if not inner else set().union(*map(_leaves, inner))


def test_every_text_of_a_configuration_is_a_place_or_known_to_be_none() -> None:
    """A new field that holds a path must be named here, or in PLACES, which limits it."""
    of_stages = (ExternalRewardVotesConfig, ExternalVotesConfig)
    found = {each for kind in (RunConfig, *of_stages) for each in _text_fields(kind)}
    assert len(found) > 25
    unknown = {
        f"{owner.__name__}.{name}"
        for owner, name in found
        if kind_of(owner, name) is None
        and not {f"{each.__name__}.{name}" for each in owner.__mro__} & (WORDS | ENDPOINT)
    }
    assert unknown == set()
    named = {f"{each.__name__}.{name}" for owner, name in found for each in owner.__mro__}
    assert set(PLACES) | WORDS | ENDPOINT <= named


def test_what_comes_with_trimtab_needs_no_permission() -> None:
    assert set(PACKAGED_MODELS) | set(PACKAGED_ENCODERS) <= OUR_OWN


@pytest.mark.usefixtures("at_a_worker")
@pytest.mark.parametrize("recipe", [name for name in RECIPES if recipe_named(name).is_synthetic])
def test_recipes_of_the_synthetic_world_need_no_permission(recipe: str) -> None:
    require_access(recipe_named(recipe))


def _config(**changes: Any) -> RunConfig:
    return load_config(recipe_named("smoke").model_dump(mode="json") | changes)


def _judged(constitution: str | None = None, **endpoint: Any) -> JudgePreferencesConfig:
    given = {"model": "m", "base_url": JUDGE, **endpoint}
    judge = {"endpoint": given, "constitution": constitution}
    return JudgePreferencesConfig.model_validate({"judge": judge})


def _audit(**ensemble: Any) -> RunConfig:
    values = recipe_named("audit").model_dump(mode="json")
    return load_config({**values, "ensemble": {**values["ensemble"], **ensemble}})


ATTACKS: dict[str, BaseModel] = {
    "preferences.sources": _config(
        preferences={"sources": ["/proc/self/environ"]}, sft={"model": {"base": "gpt2"}}
    ),
    "preferences.demonstrations": _config(
        preferences={"sources": ["a/b"], "demonstrations": ["/proc/self/environ"]},
        sft={"model": {"base": "gpt2"}},
    ),
    "preferences.tokenizer": _config(preferences={"tokenizer": "/root/model"}),
    "sft.model.base": _config(sft={"model": {"base": "/root/.ssh"}}),
    "scorer_base.model.base": _config(scorer_base={"model": {"base": "/root/.ssh"}}),
    "rehearsal.encoder": _config(rehearsal={"encoder": "../../model"}),
    "embedding_models.encoder": _config(embedding_models=[{"encoder": "some/model"}]),
    "relabel.review": _config(relabel={"review": "/etc/passwd"}),
    "ensemble.scores": _audit(scores=["/etc/votes.csv"]),
    "ensemble.rewards.model": _audit(rewards=[{"model": "/srv/model"}]),
    "ensemble.rewards.function": _audit(rewards=[{"function": "os:system"}]),
    "ensemble.rewards.server": _audit(
        rewards=[{"server": {"url": "http://10.0.0.1/get_reward", "format": "openrlhf"}}]
    ),
    "ensemble.judges.judge.endpoint": _audit(
        judges=[{"name": "a", "judge": {"endpoint": {"model": "m", "base_url": "http://10.0.0.1"}}}]
    ),
    "ensemble.cross_fitted.base": _audit(cross_fitted={"base": "/srv/model"}),
    "judge_preferences.judge.constitution": _config(
        judge_preferences=_judged("/etc/passwd").model_dump(mode="json")
    ),
    "judge_preferences.judge.endpoint": _config(
        judge_preferences=_judged(key_variable="PGPASSWORD").model_dump(mode="json")
    ),
    "judge_preferences.judge.local_model": _config(
        judge_preferences={"judge": {"local_model": "/srv/model"}}
    ),
    "judges.judge.endpoint": _config(
        judges=[{"name": "a", "judge": {"endpoint": {"model": "m", "base_url": "http://10.0.0.1"}}}]
    ),
    "reward.model": _config(reward={"model": "/srv/model"}),
    "reward.function": _config(reward={"function": "os:system"}),
    "reward.server": _config(reward={"server": {"url": "http://10.0.0.1/r", "format": "openrlhf"}}),
    "reward.panel.function": _config(reward={"panel": [{"function": "a:b"}, {"model": "a/b"}]}),
    "held_out_rewards.function": _config(held_out_rewards=[{"function": "os:system"}]),
    "constitution.revise.constitution": _config(
        constitution={"revise": {"judge": {"gold_accuracy": 0.9}, "constitution": "/etc/hosts"}}
    ),
}


@pytest.mark.parametrize("where", ATTACKS)
def test_a_worker_s_run_is_limited_one_s_own_is_not(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_access(ATTACKS[where])
    assert access_of_run() is None and judge_access_env() == {}
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(uuid.uuid4()))
    with pytest.raises(AccessError, match=rf"(?m)^{where}: .* may not be "):
        require_access(ATTACKS[where])


@pytest.mark.usefixtures("at_a_worker")
def test_the_policy_as_an_encoder_is_no_model_of_the_hub() -> None:
    """As in hh-smollm2; as a base model the same word names one."""
    require_access(_config(embedding_models=[{"encoder": "policy"}, {}]))
    with pytest.raises(AccessError, match=r"sft.model.base: 'policy' of the hub"):
        require_access(_config(sft={"model": {"base": "policy"}}))


@pytest.mark.usefixtures("at_a_worker")
def test_all_that_is_denied_is_said_at_once() -> None:
    config = _config(
        preferences={"sources": ["/a.jsonl", "s3://b/c"]}, sft={"model": {"base": "/d"}}
    )
    with pytest.raises(AccessError) as error:
        require_access(config)
    assert len(str(error.value).splitlines()) == 3


@pytest.mark.usefixtures("at_a_worker")
def test_every_stage_is_checked_whatever_flow_it_is_of() -> None:
    """Before the store is opened or anything else is done."""
    with pytest.raises(AccessError, match="model.base: the path '/etc'"):
        context.run_stage_task(
            "sft", SFTConfig.model_validate({"model": {"base": "/etc"}}), {}, "sft"
        )


def test_a_deployment_s_run_is_a_worker_s_also_on_another_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker of a Dask cluster has the flow run from Prefect, and no variable."""
    for deployment, is_limited in ((uuid.uuid4(), True), (None, False)):
        run = SimpleNamespace(flow_run=SimpleNamespace(deployment_id=deployment))
        monkeypatch.setattr(FlowRunContext, "get", lambda run=run: run)
        assert (access_of_run() is not None) == is_limited


@pytest.mark.usefixtures("at_a_worker")
@pytest.mark.parametrize("source", ["/proc/self/environ", "/etc/passwd", "s3://trimtab/artifacts"])
def test_nothing_is_published_that_may_not_be_read(source: str, store: Store) -> None:
    for bring in (import_source, import_constitution):
        with pytest.raises(AccessError):
            bring(source)
    assert _raw(store) == []


def test_nothing_is_published_that_is_no_data(tmp_path: Path, store: Store) -> None:
    """On one's own machine as well."""
    with pytest.raises(ValueError, match=r"environ: found ''; allowed: files ending in .jsonl"):
        import_source("/proc/self/environ")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConstitutionError, match="found the byte"):
        import_constitution(str(tmp_path / "binary"))
    assert _raw(store) == []
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.jsonl").write_text("{}")
    (folder / ".env").write_text("KEY=much-too-secret")
    manifest = store.find("raw", import_source(str(folder)).key)
    assert manifest is not None
    copy = tmp_path / "copy"
    store.materialise(manifest, copy)
    texts = {path.name: path.read_text() for path in copy.rglob("*") if path.is_file()}
    assert texts["a.jsonl"] == "{}" and texts[".env"] == ""


def test_a_trainer_gets_the_key_of_its_judge_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "openai's")
    monkeypatch.setenv("PGPASSWORD", "database's")
    assert judge_keys(_judged()) == {"OPENAI_API_KEY": "openai's"}
    assert judge_keys(_judged(key_variable="PGPASSWORD")) == {"PGPASSWORD": "database's"}
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "x")
    for config in (_judged(), _judged(key_variable="PGPASSWORD"), _judged(key_block="mine")):
        with pytest.raises(AccessError):
            require_access(config)
    monkeypatch.setenv("TRIMTAB_JUDGES", JUDGE)  # one that wants no key gets none
    require_access(_judged())
    assert judge_keys(_judged()) == {}
    for config in (_judged(key_variable="PGPASSWORD"), _judged(key_block="mine")):
        with pytest.raises(AccessError):
            judge_keys(config)
    monkeypatch.setenv("TRIMTAB_JUDGES", f"{JUDGE}=OPENAI_API_KEY")
    require_access(_judged())
    assert judge_keys(_judged()) == {"OPENAI_API_KEY": "openai's"}
    other = _judged(base_url="https://judge.example.evil/v1")
    with pytest.raises(AccessError):
        require_access(other)


def test_a_block_s_value_becomes_no_other_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judges, "_value_of", lambda block: f"of {block}")
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "x")
    monkeypatch.setenv("TRIMTAB_JUDGES", f"{JUDGE}=mine")
    require_access(_judged(key_block="mine"))
    assert judge_keys(_judged(key_block="mine")) == {"OPENAI_API_KEY": "of mine"}
    with pytest.raises(AccessError, match="key_variable is 'LD_PRELOAD'"):
        require_access(_judged(key_block="mine", key_variable="LD_PRELOAD"))


@pytest.mark.usefixtures("at_a_worker")
def test_trainers_are_told_where_judges_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_JUDGES", "http://10.0.0.7/v1")
    monkeypatch.setenv("TRIMTAB_JUDGE_NETWORKS", "192.168.0.0/24")
    told = {"TRIMTAB_IS_CONFINED": "1", "TRIMTAB_JUDGE_NETWORKS": "192.168.0.0/24,10.0.0.7/32"}
    assert judge_access_env() == told
    config = _judged(base_url="http://10.0.0.7/v1")
    assert judge_environment(Settings.from_env({}), "judge_preferences", config, None) == told
    assert "TRIMTAB_IS_CONFINED" not in os.environ


def _served(**server: str) -> RewardConfig:
    given = {"url": "https://reward.example/get_reward", "format": "openrlhf", **server}
    return RewardConfig.model_validate({"server": given})


@pytest.mark.usefixtures("at_a_worker")
def test_a_reward_server_is_asked_with_its_key_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings are in the artifact that PPO scores by, and not in PPO's own."""
    monkeypatch.setenv("TRIMTAB_REWARD_KEY", "reward's")
    monkeypatch.setenv("PGPASSWORD", "database's")
    monkeypatch.setenv("TRIMTAB_JUDGES", "https://reward.example/get_reward=TRIMTAB_REWARD_KEY")
    require_access(_served())
    told = judge_environment(Settings.from_env({}), "ppo_max", PPOConfig(), None, [_served()])
    assert told["TRIMTAB_REWARD_KEY"] == "reward's" and "PGPASSWORD" not in told
    assert told["TRIMTAB_IS_CONFINED"] == "1"
    elsewhere = _served(url="https://reward.example/other")
    for other in (_served(key_variable="PGPASSWORD"), elsewhere):
        with pytest.raises(AccessError, match="may not be asked"):
            require_access(other)
    told = judge_environment(Settings.from_env({}), "ppo_max", PPOConfig(), None, [elsewhere])
    assert "TRIMTAB_REWARD_KEY" not in told


def test_all_stages_that_score_by_a_judge_spend_from_one_ledger(tmp_path: Path) -> None:
    endpoint = {"model": "m", "base_url": JUDGE, "max_total_tokens": 9}
    member = {"judge": {"endpoint": endpoint}}
    reward = RewardConfig.model_validate({"panel": [{"function": "a:b"}, member]})
    settings = Settings.from_env({"TRIMTAB_HOME": str(tmp_path)})
    ledgers = {
        judge_environment(settings, stage, config, "run", rewards)["TRIMTAB_JUDGE_LEDGER"]
        for stage, config, rewards in (
            ("external_reward", reward, []),
            ("ppo_max", PPOConfig(), [reward]),
            ("evaluate", EvaluateConfig(), [reward]),
        )
    }
    assert len(ledgers) == 1


@pytest.mark.usefixtures("at_a_worker")
def test_a_worker_calls_the_functions_that_its_operator_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRIMTAB_REWARD_FUNCTIONS", "ours.rewards:length, ours.rewards:safety")
    require_access(RewardConfig(function="ours.rewards:length"))
    for name in ("ours.rewards:other", "ours:rewards", "ours.rewards.length:length", "os:system"):
        with pytest.raises(AccessError, match=f"function '{name}' may not be called; allowed are"):
            require_access(RewardConfig(function=name))


@pytest.mark.usefixtures("at_a_worker")
def test_data_below_a_root_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text("{}")
    (tmp_path / "data" / "mine.txt").write_text("Be kind.")
    monkeypatch.setenv("TRIMTAB_DATA_ROOTS", str(tmp_path / "data"))
    require_access(PreferencesConfig(sources=(str(tmp_path / "data" / "a.jsonl"),)))
    import_source(str(tmp_path / "data" / "a.jsonl"))
    import_constitution(str(tmp_path / "data" / "mine.txt"))
    assert len(_raw(store)) > 2
