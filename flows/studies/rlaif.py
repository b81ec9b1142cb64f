"""The arms of RLAIF: judges that are right more and less often, distilled and direct."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.flows.pipeline.run import Run
from trimtab.flows.studies.registry import arms
from trimtab.flows.studies.steps import (
    AS_GIVEN,
    add_comparison,
    add_policy,
    add_scorer,
    add_strength,
    changed,
    ppo_without_rehearsal,
    with_changes,
)
from trimtab.models.config.judge import AILabelsConfig, JudgeConfig, JudgePreferencesConfig
from trimtab.models.specs import AI_LABELS, JUDGE_PREFERENCES, REWARD_MODEL
from trimtab.models.studies.variants import AS_GOOD, JUDGES_RIGHT


@arms("rlaif", "alignment")
def alignment(run: Run) -> None:
    """Policies of every judge, and of people's labels; people's labels judge them all."""
    _policies(run, JUDGES_RIGHT)


@arms("rlaif", "feedback")
def feedback(run: Run) -> None:
    """People's labels, as given and smoothed as a judge's are, and a judge as often right as they
    are; policies against each other."""
    _policies(run, (AS_GOOD,))
    add_scorer(run, "smoothed", with_changes(AS_GIVEN, {"smooth": "all", "smoothing": 1 - AS_GOOD}))
    add_policy(run, "people_smoothed", ppo_without_rehearsal(run), "scorer_smoothed")
    ours = {"distilled": f"distilled_{AS_GOOD:g}", "direct": f"direct_{AS_GOOD:g}"}
    for name, policy in ours.items():
        add_comparison(run, f"{name}_versus_people", policy, "people_smoothed")
    add_comparison(run, "direct_versus_distilled", ours["direct"], ours["distilled"])


def _policies(run: Run, accuracies: Sequence[float]) -> None:
    run = changed(run, {"judge_preferences": None, "ai_labels": None})
    add_strength(run)
    add_scorer(run, "raw")
    ppo = ppo_without_rehearsal(run)
    add_policy(run, "people", ppo, "scorer_raw")
    for accuracy in accuracies:
        judge = JudgeConfig(gold_accuracy=accuracy)
        _distilled(run, f"{accuracy:g}", judge)
        add_policy(run, f"distilled_{accuracy:g}", ppo, f"scorer_{accuracy:g}")
        rated = with_changes(ppo, {"scoring": {"judge": judge}, "critic_init": "policy"})
        add_policy(run, f"direct_{accuracy:g}", rated, None)


def _distilled(run: Run, name: str, judge: JudgeConfig) -> None:
    """`scorer_<name>`: a reward model on the judge's soft labels, as they are."""
    run[f"judged_{name}"] = run.submit(
        JUDGE_PREFERENCES,
        run.seeded(JudgePreferencesConfig(judge=judge)),
        preferences=run["preferences"],
        label=f"judge, right in {name}",
    )
    run[f"labelled_{name}"] = run.submit(
        AI_LABELS,
        AILabelsConfig(),
        preferences=run["preferences"],
        judgements=run[f"judged_{name}"],
        label=f"AI labels, right in {name}",
    )
    run[f"scorer_{name}"] = run.submit(
        REWARD_MODEL,
        run.seeded(run.config.reward_model),
        policy=run["sft"],
        preferences=run[f"labelled_{name}"],
        label=f"reward model, right in {name}",
    )
