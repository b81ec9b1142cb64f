"""Studies beyond the tables and figures of the papers. Imports no torch."""

from __future__ import annotations

from models.studies.exhibit import Exhibit

PEOPLE = (
    Exhibit(
        "people",
        "votes",
        "Strength and the margin of people's votes, by the ensemble's size and way of voting",
        "The strength that an ensemble finds follows how clearly people vote",
        printed="",
    ),
    Exhibit(
        "people",
        "planted-flips",
        "Strength of clear labels of which a quarter was turned round",
        "Strength finds the labels that were turned round, cross-fitted better than in-sample",
        printed="",
    ),
)
RLAIF = (
    Exhibit(
        "rlaif",
        "alignment",
        "Wins against SFT by the judge's alignment, distilled and direct",
        "The better a judge agrees with the truth, the better the policy, and one that is right "
        "four times in five beats SFT",
        "no such curve; distilled, 71 % wins against SFT on summaries and 63 % in helpful dialogue",
    ),
)
OPTIMISERS = (
    Exhibit(
        "optimisers",
        "frontier",
        "Gold score over SFT's by KL to SFT, each method at several strengths",
        "At equal KL DPO gains more than every other method",
        "[DPO] figure 2, on sentiment: DPO has the highest reward at every KL; no numbers printed",
    ),
)
_SWEPT = {
    "smoothing": "alpha of label smoothing, on the recipe's treatment of labels",
    "margin-clip": "The largest adaptive margin, at a margin of the strength itself",
    "temperature": "tau of SimCSE on pairs",
    "num-policies": "N of the Advantage Model's equation 8",
    "num-clusters": "c, the clusters of selective rehearsal, as many examples in all",
    "per-cluster": "k, the examples kept of each cluster",
    "meta-step": "eta, the step of MetaRM's ascent",
}
CONSTANTS = tuple(
    Exhibit(
        "constants",
        name,
        shows,
        "The recipe's value is as good as any, on validation data",
        "not published",
    )
    for name, shows in _SWEPT.items()
)
