"""The arms: what each policy starts from and is optimised against, beside what all runs have.

| arm                | start        | optimised against                                      |
|--------------------|--------------|--------------------------------------------------------|
| `vanilla`          | SFT          | the first member, trained on raw labels; no trick      |
| `ppo_max_rm`       | SFT          | the reward model of relabelled pairs                   |
| `ppo_max_am`       | SFT          | the Advantage Model                                    |
| `full`             | SFT          | the Advantage Model, with rehearsal                    |
| `ppo_max_ensemble` | SFT          | the ensemble's members that do not judge, as one       |
| `ppo_max_safety`   | SFT          | a reward model of helpfulness and one of safety        |
| `ppo_max_no_sft`   | the base     | the Advantage Model                                    |
| `rlaif_direct`     | SFT          | the ratings of `ppo.scoring.judge` [RLAIF]             |

Of these `full` alone rehearses; what PPO-max is compared with does where `rehearsal_coef` says so.
"""

from __future__ import annotations

from flows.config import Arm, RunConfig, seeded, vanilla
from flows.run import Future, Run
from models.config.policy import PolicyConfig, PPOConfig
from tasks.reward_model import reward_model
from tasks.sft import sft


def start_of(run: Run, arm: Arm) -> Future:
    """The policy that an arm starts from, and is held near."""
    if arm != "ppo_max_no_sft":
        return run["sft"]
    if "base" not in run.roles:
        untrained = run.config.sft.model_copy(update={"fine_tune": False})
        run["base"] = run.submit(
            sft, seeded(untrained, run.config.seed), run["data"], label="base model"
        )
    return run["base"]


def ppo_of(run: Run, arm: Arm) -> PPOConfig:
    """How an arm of PPO trains. Where a judge scores, there is no scorer to start the critic as."""
    ppo = run.config.ppo
    if arm == "vanilla":
        return vanilla(ppo)
    return ppo.model_copy(update={"critic_init": "policy"}) if arm == "rlaif_direct" else ppo


def scorer_of(run: Run, arm: Arm) -> Future | list[Future]:
    """What an arm is optimised against: a scorer, or an ensemble of them.

    Of one that needs none, what its answers are measured by.
    """
    if arm == "ppo_max_ensemble":
        return run.optimised_members
    roles: dict[Arm, str] = {
        "vanilla": "member_0",
        "ppo_max_rm": "reward_model",
        "ppo_max_safety": "helpfulness_model",
    }
    return run[roles.get(arm, "advantage_model")]


def rehearses(config: RunConfig, arm: Arm) -> bool:
    """Whether an arm, or one that it goes on from, learns again what SFT said best."""
    sampled = config.rejection_sampling.fine_tune
    own: dict[Arm, PolicyConfig] = {
        "dpo": config.dpo,
        "cpl": config.cpl,
        "rejection_sampling": sampled,
        "rejection_sampling_ppo": sampled,
        "rest": config.rest.improve,
        "hir": config.hir.learn,
    }
    return arm == "full" or (arm in own and own[arm].rehearsal_coef > 0)


def train_safety_scorers(run: Run, states: Future | None) -> None:
    """Llama 2's two reward models: of safety, on pairs of its categories, and of helpfulness."""
    if "ppo_max_safety" not in run.config.arms:
        return
    of_safety = run.config.ppo.scoring.safety_categories
    for index, (role, field) in enumerate(
        (("helpfulness_model", "without_categories"), ("safety_model", "categories"))
    ):
        config = run.config.reward_model.model_copy(update={field: of_safety})
        run[role] = run.submit(
            reward_model,
            seeded(config, run.config.seed),
            run["sft"],
            run["preferences"],
            run["relabelled"],
            states,
            label=role.replace("_", " "),
            place=(index, 2),
        )
