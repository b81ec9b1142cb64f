"""Parameters that no run can have, and who refuses them before any stage.

`schema`: Prefect's API, by the schema of the deployment (409). `flow`: the flow itself, as soon as
it starts. The flow refuses all of them, as `enforce_parameter_schema: false` skips the schema; but
for infinity and NaN where null is a value, which it cannot tell from that (`alone`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
from prefect.exceptions import ParameterTypeError
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import preprocess_schema, validate

from trimtab.flows.compare import compare
from trimtab.flows.config import ConfigError
from trimtab.flows.evaluate import evaluate
from trimtab.flows.form import as_served
from trimtab.flows.overrides import apply_changes, parse_overrides
from trimtab.flows.recipes import recipe_named
from trimtab.flows.rlhf import rlhf
from trimtab.flows.rounds import rounds
from trimtab.flows.study import study

SCHEMA, FLOW, ALONE = "schema", "flow", "alone"

# Fields of a number each, with how many are too many, or too few.
NUMBERS = {
    "seed": (-1, 1.5, 2**32, 2**64, 2**70),
    "world.num_demonstrations": (0, 10**9, 10**15),
    "world.num_eval_prompts": (0, 10**6),
    "comparisons.num_responses": (1, 10, 2**40),
    "comparisons.temperature": (0, -1, 1e-300, 1e300),
    "preferences.validation_share": (0, 1, -0.1, 1e300),
    "preferences.max_tokens": (1, 2**63),
    "sft.seed": (-1, 2**32, 2**64),
    "sft.model.hidden_size": (0, 10**9),
    "sft.model.num_layers": (0, 10**6),
    "sft.train.learning_rate": (0, -1, 1e300),
    "sft.train.batch_size": (0, 10**12),
    "sft.train.num_epochs": (0, 2**70),
    "sft.train.num_ranks": (0, 10**6),
    "sft.train.lora.rank": (0, 10**12),
    "ensemble.size": (1, 10**6),
    "relabel.flip_below": (1e300, -1e300),
    "relabel.smoothing": (0.5, -1),
    "ppo.num_steps": (0, 2**70),
    "ppo.kl_coef": (-1, 1e300),
    "ppo.score_clip": (0, 1e300),
    "ppo.gae_lambda": (1.1, -0.1),
    "ppo.vllm.cache_gib": (0, 1e300),
    "rounds.max_rounds": (0, 10**6),
    "evaluate.num_resamples": (0, 10**12),
}
# No JSON number: the flow finds null, where that is not refused before.
NOT_FINITE = {
    "ppo.kl_coef": {math.inf: SCHEMA, -math.inf: SCHEMA, math.nan: FLOW},
    "ppo.score_clip": {math.inf: ALONE, math.nan: ALONE},
    "ppo.num_steps": {math.inf: SCHEMA, math.nan: SCHEMA},
    "sft.train.learning_rate": {math.inf: SCHEMA, math.nan: FLOW},
    "relabel.flip_below": {-math.inf: ALONE, math.nan: ALONE},
    "comparisons.sharpness": {math.inf: SCHEMA},
}
NULLS = (
    *("seed", "ppo", "arms", "ppo.kl_coef", "ppo.num_steps", "ppo.score_treatment", "ppo.guard"),
    *("sft.train.learning_rate", "sft.model", "ensemble.votes", "evaluate.instruction"),
    *("preferences.sources", "preferences.on_bad_rows", "rounds.meta_rm.train"),
)
TYPES = {
    "seed": ("three", [1], {"a": 1}),
    "ppo": ("a", 3, [1]),
    "ppo.kl_coef": ("much", [0.5], {}),
    "ppo.normalise_advantages": ("perhaps", 2, []),
    "arms": ("full", 3, [], ["dop"]),
    "sft.model.base": (3, [], ""),
    "preferences.on_bad_rows": ("no such choice", 1),
    "recipe": ("smoke", "../../../..", "a/b"),
    "no_such_field": (1,),
    "ppo.no_such_field": (1,),
}
# What only several fields together show; a line is what `trimtab run smoke` would be given.
TOGETHER = (
    ["sft.model.hidden_size=7", "sft.model.num_heads=2"],
    ["sft.model.hidden_size=6", "sft.model.num_heads=2"],
    ["sft.model.max_length=8"],
    ["comparisons.validation_share=0.6", "comparisons.test_share=0.6"],
    ["preferences.validation_share=0.5", "preferences.test_share=0.5"],
    ["seed=4000000", "ppo.seed=4294967295"],
    ["world.num_demonstrations=9000000"],
    ["sft.train.num_ranks=33"],
    ["ppo.num_ranks=9"],
    ["ppo.rollout_batch=4", "ppo.num_ranks=5"],
    ["ppo.trainable_layers=99"],
    ["dpo.train.trainable_layers=3"],
    ["ensemble.member.train.trainable_layers=2"],
    ["ppo.vllm.cache_gib=1"],
    ['arms=["full","full"]'],
    ['arms=["ppo_max_ensemble"]'],
    ['arms=["rlaif_direct"]'],
    ['arms=["ppo_max_safety"]', "ppo.scoring.safety_categories=[]"],
    ['ensemble.votes=["in_sample","in_sample"]'],
    ["reward_model.fold=2", "reward_model.num_folds=2"],
    ["reward_model.contrastive.coef=1"],
    ['reward_model.categories=["a"]', 'reward_model.without_categories=["a"]'],
    ["ppo.entropy_clip=2"],
    ["relabel.keep_from=0.5", "relabel.keep_to=0.5"],
    ["sft.train.zero.stage=2", "sft.train.optimiser=adamw_8bit"],
    ["rounds.meta_rm.train.zero.stage=3"],
    ["rest.improve.thresholds=[0.5,0.4]"],
    ["rest.improve.thresholds=[0.5,1]"],
    ['hir.learn.instructions=["a","a"]'],
    ["hir.answers.instruction=a"],
    ["ai_labels.soft=true"],
    ["judge_preferences.judge.rubric=harmlessness"],
    ["judge_preferences.judge.gold_accuracy=0.9", "judge_preferences.judge.local_model=a"],
    ["judge_preferences.judge.gold_accuracy=0.9", "judge_preferences.judge.num_samples=2"],
    ["judge_preferences.judge.gold_accuracy=0.9", "judge_preferences.judge.clamp=[0.6,0.4]"],
    [
        "judge_preferences.judge.endpoint.model=m",
        "judge_preferences.judge.endpoint.base_url=ftp://a",
    ],
    ["judge_preferences.judge.endpoint.model=m", "judge_preferences.judge.endpoint.max_cost=1"],
    [
        'judges=[{"name":"a","judge":{"gold_accuracy":0.9}},'
        '{"name":"a","judge":{"gold_accuracy":0.9}}]'
    ],
    ['preferences.sources=["x.jsonl"]'],
    ['preferences.demonstrations=["x.jsonl"]'],
    ['preferences.categories=["a"]'],
    ['preferences.sources=["x.jsonl","x.jsonl"]', "sft.model.base=b"],
    ['preferences.sources=[""]', "sft.model.base=b"],
    ['preferences.sources=["x.jsonl"]', "preferences.categories=[1,2]", "sft.model.base=b"],
    ['evaluate.instruction="a\\u0000b"'],
    ['sft.model.base="a\\u0000b"'],
    ['evaluate.instruction="a\\ud800b"'],
)


def _changes() -> Iterator[tuple[str, dict[str, Any], str]]:
    """What is wrong, the changes, and who refuses them first."""
    for path, values in NUMBERS.items():
        for value in values:
            yield f"{path}={value}", _at(path, value), SCHEMA
    for path, layers in NOT_FINITE.items():
        for value, layer in layers.items():
            yield f"{path}={value}", _at(path, value), layer
    for path in NULLS:
        yield f"{path}=null", _at(path, None), SCHEMA
    for path, values in TYPES.items():
        for value in values:
            yield f"{path}={value!r}", _at(path, value), SCHEMA
    for overrides in TOGETHER:
        given = parse_overrides(overrides)
        layer = SCHEMA if given.get("preferences", {}).get("categories") == [1, 2] else FLOW
        yield " ".join(overrides), given, layer


def _at(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split(".")):
        value = {name: value}
    return dict(value)


def _schema(flow: Any) -> dict[str, Any]:
    """As the API has it of a deployment, once it prepared it."""
    schema = as_served(parameter_schema(flow).model_dump_for_openapi())
    return dict(preprocess_schema(json.loads(json.dumps(schema))))


def _stored(value: Any) -> Any:
    """As Prefect's database gives it back."""
    if isinstance(value, dict):
        return {name: _stored(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _start(parameters: dict[str, Any]) -> None:
    """What the flow does before its first stage."""
    taken = rlhf.validate_parameters(parameters)
    apply_changes(recipe_named(taken["recipe"]), taken["changes"])


def test_what_no_run_can_have_is_refused_before_any_stage() -> None:
    schema, cases = _schema(rlhf), list(_changes())
    assert len(cases) > 110
    for what, changes, layer in cases:
        parameters = {"recipe": "smoke", "changes": changes}
        found = validate(parameters, schema, preprocess=False)
        assert bool(found) == (layer != FLOW), (what, [each.message for each in found])
        if layer == ALONE:
            continue
        with pytest.raises((ConfigError, ParameterTypeError)) as error:
            _start({"recipe": "smoke", "changes": _stored(changes)})
        said = str(error.value)
        assert any(word in said for word in re.findall(r"\w{3,}", what)), (what, said)
        assert len(said) < 2000, what


def test_a_form_that_nobody_touched_changes_nothing() -> None:
    """It sends the defaults that the schema has, of which there are none, in every section that was
    opened, and in the first of several."""
    sections = as_served(parameter_schema(rlhf).model_dump_for_openapi())["definitions"]
    assert '"default"' not in json.dumps(sections)

    def opened(name: str) -> dict[str, Any]:
        return {
            field: opened(described["then"]["$ref"].rpartition("/")[2])
            for field, described in sections[name]["properties"].items()
            if "then" in described
        }

    changes = opened("RunChanges")
    assert changes["ppo"]["lora"] == {} and changes["rounds"]["meta_rm"]["train"]["zero"] == {}
    parameters = {"recipe": "smoke", "changes": changes}
    assert validate(parameters, _schema(rlhf), preprocess=False) == []
    taken = rlhf.validate_parameters(parameters)
    assert apply_changes(recipe_named("smoke"), taken["changes"]) == recipe_named("smoke")


def test_a_setting_may_be_given_by_its_path_as_the_form_does() -> None:
    changes = {
        "ppo.kl_coef": 0.2,
        "seed": 3,
        "ppo": {"num_steps": 6},
        "preferences.max_pairs": None,
    }
    parameters = {"recipe": "smoke", "changes": changes}
    assert validate(parameters, _schema(rlhf), preprocess=False) == []
    taken = rlhf.validate_parameters(parameters)
    given = parse_overrides(["ppo.kl_coef=0.2", "seed=3", "ppo.num_steps=6"])
    assert apply_changes(recipe_named("smoke"), taken["changes"]) == apply_changes(
        recipe_named("smoke"), given
    )
    for twice in ({"kl_coef": 0.3}, 3):
        with pytest.raises((ConfigError, ParameterTypeError), match=r"ppo"):
            _start({"recipe": "smoke", "changes": {"ppo.kl_coef": 0.2, "ppo": twice}})
    for wrong in (
        {"ppo.kl_coef": -1},
        {"ppo.kl_coef": None},
        {"ppo.gamma": 1},
        {"sft.model.base": 3},
    ):
        parameters = {"recipe": "smoke", "changes": wrong}
        assert validate(parameters, _schema(rlhf), preprocess=False), wrong
        with pytest.raises((ConfigError, ParameterTypeError), match=next(iter(wrong))):
            _start(parameters)


@pytest.mark.parametrize(
    "flow", [rlhf, rounds, evaluate, study, compare], ids=lambda each: each.name
)
def test_every_number_has_two_bounds(flow: Any) -> None:
    schema = parameter_schema(flow).model_dump_for_openapi()
    unbound = [path for path, number in _numbers(schema) if not _is_bound(number)]
    assert unbound == []


def _numbers(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema of a number, wherever it stands; not what is refused by `not`."""
    if isinstance(schema, dict):
        if schema.get("type") in ("integer", "number") and "enum" not in schema:
            yield path, schema
        for name, inner in schema.items():
            if name not in ("not", "default"):
                yield from _numbers(inner, f"{path}.{name}")
    elif isinstance(schema, list):
        for index, inner in enumerate(schema):
            yield from _numbers(inner, f"{path}.{index}")


def _is_bound(number: dict[str, Any]) -> bool:
    return bool({"minimum", "exclusiveMinimum"} & set(number)) and bool(
        {"maximum", "exclusiveMaximum"} & set(number)
    )
