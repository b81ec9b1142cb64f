"""Flow parameters that are wrong.

`malformed` makes them from the schema that a deployment publishes, wrong in one place each.
`impossible_changes` are by hand: also what only several fields together show.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from trimtab.flows.config.overrides import parse_overrides

WRONG_TYPES = {
    "integer": ["three", 1.5, [1], {"a": 1}, True],
    "number": ["much", [0.5], {"a": 1}, False],
    "string": [3, ["a"], {"a": 1}, True],
    "boolean": ["yes", 1, [True]],
    "array": ["a", 3, {"a": 1}, True],
    "object": ["a", 3, [1], True],
}
BOUNDS = {
    "minimum": lambda bound: bound - 1,
    "exclusiveMinimum": lambda bound: bound,
    "maximum": lambda bound: bound + 1,
    "exclusiveMaximum": lambda bound: bound,
    "minItems": lambda bound: [],
    "minLength": lambda bound: "",
    "maxLength": lambda bound: "a" * (bound + 1),
    "pattern": lambda bound: "../..",
}


def malformed(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Path of the wrong field, and whole parameters that are right but for it."""
    yield "$", {"no_such_parameter": 1}
    for name, field in schema["properties"].items():
        for path, value in _wrong(field, schema.get("definitions", {})):
            yield ".".join([name, *path]), {name: value}


def _wrong(field: dict[str, Any], sections: dict[str, Any]) -> Iterator[tuple[list[str], Any]]:
    choices = [_resolved(choice, sections) for choice in field.get("anyOf", [field])]
    allowed = {choice.get("type") for choice in choices}
    for kind in {choice["type"] for choice in choices if choice.get("type") in WRONG_TYPES}:
        for value in WRONG_TYPES[kind]:
            if not _is_one_of(value, allowed):
                yield [], value
    if field.get("not") == {"type": "null"}:
        yield [], None
    for choice in choices:
        if "enum" in choice:
            yield [], "no such choice"
        if len(choices) == 1:
            for bound, beyond in BOUNDS.items():
                if bound in choice:
                    yield [], beyond(choice[bound])
        if "properties" in choice:
            yield [], {"no_such_field": 1}
            for name, inner in choice["properties"].items():
                for path, value in _wrong(inner, sections):
                    yield [name, *path], {name: value}


def _resolved(choice: dict[str, Any], sections: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in choice:
        return dict(sections[choice["$ref"].rpartition("/")[2]])
    return choice


def _is_one_of(value: Any, kinds: set[Any]) -> bool:
    """As JSON Schema sees it: a boolean is no number, 1.0 is an integer."""
    names = {bool: "boolean", str: "string", list: "array", dict: "object"}
    if type(value) in names:
        return names[type(value)] in kinds
    return "number" in kinds or ("integer" in kinds and float(value).is_integer())


# Who refuses an impossible change first: Prefect's API by the schema, the flow as it starts, or, of
# infinity and NaN where null is a value, only the API.
SCHEMA, FLOW, ALONE = "schema", "flow", "alone"

# Fields of a number each, with how many are too many, or too few.
NUMBERS: dict[str, tuple[Any, ...]] = {
    "seed": (-1, 1.5, 2**32, 2**64, 2**70),
    "world.num_demonstrations": (0, 10**9, 10**15),
    "world.num_eval_prompts": (0, 10**6),
    "comparisons.num_responses": (1, 10, 2**40),
    "comparisons.temperature": (0, -1, 1e-300, 1e300),
    "preferences.validation_share": (1, -0.1, 1e300),
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
TYPES: dict[str, tuple[Any, ...]] = {
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
    ["rounds.meta_rm.vllm.cache_gib=1"],
    ["rehearsal.vllm.cache_gib=1", "rehearsal.criterion=entropy", "sft.model.hidden_size=128"],
    ['arms=["full","full"]'],
    ['arms=["ppo_max_ensemble"]'],
    ['arms=["rlaif_direct"]'],
    ['arms=["ppo_max_safety"]', "ppo.scoring.safety_categories=[]"],
    ['arms=["full","ppo_max_am"]', "ppo.kl_weights=risk"],
    ["ppo.kl_weights=risk", "ppo.prompts=held_out"],
    ['ensemble.votes=["in_sample","in_sample"]'],
    ["reward_model.fold=2", "reward_model.num_folds=2"],
    ["reward_model.contrastive.coef=1"],
    ['reward_model.categories=["a"]', 'reward_model.without_categories=["a"]'],
    ["ppo.entropy_clip=2"],
    ["relabel.keep_from=0.5", "relabel.keep_to=0.5"],
    ["sft.train.zero.stage=2", "sft.train.optimiser=adamw_8bit"],
    ["rehearsal.vllm.cache_gib=1", "rehearsal.criterion=entropy"],
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


def impossible_changes() -> Iterator[tuple[str, dict[str, Any], str]]:
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
