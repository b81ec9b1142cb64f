"""Configuration: mistakes are named with what was found and what is allowed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from trimtab.flows.cli.cli import main
from trimtab.flows.config.config import ConfigError, RunConfig, load_config, ppo_of, seeded
from trimtab.flows.config.overrides import (
    RoundChanges,
    RunChanges,
    apply_changes,
    format_overrides,
    parse_overrides,
)
from trimtab.flows.config.recipes import RECIPES, recipe_named
from trimtab.models.config.arms import vanilla
from trimtab.models.config.judge import JudgeConfig
from trimtab.models.config.policy import GRPO, RLOO, PPOConfig
from trimtab.models.config.training import LoraConfig, ZeroConfig
from trimtab.models.studies.registry import TITLES


def _smoke(*overrides: str) -> RunConfig:
    return apply_changes(recipe_named("smoke"), parse_overrides(overrides))


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_recipes_survive_a_round_trip_through_json(name: str) -> None:
    config = recipe_named(name)
    assert config.recipe == name
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


def test_overrides_reach_any_depth_and_keep_the_rest() -> None:
    config = _smoke("ppo.kl_coef=0.3", "seed=7", 'arms=["full"]', "relabel.flip_below=null")
    assert (config.ppo.kl_coef, config.seed, config.arms) == (0.3, 7, ("full",))
    assert config.relabel.flip_below is None
    assert config.recipe == "smoke"
    assert config.sft == recipe_named("smoke").sft


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("ppo.kl_coeff=1", "unknown field 'kl_coeff'; did you mean 'kl_coef'?"),
        ("sft.train.zero.stge=1", "unknown field 'stge'; did you mean 'stage'?"),
        ("pppo.kl_coef=1", "unknown field 'pppo'; did you mean 'ppo'?"),
        ("kl_coef=1", "unknown field 'kl_coef'; did you mean 'ppo.kl_coef'?"),
        ("recipe=default", "recipe: found 'default' among the changed settings; allowed: "),
        ("ppo.kl_coef.x=1", "ppo.kl_coef: Input should be a valid number; found {'x': 1}"),
        ("ppo=1", "ppo: Input should be an object with fields; found 1"),
        ("ppo.kl_coef=-1", "ppo.kl_coef: Input should be greater than or equal to 0; found -1"),
        ("ppo.critic_init=random", "Input should be 'scorer' or 'policy'; found 'random'"),
        (
            "ppo.entropy_clip=2",
            "ppo: entropy_clip must be none where entropy_coef is 0, found 2.0",
        ),
        ("seed=many", "seed: Input should be a valid integer"),
        ("ppo.kl_coef", "is not of the form field=value"),
        (
            "ppo.score_treatment=whitened",
            "Input should be 'raw', 'scaled' or 'normalised'; found 'whitened'",
        ),
        (
            'ppo.scoring.judge={"gold_accuracy":0.9,"constitution":"harmlessness"}',
            "constitution is 'harmlessness', but this judge rates single responses",
        ),
        (
            'ppo.scoring.judge={"gold_accuracy":0.9,"num_examples":1}',
            "num_examples is 1, but this judge rates single responses",
        ),
        (
            "relabel.noise=posterior",
            "relabel: flip_below must be off where noise is posterior (allowed: flip_below=null)",
        ),
        (
            'relabel={"noise":"unbiased","flip_below":null}',
            "relabel.noise must be none where in_sample is first in ensemble.votes, found unbiased",
        ),
        ("arms=[]", "arms: List should have at least 1 item after validation, not 0; found []"),
    ],
)
def test_mistakes_are_explained(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        _smoke(override)
    assert message in str(error.value)


def test_noise_is_taken_out_once() -> None:
    noise = ('relabel={"noise":"unbiased","flip_below":null}', 'ensemble.votes=["cross_fitted"]')
    assert _smoke(*noise).relabel.noise == "unbiased"
    with pytest.raises(ConfigError, match=r"dpo\.label_smoothing must be 0 where relabel\.noise"):
        _smoke(*noise, "dpo.label_smoothing=0.1")
    with pytest.raises(ConfigError, match=r"dpo\.loss must not be robust where relabel\.noise is"):
        _smoke(*noise, "dpo.label_smoothing=0.1", "dpo.loss=robust")


def test_kto_has_no_margins() -> None:
    with pytest.raises(
        ConfigError, match=r"relabel\.margin_scale must be 0 where dpo\.loss is kto"
    ):
        _smoke("relabel.margin_scale=0.5", "dpo.loss=kto")


CROSS_FITTED = 'ensemble.votes=["cross_fitted"]'
NOISE = 'relabel={"noise":"%s","flip_below":null}'


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            ["advantage_model.margin_by=strength"],
            "advantage_model.margin_by must be constant or label where in_sample is first",
        ),
        (
            ["rounds.meta_rm.margin_by=label", "relabel.margin_scale=0.5"],
            "rounds.meta_rm.margin_by (found label) must be constant where relabel.margin_scale is",
        ),
        (
            [CROSS_FITTED, NOISE % "posterior", "advantage_model.margin_by=strength"],
            "margin_by (found strength) must be constant where relabel.noise is posterior",
        ),
        (
            [CROSS_FITTED, NOISE % "unbiased", "advantage_model.margin_by=label"],
            "margin_by (found label) must be constant where relabel.noise is unbiased",
        ),
        (
            ["advantage_model.use_importance_weights=true", "advantage_model.margin_by=label"],
            "margin_by must be constant where use_importance_weights is set, found label",
        ),
        (
            ["advantage_model.use_importance_weights=true", "advantage_model.num_policies=1"],
            "num_policies must be above 1 where use_importance_weights is set, found 1",
        ),
        ([NOISE % "unbiased_by_pair"], "flip_rate must be given where noise is unbiased_by_pair"),
        (["relabel.flip_rate=0.1"], "flip_rate must be none where noise is none, found 0.1"),
        (
            ['relabel={"noise":"unbiased","flip_below":null,"rating_margins":[0,1,1,1]}'],
            "rating_margins must be none where noise is unbiased",
        ),
        (
            ["ppo.rehearsal_weights=risk", "ppo.rehearsal_coef=0"],
            "rehearsal_coef must be above 0 where rehearsal_weights is risk",
        ),
        (
            ['arms=["full"]', "ppo.kl_weights=risk", "ppo.kl_coef=0"],
            "kl_coef must be above 0 where kl_weights is risk",
        ),
        (
            ["ppo.guard.max_held_out_fall=0.5"],
            "num_held_out must be above 0 where max_held_out_fall is given",
        ),
        (
            ["ppo.objective.num_responses=3"],
            "rollout_batch must be a multiple of objective.num_responses, found 16 and 3",
        ),
        (
            ["ppo.objective.baseline=none"],
            "critic_pretrain_steps must be 0 where objective.baseline is none, found 1",
        ),
        (
            ["rloo.num_responses=1"],
            "num_responses must be at least 2 where baseline is leave_one_out, found 1",
        ),
        (["grpo.kl_estimator=k1"], "kl_estimator must be k2 or k3 where kl_in is loss, found k1"),
        (
            ["grpo.kl_bias_correction=true", "grpo.kl_estimator=k2"],
            "found true with loss and k2: neither has that bias",
        ),
        (["rloo.loss_mean=token"], "loss_mean must be sequence where ratio_of is response, found"),
        (
            ["reinforce_pp.ratio_of=response", "reinforce_pp.loss_mean=sequence"],
            "ratio_of must be token where baseline is none, found response",
        ),
        (
            ["reinforce_pp.divide_by_std=true"],
            "divide_by_std must be false where baseline is none, found true",
        ),
        (
            ['arms=["grpo"]', "grpo.num_responses=3"],
            "rollout_batch must be a multiple of grpo.num_responses, found 16 and 3",
        ),
        (
            ['arms=["grpo"]', "grpo.upper_clip=0.3", "ppo.policy_clip=null"],
            "grpo.upper_clip must be none where policy_clip is none, found 0.3",
        ),
        (
            ['arms=["reinforce_pp"]', "reinforce_pp.baseline=critic"],
            "reinforce_pp.baseline must be another than critic, found critic",
        ),
        (
            ["ppo.importance_cap=2", "ppo.vllm.cache_gib=1"],
            "temperature must be 1 where importance_cap and vllm are given, found 0.8",
        ),
        (
            ["ppo.overlong_buffer=25"],
            "overlong_buffer must be at most max_new_tokens, found 25 and 24",
        ),
        (
            ["ppo.num_ranks=3", "ppo.objective.num_responses=4"],
            "num_ranks must be at most train_batch / objective.num_responses, found 3 and 2",
        ),
        (
            ['arms=["vanilla"]', 'ppo.guard={"max_held_out_fall":0.5,"num_held_out":1}'],
            "max_held_out_fall must be none for the arm vanilla where ensemble.size is 2",
        ),
    ],
)
def test_settings_that_undo_each_other_are_refused(settings: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        _smoke(*settings)
    assert told in str(error.value)


def test_arms_without_a_critic_have_their_own_objective() -> None:
    config = _smoke('arms=["rloo","grpo","full"]', "grpo.num_responses=8", "grpo.loss_mean=token")
    assert ppo_of(config, "grpo").objective == GRPO.model_copy(
        update={"num_responses": 8, "loss_mean": "token"}
    )
    assert ppo_of(config, "rloo").objective == RLOO
    # Everything of PPO-max but what a critic and the baseline decide.
    changed = dict(ppo_of(config, "rloo"))
    same = {name for name, value in dict(config.ppo).items() if changed[name] == value}
    assert dict(config.ppo).keys() - same == {
        "objective",
        "num_steps",
        "critic_pretrain_steps",
        "critic_init",
        "score_clip",
        "normalise_advantages",
    }
    assert ppo_of(config, "full") == config.ppo
    assert ppo_of(config, "reinforce_pp").normalise_advantages
    # PPO-max itself may go without a critic, with rehearsal as it has it.
    settings = ["ppo.critic_pretrain_steps=0", "ppo.objective.baseline=leave_one_out"]
    ppo = ppo_of(_smoke(*settings, "ppo.objective.num_responses=2"), "full")
    assert not ppo.objective.has_critic and ppo.score_clip == config.ppo.score_clip


def test_labels_that_are_probabilities_may_bound_scores() -> None:
    by_label = _smoke(CROSS_FITTED, NOISE % "posterior", "advantage_model.margin_by=label")
    assert by_label.advantage_model.margin_by == "label"
    watched = 'ppo.guard={"max_held_out_fall":0.5,"num_held_out":1}'
    assert _smoke('arms=["full"]', watched).ppo.guard.max_held_out_fall == 0.5


def test_scorers_of_another_base_have_its_layers_and_leave_the_policy_alone() -> None:
    other = 'scorer_base={"model": {"hidden_size": 48, "num_layers": 3, "num_heads": 2}}'
    upper = "reward_model.train.trainable_layers"
    assert _smoke(other, f"{upper}=2", "ppo.trainable_layers=2").scorer_base is not None
    for settings, told in (
        ((f"{upper}=4",), "at most the 3 layers of the model, found reward_model.train.trainable"),
        ((f"{upper}=3",), "must be below the 3 layers of the model where cache_trunk is set"),
        (("ppo.trainable_layers=3",), "at most the 2 layers of the model, found ppo.trainable_la"),
        (("advantage_model.use_importance_weights=true",), "use_importance_weights must be left"),
        (("advantage_model.expected_reward.coef=1",), "expected_reward must be left out where sco"),
    ):
        with pytest.raises(ConfigError) as error:
            _smoke(other, *settings)
        assert told in str(error.value) and len(str(error.value).split("; ")) <= 2
    people = ('preferences.sources=["a/b"]', "sft.model.base=gpt2")
    with pytest.raises(ConfigError, match="scorer_base.model.base must be given with preferences"):
        _smoke("scorer_base.fine_tune=false", *people)


@pytest.mark.parametrize(
    "given",
    [
        "base_url=https://me:sk-9x81hu2b@host/v1",
        "key_variable=sk-9x81hu2b",
        "key_block=sk-9X81hu2b",
    ],
)
def test_a_key_given_in_the_wrong_place_is_not_shown(given: str) -> None:
    with pytest.raises(ConfigError, match="judge_preferences.judge.endpoint") as error:
        _smoke(
            "judge_preferences.judge.endpoint.model=m", f"judge_preferences.judge.endpoint.{given}"
        )
    assert "81hu2b" not in str(error.value)


def test_changes_have_every_field_of_a_run_and_presuppose_none() -> None:
    schema = RunChanges.model_json_schema()
    whole = RunConfig.model_json_schema()
    named = {
        name for name in schema["properties"] if "." not in name
    }  # others are given by path, too
    assert named == set(whole["properties"]) - {"recipe"}
    assert schema["properties"]["seed"] == {
        "description": whole["properties"]["seed"]["description"],
        "minimum": 0,
        "maximum": 4_000_000,
        "not": {"type": "null"},
        "position": 0,
        "title": "Seed of the run (seed)",
        "type": "integer",
    }

    def compare(section: dict[str, Any], original: dict[str, Any], path: str) -> None:
        by_name = {name: field for name, field in section["properties"].items() if "." not in name}
        assert set(by_name) == set(original["properties"]) - ({"recipe"} if not path else set())
        assert "required" not in section
        for name, field in by_name.items():
            # A form without a third state for booleans would send false for what nobody touched.
            assert field.get("type") != "boolean"
            assert "default" not in field, path
            theirs = re.search(r"#/\$defs/(\w+)", str(original["properties"][name]))
            ours = re.search(r"#/\$defs/(\w+)", str(field))
            assert bool(ours) == bool(theirs), (path, name)
            if ours and theirs:
                inner = schema["$defs"][ours[1]], whole["$defs"][theirs[1]]
                seen.append(ours[1])
                compare(*inner, f"{path}{name}.")

    seen: list[str] = []
    compare(schema, whole, "")
    assert sorted(seen) == sorted(schema["$defs"])
    assert apply_changes(recipe_named("smoke"), RunChanges()) == recipe_named("smoke")
    assert apply_changes(recipe_named("smoke"), None) == recipe_named("smoke")


def test_null_is_a_value_only_where_it_is_allowed() -> None:
    for path in ("ppo.num_steps", "seed", "ppo", "arms", "sft.model.max_length"):
        with pytest.raises(ConfigError, match=rf"^{re.escape(path)}: .*; found null$"):
            _smoke(f"{path}=null")
    assert _smoke("ppo.score_clip=null").ppo.score_clip is None
    assert _smoke("ppo.normalise_advantages=null").ppo.normalise_advantages is True
    assert _smoke("ppo.normalise_advantages=false").ppo.normalise_advantages is False


def test_a_section_in_which_nothing_is_given_changes_nothing() -> None:
    """The form sends `offload: null` of every `zero` that nobody touched."""
    untouched = {"zero": {"offload": None}, "lora": {}, "gradient_checkpointing": None}
    changes = {"sft": {"train": untouched}, "ppo": {**untouched, "num_steps": 7}}
    assert apply_changes(recipe_named("smoke"), changes) == _smoke("ppo.num_steps=7")
    assert _smoke("ppo.zero.stage=2").ppo.zero == ZeroConfig(stage=2)
    judge = {"gold_accuracy": 0.8, "endpoint": {}, "local_model": None}
    judges = apply_changes(
        recipe_named("smoke"), {"judges": [{"name": "m", "judge": judge}]}
    ).judges
    assert judges[0].judge == JudgeConfig(gold_accuracy=0.8)
    assert _smoke("ppo.lora.rank=8").ppo.lora == LoraConfig(rank=8)


def test_a_round_changes_what_comes_after_its_champion_and_nothing_else() -> None:
    old = recipe_named("smoke")
    changes = parse_overrides(["ppo.kl_coef=0.3", "rounds.meta_rm.seed=5", "rounds.promote=always"])
    new = apply_changes(old, changes, RoundChanges)
    assert new == apply_changes(old, changes)
    assert new.ppo.num_steps == old.ppo.num_steps
    for override, allowed in (
        ("sft.seed=1", "Allowed: ppo, rounds"),
        ("rounds.max_rounds=7", "unknown field 'max_rounds'. Allowed: promote, meta_rm"),
        ("ppo.kl_cof=1", "did you mean 'kl_coef'?"),
    ):
        with pytest.raises(ConfigError) as error:
            apply_changes(old, parse_overrides([override]), RoundChanges)
        assert allowed in str(error.value)


def test_what_was_found_is_short() -> None:
    texts = json.dumps([f"{number}.jsonl" for number in range(1000)])
    for change in (
        'preferences.sources=["x.jsonl"]',
        f"evaluate.instruction={texts}",
        f"sft.model.hidden_size={'9' * 5000}",
        f"ppo.num_ranks={{{','.join(f'{chr(34)}{number}{chr(34)}:1' for number in range(999))}}}",
    ):
        with pytest.raises(ConfigError) as error:
            _smoke(change)
        assert len(str(error.value)) < 300, change


def test_items_that_are_refused_are_named_alone() -> None:
    with pytest.raises(ConfigError) as error:
        _smoke('arms=["dop"]')
    assert str(error.value).startswith("arms.0: ")
    assert "\n" not in str(error.value)


def test_all_mistakes_are_reported_at_once() -> None:
    values = recipe_named("smoke").model_dump(mode="json")
    values["ppo"]["kl_coeff"] = 1
    values["seed"] = -1
    with pytest.raises(ConfigError) as error:
        load_config(values)
    assert "did you mean 'kl_coef'" in str(error.value)
    assert "seed: Input should be greater than or equal to 0; found -1" in str(error.value)


def test_unknown_recipe_lists_the_known() -> None:
    with pytest.raises(
        ConfigError, match="known: smoke, default, papers, rlaif, constitutional, audit, rew"
    ):
        recipe_named("defualt")


def test_real_data_needs_a_base_model() -> None:
    with pytest.raises(ConfigError, match=r"sft\.model\.base"):
        _smoke('preferences.sources=["x.jsonl"]')


def test_categories_of_a_recipe_are_those_of_its_own_sources() -> None:
    def categories(*overrides: str) -> tuple[str, ...]:
        return apply_changes(
            recipe_named("hh-smollm2"), parse_overrides(overrides)
        ).preferences.categories

    assert categories() == ("helpful", "harmless")
    assert categories('preferences.sources=["a.jsonl","b.jsonl"]') == ("helpful", "harmless")
    assert categories("preferences.sources=[a.jsonl, b.jsonl]") == ("helpful", "harmless")
    assert categories('preferences.sources=["my.jsonl"]') == ()
    one = 'preferences.sources=["my.jsonl"]'
    assert categories(one, 'preferences.categories=["c"]') == ("c",)
    with pytest.raises(ConfigError, match="one for each source, found 2 for 1 sources"):
        categories(one, 'preferences.categories=["c","d"]')


def test_the_synthetic_world_has_its_own_demonstrations() -> None:
    with pytest.raises(
        ConfigError, match=r"preferences\.demonstrations must be empty .*'x\.jsonl'"
    ):
        _smoke('preferences.demonstrations=["x.jsonl"]')


def test_arms_need_what_they_are_optimised_against() -> None:
    with pytest.raises(ConfigError, match=r"ensemble\.size must be at least 5 .*, found 2"):
        _smoke('arms=["ppo_max_ensemble"]')
    with pytest.raises(ConfigError, match=r"safety_categories must name categories .* found none"):
        _smoke('arms=["ppo_max_safety"]', "ppo.scoring.safety_categories=[]")
    same = ('reward_model.categories=["a","b"]', 'reward_model.without_categories=["b"]')
    with pytest.raises(ConfigError, match=r"must have none in common, found \['b'\] in both"):
        _smoke(*same)
    by_risk = "ppo.kl_weights=risk"
    with pytest.raises(ConfigError, match=r"kl_weights must be uniform for arms .* ppo_max_am: "):
        _smoke('arms=["vanilla","full","ppo_max_am","dpo"]', by_risk)
    assert vanilla(_smoke('arms=["vanilla","full"]', by_risk).ppo).kl_weights == "uniform"
    weighed = ("advantage_model.use_importance_weights=true", "sft.model.base=x")
    with pytest.raises(ConfigError, match="use_importance_weights must be false .*, found true"):
        _smoke('preferences.sources=["x.jsonl"]', *weighed)
    assert _smoke(*weighed).advantage_model.use_importance_weights


def test_seeds_differ_between_runs_and_members_and_vanilla_has_no_trick_left() -> None:
    config = recipe_named("default")
    seeds = {seeded(config.ppo, run, member).seed for run in range(3) for member in range(10)}
    assert len(seeds) == 30
    tricks = {"advantage_clip": 0.5, "ptx_coef": 1.0, "entropy_coef": 1.0, "entropy_clip": 2.0}
    tricks |= {"ratio_denominator": "reference", "score_treatment": "scaled"}
    plain = vanilla(config.ppo.model_copy(update=tricks))
    assert PPOConfig.model_validate(plain.model_dump()) == plain
    assert plain.score_treatment == "raw"
    assert not plain.normalise_advantages
    assert plain.score_clip is plain.value_clip is plain.advantage_clip is None
    assert plain.kl_coef == plain.rehearsal_coef == plain.critic_pretrain_steps == 0
    assert plain.ptx_coef == plain.entropy_coef == 0
    assert plain.ratio_denominator == "sampling"
    assert plain.policy_learning_rate == config.ppo.policy_learning_rate


def test_overrides_may_stand_on_either_side_of_the_options(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path))
    assert main(["run", "smoke", "seed=3", "--print-config", "ppo.kl_coef=0.3"]) == 0
    printed = RunConfig.model_validate_json(capsys.readouterr().out)
    assert (printed.seed, printed.ppo.kl_coef) == (3, 0.3)
    for wrong in (["run", "smoke", "--print-config", "--gpu=1"], ["report", "seed=3"]):
        assert main(wrong) == 2


@pytest.mark.parametrize(("command", "names"), [("run", sorted(RECIPES)), ("study", list(TITLES))])
def test_the_help_names_all_there_are(
    command: str, names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    text = re.sub(r"-\n +", "-", capsys.readouterr().out)  # a line may end within a name
    told = set(re.split(r"[,;.]?\s+", text))
    assert set(names) <= told


def test_overrides_say_what_changes_do() -> None:
    given = [
        'arms=["full"]',
        "constitution.learn.train.num_epochs=9",
        "ppo.kl_coef=0.1",
        'preferences.sources=["a b.jsonl"]',
        'evaluate.instruction="7"',
        "rehearsal.text=plain",
    ]
    assert sorted(format_overrides(parse_overrides(given))) == sorted(given)
    changes = RunChanges.model_validate(parse_overrides(given[:-1]))
    assert sorted(format_overrides(changes)) == sorted(given[:-1])
    assert format_overrides(None) == format_overrides(RunChanges()) == []
