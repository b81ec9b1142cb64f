"""The whole experiment on one page: which stages a run of each flow is made of.

A run of a flow hands them to Prefect (`experiment_flow`), a plan only notes them down. Each flow is
a module of its own, because Prefect makes a flow's form when its module is imported, and a process
that runs one flow has no use for the forms of the others.
"""

from __future__ import annotations

from trimtab.flows.config.config import seeded
from trimtab.flows.pipeline.data import cache_trunk, prepare, read_pairs
from trimtab.flows.pipeline.labels import (
    add_embedding_models,
    ask_judge,
    audit_labels,
    compare_votes,
)
from trimtab.flows.pipeline.policies import judge_policies, train_policies
from trimtab.flows.pipeline.rewards import bring_rewards, train_scorers
from trimtab.flows.pipeline.rounds import first_champion, improve_in_rounds
from trimtab.flows.pipeline.run import Run
from trimtab.models import specs
from trimtab.models.config.reporting import WinMatrixConfig


def rlhf(run: Run) -> int | None:
    """All stages but the report; returns the champion's round, `None` without one."""
    _policies(run)
    judge_policies(run)
    return improve_in_rounds(run)


def policy(run: Run) -> int | None:
    """All stages before the MetaRM rounds; returns 1 if the arm `full` is promoted."""
    _policies(run)
    judge_policies(run)
    compare_votes(run)
    return first_champion(run)


def compare(*runs: Run) -> None:
    """Train and judge the policies of all runs, which differ only in their seed.

    The last run keeps the role `win_matrix`, so that its result is waited for last.
    """
    for run in runs:
        _policies(run)
    first, last = runs[0].config, runs[-1]
    arms = ["sft", *first.arms]
    evaluations = {f"{run.config.seed}.{arm}": run[f"eval_{arm}"] for run in runs for arm in arms}
    for judge in first.judges:
        last[f"judged_{judge.name}"] = last.submit_to_judge(
            specs.JUDGE_ANSWERS,
            seeded(judge, first.seed),
            evaluations=evaluations,
            label=f"judge {judge.name}",
        )
    last["win_matrix"] = last.submit(
        specs.WIN_MATRIX,
        seeded(
            WinMatrixConfig(
                tie_margin=first.evaluate.tie_margin, num_resamples=first.evaluate.num_resamples
            ),
            first.seed,
        ),
        evaluations=evaluations,
        verdicts=[last[f"judged_{judge.name}"] for judge in first.judges],
    )


def _policies(run: Run) -> None:
    """The policies of all arms, and all that they are trained on."""
    _prepare(run)
    train_scorers(run)
    train_policies(run)


def reward(run: Run) -> None:
    """Everything before the first policy."""
    _prepare(run)
    train_scorers(run)
    compare_votes(run)


def label_audit(run: Run) -> None:
    """The stages of the label audit; a vote of embedding models needs no policy."""
    if run.config.needs_policy:
        prepare(run)
        _vote_on_labels(run)
        compare_votes(run)
    else:
        read_pairs(run)
        add_embedding_models(run)
        audit_labels(run)


def _prepare(run: Run) -> None:
    """Preference pairs, the SFT policy, rewards from outside, and the labels where they count."""
    prepare(run)
    bring_rewards(run)
    if run.config.needs_votes:
        _vote_on_labels(run)


def _vote_on_labels(run: Run) -> None:
    """The ensemble's vote on the labels, relabelled pairs."""
    ask_judge(run)
    cache_trunk(run)
    add_embedding_models(run)
    audit_labels(run)
