"""Reading how strength follows people's votes, by the ensemble's size and way of voting.

Measures of the test pairs, which no member was trained on, and of the training pairs.
"""

from __future__ import annotations

from trimtab.models.reporting.kit.artifacts import Artifacts, ReportInputError
from trimtab.models.reporting.kit.names import STRENGTH_NAMES, capitalised
from trimtab.models.reporting.run.human_votes import vote_agreement, voted_rows
from trimtab.models.reporting.run.labels import (
    LabelNoise,
    audit_baselines,
    label_noise,
    strength_roles,
)
from trimtab.models.studies.measures import SeedRun
from trimtab.models.studies.registry import exhibits_in
from trimtab.models.studies.results import Plot, Rows, SeedResult, line_at
from trimtab.models.studies.variants import FLIP_SHARES, flipped

exhibit = exhibits_in("human-votes")
MODES = {"in_sample": "in-sample", "cross_fitted": "cross-fitted"}
BOTH, LABEL, TRAINED = (
    "rank correlation, test, both orders",
    "rank correlation, test, label's order",
    "rank correlation, training pairs",
)
AUROC = "AUROC among clear pairs"
WEAKEST, STRONGEST = "votes for the label, weakest group", "votes for the label, strongest group"


@exhibit(
    arms="votes",
    claim="The strength that an ensemble finds follows how clearly people vote",
    printed="",
)
def votes(run: SeedRun) -> SeedResult:
    """Strength and the margin of people's votes, by the ensemble's size and way of voting."""
    # By way of voting, by size.
    rows = {
        mode: {
            size: _agreement(run, role, mode)
            for size, role in run.swept(f"strength_{mode}_").items()
        }
        for mode in MODES
    }
    fewest, *_, most = rows["in_sample"].values()
    weakest, strongest = most[WEAKEST], most[STRONGEST]
    checks = {
        "strength follows the votes on test pairs (correlation above .3)": most[BOTH] > 0.3,
        "ten members follow them better than one": most[BOTH] > fewest[BOTH],
        "the strongest labels have more of the votes than the weakest": strongest > weakest,
    }
    table = {
        f"{MODES[mode]}, M = {size:g}": row
        for mode, by_size in rows.items()
        for size, row in by_size.items()
    }
    plots = [
        Plot(
            capitalised(column),
            "M, members that vote",
            column,
            {
                MODES[mode]: line_at(by_size, by_size.values(), column)
                for mode, by_size in rows.items()
            },
        )
        for column in (BOTH, STRONGEST)
    ]
    return SeedResult(table, checks, plots)


def _agreement(run: SeedRun, role: str, mode: str) -> dict[str, float]:
    test, train = (voted_rows(run, role, split) for split in ("test", "train"))
    if not test or not train:
        raise ReportInputError("these pairs carry no votes: run it with the recipe ukp-smollm2")
    agreement = vote_agreement(test, 0, is_unseen=True)
    if agreement.in_both_orders is None or agreement.in_label_order is None:
        raise ReportInputError("all pairs have the same votes: nothing can be ranked")
    trained = vote_agreement(train, 0, is_unseen=mode == "cross_fitted").in_label_order
    return {
        BOTH: agreement.in_both_orders.strength.value,
        LABEL: agreement.in_label_order.strength.value,
        TRAINED: trained.strength.value if trained else 0.0,
        WEAKEST: agreement.groups[0].share_for.value,
        STRONGEST: agreement.groups[-1].share_for.value,
    }


@exhibit(
    arms="planted_flips",
    claim="Strength finds the labels that were turned round better than length and models on "
    "vectors of the answers do, and cross-fitted better than in-sample",
    printed="",
)
def planted_flips(run: SeedRun) -> SeedResult:
    """Clear labels of which a tenth to four tenths were turned round, by what finds them."""
    table: Rows = {}
    aurocs: dict[str, list[float]] = {}
    for share in FLIP_SHARES:
        for mode, noise in _label_noise(run, share).items():
            if noise.auroc_flipped_clear is None or noise.negative_recall is None:
                raise ReportInputError("no label was turned round: preferences.flip_share is 0")
            precision = noise.negative_precision  # none where nothing is below 0
            table[f"{100 * share:.0f} % turned: {STRENGTH_NAMES[mode]}"] = {
                AUROC: noise.auroc_flipped_clear.value,
                "precision of strength below 0": precision.value if precision else 0.0,
                "recall of strength below 0": noise.negative_recall.value,
            }
            aurocs.setdefault(mode, []).append(noise.auroc_flipped_clear.value)

    def is_better(mine: str, theirs: str) -> bool:
        return all(ours > other for ours, other in zip(aurocs[mine], aurocs[theirs], strict=True))

    checks = {
        f"the ensemble finds them better than {STRENGTH_NAMES[mode]}, at every share": is_better(
            "in_sample", mode
        )
        for mode in aurocs
        if mode not in MODES
    }
    words = "cross-fitted votes find them better than in-sample ones, at every share"
    checks[words] = is_better("cross_fitted", "in_sample")
    percent = [100 * share for share in FLIP_SHARES]
    lines = {STRENGTH_NAMES[mode]: (percent, values) for mode, values in aurocs.items()}
    plot = Plot(AUROC, "clear labels turned round, %", AUROC, lines)
    return SeedResult(table, checks, [plot])


def _label_noise(run: SeedRun, share: float) -> dict[str, LabelNoise]:
    """The label noise by way of voting, or baseline, at one share of planted flips."""
    prefix = flipped(share)
    roles = [role for role in run.inputs if role.startswith(prefix)]
    artifacts = Artifacts({role.removeprefix(prefix): run.inputs[role] for role in roles})
    modes = strength_roles(artifacts)
    votes = {mode: label_noise(artifacts, role, mode, 0) for mode, role in modes.items()}
    return votes | audit_baselines(artifacts, 0)
