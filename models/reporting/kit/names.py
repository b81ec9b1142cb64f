"""Names for people: of policies, prompt sets and measures. Flows use it too."""

from __future__ import annotations

from trimtab.models.config.arms import ARMS
from trimtab.models.config.policy import DPOLoss

MEASURE_NAMES = {"gold": "the gold scorer", "judge_score": "held-out reward models"}
SCORE_LABELS = {"gold": "mean gold score (0 to 1)", "judge_score": "mean held-out score"}
ONLY_BY_RULE = (
    "It did not win on the validation prompts; it is the champion only because this recipe "
    "promotes every round (rounds.promote=always)."
)
SETS = {
    "main": "the main test prompts",
    "forget": "the forget set (what SFT was expert at)",
    "held_out": "the held-out task family",
    "helpful": "our requests for help",
    "harmless": "our requests for harm",
    "validation": "the validation prompts",
}
POLICY_NAMES = {"sft": "SFT (start)", **{name: arm.label for name, arm in ARMS.items()}}
# Of the arm `dpo`, by its loss.
DPO_NAMES: dict[DPOLoss, str] = {
    "sigmoid": POLICY_NAMES["dpo"],
    "robust": "rDPO",
    "hinge": "DPO with hinge loss",
    "ipo": "IPO",
    "kto": "KTO",
    "simpo": "SimPO",
    "orpo": "ORPO",
}
# Roles of preference models on vectors of the answers, what an ensemble should be better than.
EMBEDDING_MODELS = ("states_linear", "embedding_linear", "embedding_nearest", "style", "ratings")
# What gives a label its strength: the ensemble's ways of voting, then what stands beside it.
STRENGTH_NAMES = {
    "in_sample": "in-sample vote",
    "cross_fitted": "cross-fitted vote",
    "calibrated": "vote of embedding models",
    "states_linear": "linear on hidden states",
    "embedding_linear": "linear on sentence embeddings",
    "embedding_nearest": "nearest sentence embeddings",
    "style": "how an answer is written",
    "ratings": "the same answers in other pairs",
    "length": "difference in words",
}
# Changed answers that scorers are probed with.
PROBE_NAMES = {
    "empty": "no answer",
    "repeated": "the answer twice",
    "polite": "the answer with thanks behind it",
    "other_prompt": "the answer to another prompt",
}


def capitalised(text: str) -> str:
    """A text whose first letter is a capital."""
    return text[:1].upper() + text[1:]


def policy_name(name: str, dpo_loss: DPOLoss = "sigmoid") -> str:
    """A policy's name for people. dpo_loss: `dpo.loss` of the run."""
    if name == "dpo":
        return DPO_NAMES[dpo_loss]
    if name.startswith("round_"):
        return f"MetaRM round {name.removeprefix('round_')}"
    return POLICY_NAMES.get(name, name)
