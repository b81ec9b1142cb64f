"""The flow `evaluate`: two registered policies on held-out prompts; nothing is trained."""

from __future__ import annotations

from typing import Annotated, Any

from prefect.artifacts import create_table_artifact
from pydantic import Field

from trimtab.flows.config.config import ConfigError, load_config
from trimtab.flows.config.names import GivenName, name_run
from trimtab.flows.pipeline.policies import judge, main_scorer, measure, outcomes_by_judge
from trimtab.flows.pipeline.run import Future, Run, roles_of_round
from trimtab.flows.runs.flow import flow
from trimtab.flows.runs.lifecycle import tracked_flow
from trimtab.tasks.registry import Registered, model_name, registered

SFT = "sft"
AnswerSeed = Annotated[int, Field(ge=0, le=1_000_000)]


@flow(name="evaluate")
def evaluate(
    recipe: GivenName = "default",
    policy: GivenName = "candidate",
    against: GivenName = SFT,
    seed: AnswerSeed = 0,
) -> dict[str, Any]:
    """Wins, ties and losses of one registered policy against another, with intervals.

    Both answer the evaluation prompts of the run that made `policy`. That run's held-out
    reward models score the answers. Returns the key numbers; the flow run's page shows the table.

    Args:
        recipe: The recipe or registered model whose policies to compare
        policy: An alias (candidate, champion) or a version number
        against: An alias, a version number, or `sft` for the policy both started from
        seed: Seed of sampling the answers
    """
    if policy == against:
        raise ConfigError(f"policy and against are both {policy!r}: nothing to compare")
    ours = _registered(recipe, policy)
    config = load_config(ours.config)
    name = name_run(config, "evaluate")
    run = Run(config, dict(ours.artifacts), name.name)
    theirs = (run["sft"], main_scorer(run))
    if against != SFT:
        theirs = _contender(_registered(recipe, against))
    contenders = {policy: _contender(ours), against: theirs}
    with tracked_flow(config, name) as tracked:
        for contender, (weights, scorer) in contenders.items():
            measure(run, contender, weights, scorer, offset=seed)
        judge(run, "verdict", f"eval_{policy}", f"eval_{against}", label="judge", offset=seed)
        numbers = run.result("verdict").summary
        tracked.log(metrics={name: float(value) for name, value in numbers.items()})
        create_table_artifact(
            key="trimtab-evaluation",
            table=outcomes_by_judge(numbers),
            description=f"{model_name(recipe)}: {policy} against {against}",
        )
    return numbers


def _registered(recipe: str, version: str) -> Registered:
    policy = registered(recipe, version)
    if policy is None:
        raise ConfigError(f"{model_name(recipe)} has no version {version!r}, by number or by alias")
    return policy


def _contender(policy: Registered) -> tuple[Future, Future]:
    """A registered policy and the scorer that it was optimised against."""
    role = roles_of_round(policy.round, policy.config["rounds"].get("meta_rm_from", 2))
    scorer = policy.artifacts.get("reward") or policy.artifacts[role.scorer]
    return policy.artifacts[role.policy], scorer
