"""Exhibits of the losses that a policy can learn from pairs by: at equal KL, and on wrong labels.

[DPO] arXiv 2305.18290, [cDPO] Mitchell 2023, [rDPO] arXiv 2403.00409, [IPO] arXiv 2310.12036, [KTO]
arXiv 2402.01306, [SimPO] arXiv 2405.14734, [ORPO] arXiv 2403.07691. Formulas:
`trimtab.models.functional.dpo` and `reference_free`.
"""

from __future__ import annotations

from statistics import fmean

from trimtab.models.reporting.kit.artifacts import is_clear
from trimtab.models.studies.frontier import (
    START,
    frontier_plot,
    gain_of,
    gained,
    gains_most,
    is_more_at_equal_kl,
)
from trimtab.models.studies.measures import KL, SeedRun
from trimtab.models.studies.registry import exhibits_in
from trimtab.models.studies.results import Effect, Line, Plot, Rows, SeedResult, line_of
from trimtab.models.studies.variants import (
    DPO_LOSSES,
    FLIP_SHARES,
    NOISE_LABELS,
    NOISE_LOSSES,
    NOISE_SHARES,
    TAKE_THE_RATE,
    flipped,
)

exhibit = exhibits_in("methods")
WRONG = "clear training labels that are wrong"
# Of gold, from 0 to 1: the smallest difference that a part of the claim means.
LEAST_GAIN = 0.02
# Shares of which something is claimed.
CLAIMED = FLIP_SHARES[1:]


@exhibit(
    arms="dpo_losses",
    claim="At equal KL the losses that came after DPO gain more than it",
    printed="[SimPO] table 4: SimPO is ahead of DPO, IPO, KTO and ORPO, each at its best setting; "
    "not by KL",
    remark=gains_most,
)
def dpo_losses(run: SeedRun) -> SeedResult:
    """Gold score over SFT's by KL to SFT, each loss of DPO at several beta."""
    table: Rows = {}
    lines: dict[str, Line] = {START: ([0.0], [0.0])}
    for loss, variant in DPO_LOSSES.items():
        swept = run.swept(f"eval_{loss}_").items()
        rows = {
            f"{variant.label}, beta {value:g}": gained(run, role.removeprefix("eval_"))
            for value, role in swept
        }
        table |= rows
        lines[variant.label] = line_of(rows.values(), KL, gain_of(run))
    dpo = lines[DPO_LOSSES["sigmoid"].label]
    checks = {
        f"{variant.label} gains more than DPO at equal KL": is_more_at_equal_kl(
            lines[variant.label], dpo
        )
        for loss, variant in DPO_LOSSES.items()
        if loss != "sigmoid"
    }
    return SeedResult(table, checks, [frontier_plot(run, lines)])


@exhibit(
    arms="dpo_noise",
    in_world=True,
    claim="Where labels are wrong cDPO, rDPO and IPO lose less than DPO, and relabelling saves "
    "more than a loss that is told how many are wrong",
    printed="[rDPO] abstract: robust to noise where DPO and practitioners' remedies are not; no "
    "relabelling",
)
def dpo_noise(run: SeedRun) -> SeedResult:
    """DPO, cDPO, rDPO and IPO on labels of which shares are turned round, as given and relabelled.

    Clear labels are turned round whatever the pair, and cDPO and rDPO are told the share, which no
    user knows; after relabelling fewer are wrong than they are told. Relabelled labels are flipped
    by the recipe's vote where it is below 0, and not smoothed. Each loss has one beta, so that
    losses also differ in how far they go: KL is in the table.
    """
    gain = gain_of(run)
    table: Rows = {}
    gains: dict[tuple[str, str], list[float]] = {}
    for share in NOISE_SHARES:
        share_run = _roles_of_share(run, share)
        for labels, treatment in NOISE_LABELS.items():
            wrong = {WRONG: _share_wrong(share_run, labels)}
            for loss, variant in NOISE_LOSSES.items():
                is_dpo = share == 0 and loss in TAKE_THE_RATE
                row = gained(share_run, f"{'dpo' if is_dpo else loss}_{labels}")
                gains.setdefault((loss, labels), []).append(row[gain])
                if not is_dpo:
                    words = f"{variant.label}, {treatment.label}, {100 * share:.0f} % turned round"
                    table[words] = row | wrong
    percent = [100 * share for share in NOISE_SHARES]
    plot = Plot(
        "What is gained by the share of wrong labels",
        "clear labels turned round, %",
        f"mean {gain} (0 to 1), main test prompts",
        {
            f"{NOISE_LOSSES[loss].label}, {NOISE_LABELS[labels].label}": (percent, values)
            for (loss, labels), values in gains.items()
        },
    )
    effects = _effects(gains)
    checks = {words: effect.measured > 0 for words, effect in effects.items()}
    return SeedResult(table, checks, [plot], effects)


def _roles_of_share(run: SeedRun, share: float) -> SeedRun:
    """The roles of one share of wrong labels, and the answers of SFT, which all shares have."""
    prefix = flipped(share)
    roles = {
        role.removeprefix(prefix): path
        for role, path in run.inputs.items()
        if role.startswith(prefix)
    }
    return SeedRun({**roles, "eval_sft": run.inputs["eval_sft"]})


def _share_wrong(run: SeedRun, labels: str) -> float:
    """The share of the clear training labels that are wrong once they are treated."""
    rows = run.rows(f"pairs_{labels}", "train.jsonl")
    return fmean(
        run.truth[row["id"]]["is_wrong"] != row["is_flipped"]
        for row in rows
        if is_clear(run.truth[row["id"]])
    )


def _effects(gains: dict[tuple[str, str], list[float]]) -> dict[str, Effect]:
    """What the claim is about, by share; gains: of each loss and labels, in the shares' order."""
    effects: dict[str, Effect] = {}
    for share in CLAIMED:
        place = NOISE_SHARES.index(share)
        at = {which: values[place] for which, values in gains.items()}
        dpo, relabelled = at["dpo", "given"], at["dpo", "relabelled"]
        lost = {loss: gains[loss, "given"][0] - at[loss, "given"] for loss in ("dpo", "ipo")}
        differences = {
            "cDPO gains more than DPO on labels as given": at["cdpo", "given"] - dpo,
            "rDPO gains more than DPO on labels as given": at["rdpo", "given"] - dpo,
            "IPO loses less of its gain than DPO, labels as given": lost["dpo"] - lost["ipo"],
            "DPO gains more on relabelled labels than on those given": relabelled - dpo,
            "and more than rDPO on those given": relabelled - at["rdpo", "given"],
        }
        effects |= {
            f"{100 * share:.0f} % turned round: {words}": Effect(difference, LEAST_GAIN)
            for words, difference in differences.items()
        }
    return effects
