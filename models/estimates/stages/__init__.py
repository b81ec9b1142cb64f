"""The work of any stage by its name; every stage of the flow is here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from trimtab.models.config.training import precision_of, with_precision
from trimtab.models.estimates.shapes import PlanError
from trimtab.models.estimates.stages import sampling, training
from trimtab.models.estimates.work import StageInputs, Work
from trimtab.models.specs import SPECS

# Of each stage with a model the function of its name.
_MODEL_STAGES: dict[str, Callable[[Any, StageInputs], Work]] = {
    name: function
    for module in (sampling, training)
    for name, function in vars(module).items()
    if name in SPECS
}
# Stages without a model, and which count of Amounts they take in.
_PLAIN_STAGES = {
    "world": "demonstrations",
    "preferences": "pairs",
    "embedding_model": "pairs",
    "external_votes": "pairs",
    "strength": "pairs",
    "ai_labels": "train_pairs",
    "relabel": "train_pairs",
    "audit": "pairs",
    "head_to_head": "eval_prompts",
    "win_matrix": "eval_prompts",
}


def work_of(stage: str, config: Any, inputs: StageInputs) -> Work:
    """The work of a stage under its configuration; none of one without a model that is not here.

    Raises PlanError for a stage that takes a GPU and is not here.
    """
    if stage in _PLAIN_STAGES:
        return Work(examples=getattr(inputs.amounts, _PLAIN_STAGES[stage]))
    if stage in _MODEL_STAGES:
        if precision_of(config) == "auto":
            config = with_precision(config, "bfloat16" if inputs.has_gpus else "float32")
        is_narrow = inputs.has_gpus and precision_of(config) != "float32"
        return _MODEL_STAGES[stage](config, replace(inputs, is_narrow=is_narrow))
    if SPECS[stage].device == "gpu":
        raise PlanError(f"stage {stage} takes a GPU: say what it costs in models/estimates/stages")
    return Work(examples=0)
