"""Reading the Advantage Model paper's table 2 and figures 5 and 6: what policies keep and gain."""

from __future__ import annotations

from models.reporting.kit.artifacts import Artifacts
from models.studies.constants import swept
from models.studies.policies import (
    LOSE,
    NET,
    TIE,
    WIN,
    answers,
    curve_of,
    curve_plots,
    outcome,
    outcome_plot,
)
from models.studies.reading import Plot, Reading

ARMS = {
    "raw_scores_rm": "reward model",
    "reward_model": "reward model, scores normalised",
    "advantage_model": "Advantage Model",
    "full": "Advantage Model + rehearsal",
}


def figure_5(artifacts: Artifacts) -> Reading:
    """PPO by step, by what scores it."""
    curves = {words: curve_of(artifacts, name) for name, words in ARMS.items()}
    table = {}
    for name, words in ARMS.items():
        gold = curves[words].gold
        tenth = max(1, len(gold) // 10)
        means = [sum(gold[i : i + tenth]) / tenth for i in range(0, len(gold) - tenth + 1, tenth)]
        fall = {"gold, best less last": max(means) - means[-1]} if means else {}
        table[words] = answers(artifacts, name) | fall | outcome(artifacts, f"judge_{name}")
    am, rm = table["Advantage Model"], table["reward model"]
    return Reading(
        table,
        checks={
            "on the Advantage Model it wins more often against SFT": am[NET] > rm[NET],
            "normalised scores of the reward model do not mend that": am[NET]
            > table["reward model, scores normalised"][NET],
        },
        plots=curve_plots(curves, ("score", "gold", "kl")),
    )


def table_2(artifacts: Artifacts) -> Reading:
    """Against SFT on the main and the forget set."""
    places = {"main": "main", "forget": "forget"}
    found = {
        place: {words: outcome(artifacts, f"judge_{name}", place) for name, words in ARMS.items()}
        for place in places
    }
    table = {
        words: {
            f"{place}, {key}": found[place][words][key]
            for place in places
            for key in (WIN, LOSE, TIE, NET)
        }
        for words in ARMS.values()
    }
    rows = [table[words] for words in list(ARMS.values())[1:]]
    return Reading(
        table,
        checks={
            "the Advantage Model wins more on the main set": rows[1]["main, net"]
            > rows[0]["main, net"],
            "it loses less of the forget set": rows[1]["forget, lose"] < rows[0]["forget, lose"],
            "rehearsal loses least of the forget set": rows[2]["forget, lose"]
            <= min(row["forget, lose"] for row in rows),
        },
        plots=[outcome_plot(f"The {place} set", rows_, "SFT") for place, rows_ in found.items()],
    )


def figure_6(artifacts: Artifacts) -> Reading:
    """The number of clusters of selective rehearsal."""
    values = swept(artifacts, "policy_num_clusters_")
    names = {count: role.removeprefix("policy_") for count, role in values.items()}
    table = {
        f"{count:g} clusters": {
            **answers(artifacts, name),
            **{f"main, {k}": v for k, v in outcome(artifacts, f"judge_{name}").items()},
            "forget, net": outcome(artifacts, f"judge_{name}", "forget")[NET],
        }
        for count, name in names.items()
    }
    golds = [row.get("gold", row["main, net"]) for row in table.values()]
    return Reading(
        table,
        checks={"results lie within .05 of each other": max(golds) - min(golds) < 0.05},
        plots=[
            Plot(
                "The number of clusters",
                "clusters",
                "wins minus losses against SFT",
                {
                    f"{place} set": (list(names), [row[f"{place}, net"] for row in table.values()])
                    for place in ("main", "forget")
                },
            )
        ],
    )
