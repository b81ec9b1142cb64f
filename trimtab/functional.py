"""Every formula of the papers, for a loop of your own: plain functions of torch tensors.

Each says its paper and equation, shapes, units, the polarity of masks, and what it raises; the
modules of `trimtab.models.functional`, which they stand in, say where code deviates from a paper.
"""

from trimtab.models.functional.advantage import (
    advantage_loss,
    advantage_scale,
    advantage_scores,
    calibrated_margin,
    expected_reward_loss,
    leave_one_out_advantages,
    mixture_weights,
    require_enough_policies,
)
from trimtab.models.functional.best_of_n import (
    best_of,
    best_of_k_values,
    best_of_n_kl,
)
from trimtab.models.functional.checks import (
    ShapeError,
)
from trimtab.models.functional.combination import (
    ensemble_scores,
    member_spread,
    panel_scores,
    safety_first,
)
from trimtab.models.functional.contrastive import (
    preference_differences,
    prototype_scores,
    simcse_loss,
    sinkhorn_assignments,
    swav_loss,
)
from trimtab.models.functional.cpl import (
    cpl_loss,
    segment_scores,
)
from trimtab.models.functional.dpo import (
    dpo_loss,
    implicit_rewards,
    kto_loss,
    mismatched_kl,
)
from trimtab.models.functional.group import (
    LossMean,
    group_advantages,
    kl_estimates,
    mean_loss,
    overlong_penalties,
    truncated_weights,
)
from trimtab.models.functional.hir import (
    hir_loss,
    satisfied_instruction,
)
from trimtab.models.functional.label_noise import (
    flip_rate_by_pair,
    label_at_rate,
    relabel_by_noise,
    right_probability,
    unbiased_label,
)
from trimtab.models.functional.masked import (
    entropy_of,
    logprobs_of,
    masked_mean,
    masked_whiten,
    weighted_mean,
)
from trimtab.models.functional.meta_rm import (
    difference_objective,
)
from trimtab.models.functional.ppo import (
    RunningMoments,
    clip_advantages,
    entropy_loss,
    gae,
    kl_loss,
    normalise_scores,
    policy_loss,
    steered_kl_coef,
    token_rewards,
    value_loss,
)
from trimtab.models.functional.reference_free import (
    log_odds,
    orpo_loss,
    simpo_loss,
)
from trimtab.models.functional.rehearsal import (
    best_of_clusters,
    cluster_risk,
    kept_per_cluster,
    nll_loss,
    risk_weights,
    top_k_per_cluster,
)
from trimtab.models.functional.relabel import (
    Relabel,
    apply_review,
    doubt_weight,
    rating_margin,
    relabel,
    relabel_soft_labels,
    strength_slice,
)
from trimtab.models.functional.rest import (
    improvement_sets,
)
from trimtab.models.functional.reward import (
    imitation_loss,
    pair_metrics,
    ranking_loss,
    ranking_losses,
    weight_per_prompt,
)
from trimtab.models.functional.strength import (
    calibrated_strength,
    fold_of,
    preference_strength,
)
from trimtab.models.functional.verdicts import (
    alignment,
    clamped_preference,
    debiased_preference,
    expected_score,
    is_understood,
    kappa_of_counts,
    log_odds_votes,
    option_probabilities,
    order_verdicts,
    preferred_labels,
)

__all__ = [
    "LossMean",
    "Relabel",
    "RunningMoments",
    "ShapeError",
    "advantage_loss",
    "advantage_scale",
    "advantage_scores",
    "alignment",
    "apply_review",
    "best_of",
    "best_of_clusters",
    "best_of_k_values",
    "best_of_n_kl",
    "calibrated_margin",
    "calibrated_strength",
    "clamped_preference",
    "clip_advantages",
    "cluster_risk",
    "cpl_loss",
    "debiased_preference",
    "difference_objective",
    "doubt_weight",
    "dpo_loss",
    "ensemble_scores",
    "entropy_loss",
    "entropy_of",
    "expected_reward_loss",
    "expected_score",
    "flip_rate_by_pair",
    "fold_of",
    "gae",
    "group_advantages",
    "hir_loss",
    "imitation_loss",
    "implicit_rewards",
    "improvement_sets",
    "is_understood",
    "kappa_of_counts",
    "kept_per_cluster",
    "kl_estimates",
    "kl_loss",
    "kto_loss",
    "label_at_rate",
    "leave_one_out_advantages",
    "log_odds",
    "log_odds_votes",
    "logprobs_of",
    "masked_mean",
    "masked_whiten",
    "mean_loss",
    "member_spread",
    "mismatched_kl",
    "mixture_weights",
    "nll_loss",
    "normalise_scores",
    "option_probabilities",
    "order_verdicts",
    "orpo_loss",
    "overlong_penalties",
    "pair_metrics",
    "panel_scores",
    "policy_loss",
    "preference_differences",
    "preference_strength",
    "preferred_labels",
    "prototype_scores",
    "ranking_loss",
    "ranking_losses",
    "rating_margin",
    "relabel",
    "relabel_by_noise",
    "relabel_soft_labels",
    "require_enough_policies",
    "right_probability",
    "risk_weights",
    "safety_first",
    "satisfied_instruction",
    "segment_scores",
    "simcse_loss",
    "simpo_loss",
    "sinkhorn_assignments",
    "steered_kl_coef",
    "strength_slice",
    "swav_loss",
    "token_rewards",
    "top_k_per_cluster",
    "truncated_weights",
    "unbiased_label",
    "value_loss",
    "weight_per_prompt",
    "weighted_mean",
]
