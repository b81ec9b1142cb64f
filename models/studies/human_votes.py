"""Reading how strength follows people's votes, by the ensemble's size and way of voting.

Measures of the test pairs, which no member was trained on, and of the training pairs.
"""

from __future__ import annotations

from trimtab.models.reporting.kit.artifacts import Artifacts, ReportInputError
from trimtab.models.reporting.kit.names import STRENGTH_NAMES
from trimtab.models.reporting.run.human_votes import vote_agreement, voted_rows
from trimtab.models.reporting.run.labels import (
    LabelNoise,
    audit_baselines,
    label_noise,
    strength_roles,
)
from trimtab.models.studies.registry import exhibit
from trimtab.models.studies.results import Plot, SeedResult
from trimtab.models.studies.variants import FLIP_SHARES, flipped

MODES = {"in_sample": "in-sample", "cross_fitted": "cross-fitted"}
BOTH, LABEL, TRAINED = (
    "rank correlation, test, both orders",
    "rank correlation, test, label's order",
    "rank correlation, training pairs",
)
AUROC = "AUROC among clear pairs"
WEAKEST, STRONGEST = "votes for the label, weakest group", "votes for the label, strongest group"


@exhibit(
    "human-votes",
    arms="votes",
    claim="The strength that an ensemble finds follows how clearly people vote",
    printed="",
)
def votes(artifacts: Artifacts) -> SeedResult:
    """Strength and the margin of people's votes, by the ensemble's size and way of voting.

    Rank correlation of strength with the votes' margin, and agreement by strength.
    """
    table = {
        f"{MODES[mode]}, M = {size}": _agreement(artifacts, f"strength_{mode}_{size}", mode)
        for mode, size in _ensembles(artifacts)
    }
    rows = [table[name] for name in table if name.startswith("in-sample")]
    return SeedResult(
        table,
        checks={
            "strength follows the votes on test pairs (correlation above .3)": rows[-1][BOTH] > 0.3,
            "ten members follow them better than one": rows[-1][BOTH] > rows[0][BOTH],
            "the strongest labels have more of the votes than the weakest": rows[-1][STRONGEST]
            > rows[-1][WEAKEST],
        },
        plots=[_plot_by_size(artifacts, table, BOTH), _plot_by_size(artifacts, table, STRONGEST)],
    )


def _agreement(artifacts: Artifacts, role: str, mode: str) -> dict[str, float]:
    test, train = (voted_rows(artifacts, role, split) for split in ("test", "train"))
    if not test or not train:
        raise ReportInputError("these pairs carry no votes: run it with the recipe ukp-smollm2")
    found = vote_agreement(test, 0, is_unseen=True)
    if found.in_both_orders is None or found.in_label_order is None:
        raise ReportInputError("all pairs have the same votes: nothing can be ranked")
    trained = vote_agreement(train, 0, is_unseen=mode == "cross_fitted").in_label_order
    return {
        BOTH: found.in_both_orders.strength.value,
        LABEL: found.in_label_order.strength.value,
        TRAINED: trained.strength.value if trained else 0.0,
        WEAKEST: found.groups[0].share_for.value,
        STRONGEST: found.groups[-1].share_for.value,
    }


@exhibit(
    "human-votes",
    arms="planted_flips",
    claim="Strength finds the labels that were turned round better than length and models on "
    "vectors of the answers do, and cross-fitted better than in-sample",
    printed="",
)
def planted_flips(artifacts: Artifacts) -> SeedResult:
    """Clear labels of which a tenth to four tenths were turned round, by what finds them.

    How well strength, embedding models and length find clear labels that were turned round.
    """
    table: dict[str, dict[str, float]] = {}
    curves: dict[str, list[float]] = {}
    for share in FLIP_SHARES:
        for mode, noise in _noise_of(artifacts, share).items():
            if noise.auroc_flipped_clear is None or noise.negative_recall is None:
                raise ReportInputError("no label was turned round: preferences.flip_share is 0")
            found = noise.auroc_flipped_clear.value
            precision = noise.negative_precision  # none where nothing is below 0
            table[f"{100 * share:.0f} % turned: {STRENGTH_NAMES[mode]}"] = {
                AUROC: found,
                "precision of strength below 0": precision.value if precision else 0.0,
                "recall of strength below 0": noise.negative_recall.value,
            }
            curves.setdefault(mode, []).append(found)
    others = [mode for mode in curves if mode not in MODES]
    checks = {
        f"the ensemble finds them better than {STRENGTH_NAMES[mode]}, at every share": _is_above(
            curves["in_sample"], curves[mode]
        )
        for mode in others
    } | {
        "cross-fitted votes find them better than in-sample ones, at every share": _is_above(
            curves["cross_fitted"], curves["in_sample"]
        )
    }
    percent = [100 * share for share in FLIP_SHARES]
    plot = Plot(
        AUROC,
        "clear labels turned round, %",
        AUROC,
        {STRENGTH_NAMES[mode]: (percent, found) for mode, found in curves.items()},
    )
    return SeedResult(table, checks=checks, plots=[plot])


def _is_above(mine: list[float], theirs: list[float]) -> bool:
    return all(one > other for one, other in zip(mine, theirs, strict=True))


def _noise_of(artifacts: Artifacts, share: float) -> dict[str, LabelNoise]:
    """By way of voting, or baseline, for one share."""
    prefix = flipped(share)
    own = Artifacts(
        {
            role.removeprefix(prefix): path
            for role, path in artifacts.inputs.items()
            if role.startswith(prefix)
        }
    )
    votes = {mode: label_noise(own, role, mode, 0) for mode, role in strength_roles(own).items()}
    return votes | audit_baselines(own, 0)


def _ensembles(artifacts: Artifacts) -> list[tuple[str, int]]:
    """Ways of voting and sizes, in that order."""
    return [
        (mode, size)
        for mode in MODES
        for size in range(1, len(artifacts.members) + 1)
        if artifacts.has(f"strength_{mode}_{size}")
    ]


def _plot_by_size(artifacts: Artifacts, table: dict[str, dict[str, float]], column: str) -> Plot:
    found = _ensembles(artifacts)
    return Plot(
        f"{column[0].upper()}{column[1:]}",
        "M, members that vote",
        column,
        {
            name: (
                [float(size) for each, size in found if each == mode],
                [table[f"{name}, M = {size}"][column] for each, size in found if each == mode],
            )
            for mode, name in MODES.items()
        },
    )
