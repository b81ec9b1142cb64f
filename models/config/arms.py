"""The arms, one row each: a policy that a run can train, and how pages name and draw it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trimtab.models.config.policy import PPOConfig

Style = tuple[str, str, str]


@dataclass(frozen=True)
class ArmSpec:
    """How a policy is trained, named and drawn.

    label: its name for people. style: colour, line style and marker in every plot; green and red
    are left out, as they say better and worse.
    trained_by: PPO; pairs or samples, by the stage and the settings that are called as the arm; or
    nothing, as its answers are SFT's best of n.
    start: "sft"; "base", the model before SFT; or the arm whose policy it starts from. The policy
    is held near SFT, or near the base model where it starts from that.
    scorer: the role of the scorer that it is optimised against, or whose scores it learns from;
    "members": those of the ensemble that do not judge, as one; "first_round": the Advantage Model
    or the MetaRM of round 1; None: a judge's ratings.
    safety_scorer: the role of a second scorer, for `ppo.scoring.safety_categories`.
    is_about_scorer: whether it is there to show that scorer, so that no reward from outside
    (`reward`) takes its place.
    ppo: the run's PPO settings -> those of the arm.
    has_objective: whether its `objective` is the section of the run that is called as the arm.
    rehearses: whether it uses rehearsal always; others do if their `rehearsal_coef` is above 0.
    compared: whether `compare` trains it by default.
    """

    label: str
    style: Style
    trained_by: Literal["ppo", "pairs", "samples", "nothing"] = "ppo"
    start: str = "sft"
    scorer: str | None = "advantage_model"
    safety_scorer: str | None = None
    is_about_scorer: bool = False
    ppo: Callable[[PPOConfig], PPOConfig] = lambda ppo: ppo
    has_objective: bool = False
    rehearses: bool = False
    compared: bool = True


def vanilla(ppo: PPOConfig) -> PPOConfig:
    """PPO with every trick but the ratio clip switched off: the baseline that over-optimises.

    As its critic is not trained before, learning rates rise over a tenth of the steps [PPO 5.1].
    """
    return ppo.model_copy(
        update={
            "score_treatment": "raw",
            "score_clip": None,
            "normalise_advantages": False,
            "advantage_clip": None,
            "kl_coef": 0.0,
            "kl_target": None,
            "ratio_denominator": "sampling",
            "entropy_coef": 0.0,
            "entropy_clip": None,
            "value_clip": None,
            "critic_pretrain_steps": 0,
            "warmup_fraction": 0.1,
            "ptx_coef": 0.0,
            "rehearsal_coef": 0.0,
            "kl_weights": "uniform",
            "rehearsal_weights": "uniform",
            "guard": ppo.guard.model_copy(update={"action": "warn"}),
        }
    )


def _critic_free(ppo: PPOConfig) -> PPOConfig:
    """PPO-max for an objective without a critic: as many steps, all of them the policy's.

    Scores are not clipped, as a group would not tell its best responses apart, nor its worst; and
    advantages are what the baseline makes of them.
    """
    return ppo.model_copy(
        update={
            "num_steps": ppo.critic_pretrain_steps + ppo.num_steps,
            "critic_pretrain_steps": 0,
            "critic_init": "policy",
            "score_clip": None,
            "normalise_advantages": False,
            "advantage_clip": None,
        }
    )


def _critic_free_normalised(ppo: PPOConfig) -> PPOConfig:
    return _critic_free(ppo).model_copy(
        update={"normalise_advantages": True, "normalise_over": "rollout"}
    )


def critic_from_policy(ppo: PPOConfig) -> PPOConfig:
    """For a scorer that no critic can start from."""
    return ppo.model_copy(update={"critic_init": "policy"})


ARMS: dict[str, ArmSpec] = {
    # The first member is trained on raw labels.
    "vanilla": ArmSpec("Vanilla PPO", ("#CC79A7", ":", "v"), scorer="member_0", ppo=vanilla),
    "ppo_max_rm": ArmSpec(
        "PPO-max, reward model",
        ("#E69F00", "--", "s"),
        scorer="reward_model",
        is_about_scorer=True,
    ),
    "ppo_max_am": ArmSpec("PPO-max, Advantage Model", ("#56B4E9", "-.", "^"), is_about_scorer=True),
    "ppo_max_external": ArmSpec(
        "PPO-max, reward from outside", ("#E69F00", "-", "8"), scorer="reward", compared=False
    ),
    "full": ArmSpec(
        "Full method (round 1)", ("#0072B2", "-", "o"), scorer="first_round", rehearses=True
    ),
    "rloo": ArmSpec("RLOO", ("#17BECF", "-", "v"), ppo=_critic_free, has_objective=True),
    "grpo": ArmSpec("GRPO", ("#7F3C8D", "-", "s"), ppo=_critic_free, has_objective=True),
    "reinforce_pp": ArmSpec(
        "REINFORCE++", ("#DDAA33", ":", "^"), ppo=_critic_free_normalised, has_objective=True
    ),
    "ppo_max_ensemble": ArmSpec(
        "PPO-max, ensemble",
        ("#CC6677", "--", ">"),
        scorer="members",
        is_about_scorer=True,
        compared=False,
    ),
    "ppo_max_safety": ArmSpec(
        "PPO-max, helpfulness and safety",
        ("#B8860B", "-.", "<"),
        scorer="helpfulness_model",
        safety_scorer="safety_model",
        is_about_scorer=True,
        compared=False,
    ),
    "ppo_max_no_sft": ArmSpec(
        "PPO-max without SFT", ("#666666", ":", "p"), start="base", compared=False
    ),
    "dpo": ArmSpec("DPO", ("#AA4499", "--", "D"), "pairs"),
    "cpl": ArmSpec("CPL", ("#44AA99", "-.", "P"), "pairs"),
    "best_of_n": ArmSpec("Best of n answers of SFT", ("#666666", "-", "h"), "nothing"),
    "rejection_sampling": ArmSpec("Rejection sampling", ("#8C564B", "-", "X"), "samples"),
    # As in Llama 2.
    "rejection_sampling_ppo": ArmSpec(
        "Rejection sampling, then PPO-max", ("#8C564B", "--", "d"), start="rejection_sampling"
    ),
    "rest": ArmSpec("ReST", ("#661100", ":", "H"), "samples"),
    "hir": ArmSpec("HIR", ("#6699CC", ":", "8"), "samples"),
    # A judge's ratings are the scores [RLAIF].
    "rlaif_direct": ArmSpec(
        "Direct RLAIF",
        ("#332288", "-", "p"),
        scorer=None,
        is_about_scorer=True,
        ppo=critic_from_policy,
        compared=False,
    ),
}

if TYPE_CHECKING:
    Arm = str
else:
    Arm = Literal[tuple(ARMS)]
