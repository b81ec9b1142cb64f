"""The frontier: what a policy's answers are worth for how far it has gone from SFT [DPO fig. 2]."""

from __future__ import annotations

from trimtab.models.reporting.kit.artifacts import Artifacts
from trimtab.models.reporting.kit.charts import GREY, Chart, Panel, policy_style
from trimtab.models.reporting.kit.names import MEASURE_NAMES, SETS, policy_name
from trimtab.models.reporting.run.scorecard import Scorecard

PLACE = "main"


def frontier_chart(artifacts: Artifacts, card: Scorecard) -> Chart | None:
    """Every policy by its KL to SFT, and the best of 1 ... n answers of SFT as a line.

    None where fewer than two policies answered the main prompts.
    """
    shown = [policy for policy in card.policies if PLACE in policy.sets]
    if len(shown) < 2:
        return None
    measure = "gold" if card.has_gold else "judge_score"
    values = {}
    with Panel(height=4.6) as panel:
        best = artifacts.document("eval_best_of_n", "best_of_k.json").get(PLACE, {})
        if measure in best:
            panel.axes.plot(best["kl_bound"], best[measure], color=GREY, label="best of 1 … n")
        for policy in shown:
            colour, _, marker = policy_style(policy.name)
            answers = policy.sets[PLACE]
            value = getattr(answers, measure)
            values[policy.name] = (answers.kl.value, value.value)
            panel.axes.errorbar(
                *values[policy.name],
                yerr=[[value.value - value.low], [value.high - value.value]],
                color=colour, marker=marker, markersize=5, linewidth=0.8, linestyle="none",
                label=policy_name(policy.name),
            )  # fmt: skip
        panel.figure.legend(loc="outside lower center", ncols=2, fontsize=7.5)
        top = max(values, key=lambda name: values[name][1])
        kl, value_of_top = values[top]
        note = (
            "Higher and further to the left is better; bars are 95 % intervals. The KL of a best "
            "of k is at most log k − (k − 1) / k beyond that of what is sampled."
        )
        return panel.chart(
            f"{SETS[PLACE][0].upper()}{SETS[PLACE][1:]}, by {MEASURE_NAMES[measure]}: highest is "
            f"{policy_name(top)} with {value_of_top:.2f}, {kl:.2f} nats from SFT.",
            note,
            "KL to SFT (nats per answer)",
            "mean gold score (0 to 1)" if measure == "gold" else "mean held-out score",
        )
