"""The work of any stage by its name; every stage of the flow is here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from models.estimates.constitution import constitutional_sft, revise
from models.estimates.judging import judge_answers, judge_preferences
from models.estimates.policies import cpl, dpo, hir, rejection_sampling, rest, sample_responses
from models.estimates.rollouts import comparisons, evaluate, ppo_max, rehearsal
from models.estimates.supervised import advantage_model, meta_rm, reward_model, sft, trunk_cache
from models.estimates.work import Setting, Work

_MODEL_STAGES: dict[str, Callable[[Any, Setting], Work]] = {
    "sft": sft,
    "revise": revise,
    "constitutional_sft": constitutional_sft,
    "comparisons": comparisons,
    "trunk_cache": trunk_cache,
    "reward_model": reward_model,
    "advantage_model": advantage_model,
    "rehearsal": rehearsal,
    "ppo_max": ppo_max,
    "dpo": dpo,
    "cpl": cpl,
    "sample_responses": sample_responses,
    "rejection_sampling": rejection_sampling,
    "rest": rest,
    "hir": hir,
    "meta_rm": meta_rm,
    "evaluate": evaluate,
    "judge_preferences": judge_preferences,
    "judge_answers": judge_answers,
}
# Stages without a model, and which count of Amounts they take in.
_PLAIN_STAGES = {
    "world": "demonstrations",
    "preferences": "pairs",
    "strength": "pairs",
    "ai_labels": "train_pairs",
    "relabel": "train_pairs",
    "audit": "pairs",
    "head_to_head": "eval_prompts",
    "win_matrix": "eval_prompts",
}


def work_of(stage: str, config: Any, setting: Setting) -> Work:
    """The work of a stage under its configuration."""
    if stage in _PLAIN_STAGES:
        return Work(examples=getattr(setting.amounts, _PLAIN_STAGES[stage]))
    return _MODEL_STAGES[stage](config, setting)
