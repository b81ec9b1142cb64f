"""What exhibits compare: variants with a name in roles, a label in tables, and changed fields.

Flows submit them and readers look for them. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trimtab.models.config.policy import DPOLoss
from trimtab.models.reporting.kit.names import DPO_NAMES


@dataclass(frozen=True)
class Variant:
    """The label in tables and plots, and what differs from the exhibit's base configuration."""

    label: str
    changes: Mapping[str, Any] = field(default_factory=dict)


# [PPO] Changes of vanilla PPO's PPOConfig.
def _clipped(score: float) -> dict[str, Any]:
    return {"score_treatment": "normalised", "score_clip": score}


def _advantages(clip: float | None) -> dict[str, Any]:
    return {"normalise_advantages": True, "advantage_clip": clip}


SCORES = {
    "vanilla": Variant("raw scores"),
    "scaled": Variant("rewards scaled", {"score_treatment": "scaled"}),
    "normalised": Variant("rewards normalised", {"score_treatment": "normalised"}),
    "normalised_clip_80": Variant("the same, clipped at .8", _clipped(0.8)),
    "normalised_clip_30": Variant("the same, clipped at .3", _clipped(0.3)),
    "advantage_clip_50": Variant("advantages normalised, clipped at .5", _advantages(0.5)),
    "advantage_clip_12": Variant("the same, clipped at .12", _advantages(0.12)),
}
VANILLA = {"vanilla": SCORES["vanilla"]}
CONSTRAINTS = {
    "vanilla": Variant("no constraint"),
    "kl_05": Variant("KL penalty .05", {"kl_coef": 0.05}),
    "kl_10": Variant("KL penalty .1", {"kl_coef": 0.1}),
    "kl_20": Variant("KL penalty .2", {"kl_coef": 0.2}),
    "importance": Variant("ratio to the reference", {"ratio_denominator": "reference"}),
    "importance_kl_05": Variant(
        "the same, KL penalty .05", {"ratio_denominator": "reference", "kl_coef": 0.05}
    ),
    "entropy": Variant("entropy bonus", {"entropy_coef": 0.01}),
}
# [PPO appendix B.1] Rewards normalised and clipped; beside them advantages normalised, and clipped
# at two values or not.
JOINT_CLIPS = {
    f"clips_{score:g}_{advantage or 'none'}": Variant(
        f"reward clip {score:g}, "
        + (f"advantage clip {advantage:g}" if advantage else "no advantage clip"),
        {**_clipped(score), **_advantages(advantage)},
    )
    for score in (0.8, 0.3)
    for advantage in (None, 0.5, 0.12)
}
# [PPO 4.4, figure 3] Pairs that a reward model is trained on in one pass; none: all there are.
EARLY = {
    "pairs_200": Variant("200 pairs", {"max_pairs": 200}),
    "pairs_400": Variant("400 pairs", {"max_pairs": 400}),
    "pairs_800": Variant("800 pairs", {"max_pairs": 800}),
    "raw": Variant("all pairs"),
}
# [PPO 6.4] Weights of the pre-training loss, each at these KL coefficients.
PTX = {
    f"ptx_{coef:g}": Variant(f"weight {coef:g}" if coef else "without", {"ptx_coef": coef})
    for coef in (0.0, 0.1, 1.0)
}
PTX_KL_COEFS = (0.0, 0.05, 0.2)
# [PPO] Changes of PPO-max's PPOConfig; the last starts from a policy without SFT.
STARTS = {
    "ppo_max_rm": Variant("critic: reward model, pre-trained"),
    "critic_scorer": Variant("critic: reward model", {"critic_pretrain_steps": 0}),
    "critic_policy": Variant(
        "critic: SFT, random head", {"critic_init": "policy", "critic_pretrain_steps": 0}
    ),
    "without_sft": Variant("policy: without SFT"),
}
# [RM section 2.5] Changes of RelabelConfig from labels as given; where labels are smoothed, by the
# recipe's alpha. The range and the scale of the margin are not in the paper.
_MARGIN = {"margin_scale": 0.3, "margin_clip": 1.0}
TREATMENTS = {
    "baseline": Variant("baseline"),
    "flip": Variant("flip", {"flip_below": 0.0}),
    "margin": Variant("margin", _MARGIN),
    "flip_margin": Variant("flip + margin", {"flip_below": 0.0, **_MARGIN}),
    "soft_margin": Variant("soft label + margin", {"smooth": "negative", **_MARGIN}),
}
MARGINS = {name: TREATMENTS[name] for name in ("baseline", "margin")}


def _tenth(number: int) -> dict[str, float]:
    """The pairs of a tenth by strength, weakest first."""
    return {"keep_from": (number - 1) / 10, "keep_to": number / 10}


TENTHS = {f"tenth_{number}": Variant(f"tenth {number}", _tenth(number)) for number in range(1, 11)}
# Flipped: as large a share of all pairs as the tenths so far, so that all of this one are.
WEAKEST_TENTHS = {
    f"tenth_{number}{suffix}": Variant(f"tenth {number}, {words}", {**_tenth(number), **changes})
    for number in (1, 2)
    for suffix, words, changes in (
        ("", "as given", {}),
        ("_flipped", "flipped", {"flip_fraction": number / 10}),
    )
}
STRONGEST_TENTH = {
    "tenth_10": Variant("as given", _tenth(10)),
    "tenth_10_margin": Variant("margin", {**_tenth(10), **_MARGIN}),
    "tenth_10_soft": Variant("soft labels", {**_tenth(10), "smooth": "all"}),
    "tenth_10_soft_margin": Variant(
        "soft labels + margin", {**_tenth(10), "smooth": "all", **_MARGIN}
    ),
}
# [RM section 3.2] How each round trains the reward model before PPO: changes of MetaRMConfig;
# without changes, not at all. The length of the ascent is not in the paper.
_ASCENT = {"ascent_length": 0.25}
ROUND_ARMS = {
    "plain": Variant("reward model as it is"),
    "eta_0": Variant("eta 0", {"ascent_length": None, "meta_learning_rate": 0.0}),
    "meta": Variant("MetaRM", _ASCENT),
    "meta_kept": Variant("MetaRM, theta' kept", {**_ASCENT, "keep_ascent": True}),
}
# The published update against its sign turned round, and J as a term of the loss.
META_UPDATES = {
    "eta_0": ROUND_ARMS["eta_0"],
    "ascend": ROUND_ARMS["meta"],
    "descend": Variant("the sign turned", {**_ASCENT, "update": "descend"}),
    "term": Variant("J a term, weight 1", {"update": "term"}),
    "term_01": Variant("J a term, weight .1", {"update": "term", "objective_coef": 0.1}),
}
# Nats, an answer: lines that share less are too short to be compared.
LEAST_SHARED_KL = 0.1


def dynamic_kl(number: int) -> dict[str, float]:
    """[RM figure 17] Changes of PPOConfig in a round, from 1.

    The paper has no target. Here it rises by as much as lines must share to be compared: a fixed
    coefficient comes further in the first rounds, so that the controller has to hold the policy.
    """
    return {"kl_target": round(number * LEAST_SHARED_KL, 6), "kl_horizon": 100}


DROPOUT = 0.05  # [RM] Of contrastive reward models.
# [RM] The fields of ContrastiveConfig, with the constants of the paper.
_SWAV = {"kind": "swav", "temperature": 0.1}
CONTRASTIVE = {
    "simcse_pairs": Variant("SimCSE, pairs", {"on": "pairs"}),
    "simcse_differences": Variant("SimCSE, differences", {"on": "differences"}),
    "swav_pairs": Variant(
        "SwAV, pairs", {**_SWAV, "on": "pairs", "coef": 0.1, "num_prototypes": 50}
    ),
    "swav_differences": Variant(
        "SwAV, differences", {**_SWAV, "on": "differences", "coef": 0.5, "num_prototypes": 20}
    ),
}
WITH_DROPOUT = {"dropout": Variant("dropout alone")} | CONTRASTIVE
# Reward models of one dropout: none, and SimCSE on pairs with beta from .01 to the paper's 1.
SIMCSE_STRENGTHS = {
    "dropout": WITH_DROPOUT["dropout"],
    **{
        f"simcse_{name}": Variant(f"SimCSE, beta {coef:g}", {"on": "pairs", "coef": coef})
        for name, coef in (("001", 0.01), ("01", 0.1), ("1", 1.0))
    },
}
# Changes of labels as given, where annotators compare the responses to a prompt in up to six pairs:
# all of four responses but near-ties. One pair a prompt is what they are asked for otherwise.
RATED_PROMPTS = {"num_prompts": 600, "pairs_per_prompt": 6}
RATED = {
    "given": Variant("pairs as given"),
    "smoothed": Variant("pairs as given, smoothed", {"smooth": "all"}),
    "rated": Variant("labels of the responses' ratings", {"response_ratings": True}),
    "flipped": Variant("flip by strength", {"flip_below": 0.0}),
    "flipped_rated": Variant(
        "flip by strength, then ratings", {"flip_below": 0.0, "response_ratings": True}
    ),
}
# How often a few pairs are passed, until a reward model is overconfident: epochs.
FEW_PAIRS = 1000
EPOCHS = (1, 2, 4, 8)
# KL coefficients at which policies are compared, so that they can be read at equal KL.
KL_COEFS = (0.0, 0.02, 0.05, 0.1, 0.2)
REHEARSAL_KL_COEFS = (0.0, 0.05, 0.2)
# Changes of RehearsalConfig: the paper rehearses answers to PPO's own prompts.
REHEARSALS = {
    "without": Variant("without rehearsal"),
    "policy": Variant("rehearsal, PPO's prompts", {"prompts": "policy"}),
    "demonstrations": Variant("rehearsal, SFT's prompts", {"prompts": "demonstrations"}),
    "random": Variant("SFT's prompts, drawn at random", {"prompts": "demonstrations"}),
}
# [AM footnote 3] Bounds of the Advantage Model, and the epochs on few pairs.
BOUNDS = {
    "constant": Variant("Advantage Model, m constant"),
    "by_strength": Variant(
        "Advantage Model, m(x) by strength", {"margin_by": "strength", "margin": 7.0}
    ),
}
MARGIN_EPOCHS = (1, 4)
# About as many pairs to train on as FEW_PAIRS, of the recipe's prompts.
MOST_HELD_OUT = {"comparisons": {"validation_share": 0.2, "test_share": 0.62}}
# [AM eq. 8] Changes of the Advantage Model, and the roles of who is taken to have written the pairs
# of SFT and a policy of PPO: to pi_phi itself all ratios are 1. No sum of two weights reaches N.
_WEIGHED = {"use_importance_weights": True, "num_policies": 16.0}
_WRITERS = ("sft", "policy_first")
IMPORTANCE_WEIGHTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "unweighed": (_WEIGHED, ("policy_first", "policy_first")),
    "weighed": (_WEIGHED, _WRITERS),
    "printed": (_WEIGHED | {"importance_baseline": "itself"}, _WRITERS),
}
# [AM 4.1] The tasks of the paper share skills: PPO's prompts with those of the expert families.
SHARED_FAMILIES = {"world": {"num_policy_experts": 480}}
SHARED_REHEARSALS = {
    f"shared_{name}": Variant(
        f"families shared: {REHEARSALS[name].label}", REHEARSALS[name].changes
    )
    for name in ("without", "policy")
}
# Changes of PPOConfig, each at these KL coefficients; at 0 there is no KL to weigh.
RISKS = {
    "nothing": Variant("none of them", {"rehearsal_coef": 0.0}),
    "uniform": Variant("uniform rehearsal"),
    "risk": Variant("rehearsal by risk", {"rehearsal_weights": "risk"}),
    "kl_risk": Variant(
        "KL weights by risk, no rehearsal", {"rehearsal_coef": 0.0, "kl_weights": "risk"}
    ),
    "ptx": Variant("pre-training loss", {"rehearsal_coef": 0.0, "ptx_coef": 0.1}),
}
# Where PPO's prompts share the forget set's families, which their KL weights can then keep.
SHARED_RISKS = {
    f"shared_{name}": Variant(f"families shared: {RISKS[name].label}", RISKS[name].changes)
    for name in ("nothing", "kl_risk")
}
RISK_KL_COEFS = (0.02, 0.05, 0.2)
# [AM 3.2] Other criteria by which examples of a cluster are kept; scores, at SFT's prompts.
CRITERIA = {
    "demonstrations": Variant("highest score", {"criterion": "score"}),
    "entropy": Variant("least entropy", {"criterion": "entropy"}),
    "length": Variant("fewest tokens", {"criterion": "length"}),
    "random": Variant("drawn at random", {"criterion": "random"}),
}
# [DPO figure 2] Temperatures at which answers are sampled.
TEMPERATURES = (0.25, 0.5, 0.75, 1.0)
# Treatments of labels of which harder pairs are wrong more often; by the recipe's alpha.
DENOISED_AT_KL = {
    "given": Variant("as given"),
    "flipped": Variant("flip", {"flip_below": 0.0}),
    "flipped_smoothed": Variant("flip, all smoothed", {"flip_below": 0.0, "smooth": "all"}),
    "posterior": Variant("posterior labels", {"noise": "posterior"}),
}
# Changes of labels as given by how often they are wrong, of which the calibrated cross-fitted vote
# tells; beside them the recipe's treatment, by the recipe's vote and by that one, and gold's.
_FLIPPED_AND_SMOOTHED = {"flip_below": 0.0, "smooth": "all"}
NOISE_TREATMENTS = {
    "given": Variant("labels as given"),
    "smoothed": Variant("all smoothed", {"smooth": "all"}),
    "recipe": Variant("flip, all smoothed, by the recipe's vote", _FLIPPED_AND_SMOOTHED),
    "flipped": Variant("flip, all smoothed, by the same vote", _FLIPPED_AND_SMOOTHED),
    "posterior": Variant("posterior labels", {"noise": "posterior"}),
    "unbiased": Variant("unbiased, one rate", {"noise": "unbiased"}),
    "unbiased_low": Variant(
        "unbiased, the rate's lower end", {"noise": "unbiased", "flip_rate_at": "low"}
    ),
    "unbiased_high": Variant(
        "unbiased, the rate's upper end", {"noise": "unbiased", "flip_rate_at": "high"}
    ),
    "unbiased_given": Variant("unbiased, the world's rate", {"noise": "unbiased"}),
    "unbiased_by_pair": Variant(
        "unbiased, rates by pair, of the world's mean", {"noise": "unbiased_by_pair"}
    ),
    "right": Variant("right labels", {"flip_below": 0.0}),
}
# At the share of the clear labels that the world turns round, which no estimate finds where it goes
# by difficulty.
AT_GIVEN_RATE = ("unbiased_given", "unbiased_by_pair")


@dataclass(frozen=True)
class Constant:
    """A setting of a run that is swept: what it is, and its values beside the recipe's own.

    setting: its dotted path. trains: what is compared. changes: what else differs from the recipe.
    in_world, printed: as of an `Exhibit`.
    """

    words: str
    values: tuple[float, ...]
    setting: str
    trains: Literal[
        "reward model", "reward model, labels as given", "Advantage Model", "MetaRM", "policy"
    ] = "policy"
    changes: Mapping[str, Any] = field(default_factory=dict)
    in_world: bool = False
    printed: str = "not published"


_CURVES = "curves, no numbers"
# By the exhibit's name: constants that no paper publishes, and those of PPO's appendices.
CONSTANTS = {
    "smoothing": Constant(
        "alpha of label smoothing, on the recipe's treatment of labels",
        (0.0, 0.05, 0.1, 0.2, 0.3, 0.4),
        "relabel.smoothing",
        "reward model",
    ),
    "margin-clip": Constant(
        "The largest adaptive margin, at a margin of the strength itself",
        (0.25, 0.5, 1.0, 2.0),
        "relabel.margin_clip",
        "reward model",
        {"relabel": {"margin_scale": 1.0}},
    ),
    "temperature": Constant(
        "tau of SimCSE on pairs",
        (0.02, 0.05, 0.1, 0.5),
        "reward_model.contrastive.temperature",
        "reward model, labels as given",
        {
            "reward_model": {
                "train": {"dropout": DROPOUT},
                "contrastive": {"kind": "simcse", "on": "pairs"},
            }
        },
    ),
    # Of two policies' pairs, as ratios to SFT alone are 1; two weights add up to little above 4.
    "num-policies": Constant(
        "N of the Advantage Model's equation 8",
        (6.0, 8.0, 16.0, 32.0),
        "advantage_model.num_policies",
        "Advantage Model",
        {"advantage_model": {"use_importance_weights": True}},
        in_world=True,
    ),
    "num-clusters": Constant(
        "c, the clusters of selective rehearsal, as many examples in all",
        (5, 10, 20, 40),
        "rehearsal.num_clusters",
    ),
    "per-cluster": Constant(
        "k, the examples kept of each cluster", (4, 8, 16, 32), "rehearsal.per_cluster"
    ),
    "meta-step": Constant(
        "The length of MetaRM's ascent, in steps of AdamW",
        (0.025, 0.1, 0.25, 0.5, 1.0, 4.0),
        "rounds.meta_rm.ascent_length",
        "MetaRM",
    ),
    "entropy-coef": Constant(
        "The coefficient of the entropy bonus (Part I, appendix B.3)",
        (0.0, 0.001, 0.01, 0.1),
        "ppo.entropy_coef",
        printed=_CURVES,
    ),
    "policy-clip": Constant(
        "The clip of the probability ratio (Part I, appendix C.1)",
        (0.05, 0.1, 0.2, 0.4, 0.8),
        "ppo.policy_clip",
        printed=_CURVES,
    ),
    "gradient-clip": Constant(
        "The largest norm of a gradient (Part I, appendix C.2)",
        (0.1, 0.3, 1.0, 10.0),
        "ppo.max_grad_norm",
        printed=_CURVES,
    ),
    "gae-lambda": Constant(
        "lambda of GAE, from one step's difference to the whole return (Part I, appendix C.3)",
        (0.0, 0.5, 0.9, 0.95, 1.0),
        "ppo.gae_lambda",
        printed=_CURVES,
    ),
}
# [DPO figure 2] What decides how far a method moves from SFT, by its arm.
_KL_COEFFICIENT = Constant(
    "KL coefficient", (0.05, 0.1, 0.2, 0.5), "ppo.kl_coef", changes={"ppo": {"kl_target": None}}
)
STRENGTHS = {
    "full": _KL_COEFFICIENT,
    "ppo_max_am": _KL_COEFFICIENT,
    "rloo": _KL_COEFFICIENT,
    "grpo": _KL_COEFFICIENT,
    "reinforce_pp": _KL_COEFFICIENT,
    "rejection_sampling": Constant("K", (2, 4, 8, 16), "rejection_sampling.answers.num_responses"),
    "rest": Constant("last threshold", (0.5, 0.7, 0.9, 0.95), "rest.improve.thresholds"),
    "dpo": Constant("beta", (0.03, 0.1, 0.3, 1.0), "dpo.beta"),
    "cpl": Constant("alpha", (0.03, 0.1, 0.3, 1.0), "cpl.alpha"),
    "best_of_n": Constant("n", (2, 4, 8, 16), "best_of_n.num_responses"),
}
# [RLAIF] How often judges are right, one of them as often as the world's annotators.
JUDGES_RIGHT, AS_GOOD = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0), 0.8
# Shares of the clear training labels that are turned round, and roles that belong to one.
FLIP_SHARES = (0.1, 0.25, 0.4)


def flipped(share: float) -> str:
    """The prefix of the roles of a share."""
    return f"flips_{100 * share:.0f}_"


# Losses of DPO on labels of which such shares are turned round: changes of DPOConfig. Those of
# TAKE_THE_RATE are told the share as label_smoothing, and are DPO where it is 0. tau of IPO asks
# for a nat a token (free).
NOISE_SHARES = (0.0, *FLIP_SHARES)
NOISE_LOSSES = {
    "dpo": Variant("DPO", {"loss": "sigmoid", "label_smoothing": 0.0}),
    "cdpo": Variant("cDPO", {"loss": "sigmoid"}),
    "rdpo": Variant("rDPO", {"loss": "robust"}),
    "ipo": Variant("IPO", {"loss": "ipo", "label_smoothing": 0.0, "beta": 0.5}),
}
TAKE_THE_RATE = ("cdpo", "rdpo")
# Changes of labels as given; flips alone, as what noise is left is the loss's to deal with.
NOISE_LABELS = {
    "given": Variant("labels as given"),
    "relabelled": Variant("relabelled", {"flip_below": 0.0}),
}
# Losses of the arm dpo, and what decides how far each moves from SFT: the values of `dpo.beta`,
# about those of its paper.
LOSS_BETAS: dict[DPOLoss, tuple[float, ...]] = {
    "sigmoid": (0.03, 0.1, 0.3, 1.0),
    "hinge": (0.03, 0.1, 0.3, 1.0),
    "ipo": (0.1, 0.3, 1.0, 3.0),
    "kto": (0.03, 0.1, 0.3, 1.0),
    "simpo": (0.5, 1.0, 2.5, 5.0),
    "orpo": (0.1, 0.3, 1.0, 3.0),
}
DPO_LOSSES = {loss: Variant(DPO_NAMES[loss], {"loss": loss}) for loss in LOSS_BETAS}
