"""The parts that arms are made of. Whatever two of them share is made once: roles are asked for
before they are submitted, and stages are found in the store by what decides them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from flows.pipeline.data import cache_trunk, prepare, trunk_for
from flows.pipeline.labels import ask_judge, audit_labels
from flows.pipeline.policies import measure
from flows.run import Run
from models.config.policy import PPOConfig
from models.config.reward import RelabelConfig
from models.studies.variants import TREATMENTS, Variant
from tasks.stages import advantage_model, head_to_head, ppo_max, relabel, reward_model

ConfigT = TypeVar("ConfigT", bound=BaseModel)

AS_GIVEN = RelabelConfig(flip_below=None)


def varied(config: ConfigT, changes: Mapping[str, Any]) -> ConfigT:
    """A configuration with some fields changed, validated as a whole."""
    return type(config).model_validate({**dict(config), **changes})


def audited(run: Run) -> None:
    """Pairs, SFT policy, ensemble and strength."""
    if "strength" not in run.roles:
        prepare(run)
        ask_judge(run)
        cache_trunk(run)
        audit_labels(run)


def relabelled(run: Run, labels: RelabelConfig, variant: Variant) -> RelabelConfig:
    """`labels` as a variant changes them; where it smooths them, by the recipe's alpha."""
    alpha = {"smoothing": run.config.relabel.smoothing} if "smooth" in variant.changes else {}
    return varied(labels, {**variant.changes, **alpha})


def treatment(run: Run, name: str) -> RelabelConfig:
    """How Part II treats the labels of all pairs, by its name there [RM section 2.5]."""
    return relabelled(run, AS_GIVEN, TREATMENTS[name])


def scorer(run: Run, name: str, labels: RelabelConfig = AS_GIVEN, **changes: Any) -> None:
    """`scorer_<name>`: a reward model on the pairs as `labels` treats them."""
    if f"scorer_{name}" in run.roles:
        return
    audited(run)
    config = run.config.reward_model
    run[f"pairs_{name}"] = run.submit(
        relabel, labels, preferences=run["preferences"], strength=run["strength"]
    )
    run[f"scorer_{name}"] = run.submit(
        reward_model,
        run.seeded(varied(config, changes)),
        policy=run["sft"],
        preferences=run["preferences"],
        pairs=run[f"pairs_{name}"],
        trunk=trunk_for(run, config.train),
        label=f"reward model {name}",
    )


def raw_advantage_model(run: Run) -> None:
    """`advantage_raw`: the Advantage Model on the pairs as given."""
    if "advantage_raw" in run.roles:
        return
    scorer(run, "raw")
    run["advantage_raw"] = run.submit(
        advantage_model,
        run.seeded(run.config.advantage_model),
        policy=run["sft"],
        preferences=run["preferences"],
        pairs=run["pairs_raw"],
        trunk=trunk_for(run, run.config.advantage_model.train),
        label="Advantage Model, labels as given",
    )


def policy(
    run: Run,
    name: str,
    ppo: PPOConfig,
    scored_by: str | None,
    *,
    start: str = "sft",
    rehearsed: str | None = None,
) -> None:
    """`policy_<name>` from the policy `start`, `eval_<name>` and `judge_<name>` against SFT.

    Scored by nothing, its judge rates it (`ppo.scoring`), and what SFT is measured by measures it.
    """
    if f"policy_{name}" in run.roles:
        return
    if "eval_sft" not in run.roles:
        measure(run, "sft", run["sft"], run["scorer_raw"])
    run[f"policy_{name}"] = run.submit(
        ppo_max,
        run.seeded(ppo),
        policy=run[start],
        reference=run[start],
        scorer=run[scored_by] if scored_by else None,
        data=run["data"],
        rehearsal=run[rehearsed] if rehearsed else None,
        label=f"PPO {name}",
    )
    measure(run, name, run[f"policy_{name}"], run[scored_by or "scorer_raw"])
    versus(run, f"judge_{name}", name, "sft")


def versus(run: Run, role: str, ours: str, theirs: str) -> None:
    """Judge the answers of one policy against another's."""
    if role in run.roles:
        return
    run[role] = run.submit(
        head_to_head,
        run.seeded(run.config.evaluate),
        ours=run[f"eval_{ours}"],
        theirs=run[f"eval_{theirs}"],
        label=role.replace("_", " "),
    )
