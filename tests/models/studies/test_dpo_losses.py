"""Exhibits of the losses of DPO, on answers written down by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.models.studies.conftest import Run, pair, truth
from trimtab.models.studies.dpo_losses import CLAIMED, LEAST_GAIN, WRONG, dpo_losses, dpo_noise
from trimtab.models.studies.results import combine_seeds
from trimtab.models.studies.variants import (
    DPO_LOSSES,
    LOSS_BETAS,
    NOISE_LABELS,
    NOISE_LOSSES,
    NOISE_SHARES,
    TAKE_THE_RATE,
    flipped,
)

Files = dict[str, Any]
SFT, GAIN = 0.5, "gold over SFT"


def _answered(gain: float, kl: float = 1.0) -> Files:
    return {
        "responses.jsonl": [
            {"set": "main", "gold": SFT + gain + apart, "kl": kl, "length": 6}
            for apart in (-0.25, 0.25)
        ]
    }


def _swept(**gains: float) -> dict[str, Files]:
    """Each loss at its beta, at 1 to 4 nats, with one gain."""
    roles = {"eval_sft": _answered(0.0, 0.0)}
    for loss, betas in LOSS_BETAS.items():
        for kl, beta in enumerate(betas, start=1):
            roles[f"eval_{loss}_{beta:g}"] = _answered(gains.get(loss, 0.1), float(kl))
    return roles


def test_losses_are_held_against_dpo_at_equal_kl(run: Run) -> None:
    reading = dpo_losses(run(_swept(kto=0.2, orpo=0.05)))
    assert len(reading.table) == sum(map(len, LOSS_BETAS.values()))
    assert reading.table["IPO, beta 0.3"][GAIN] == pytest.approx(0.1)
    told = {words.partition(" gains")[0]: seen for words, seen in reading.checks.items()}
    assert told.keys() == {v.label for loss, v in DPO_LOSSES.items() if loss != "sigmoid"}
    assert (told["KTO"], told["ORPO"]) == (True, False)
    (plot,) = reading.plots
    assert plot.series["KTO"] == ([1.0, 2.0, 3.0, 4.0], pytest.approx([0.2] * 4))


def _noisy(gains: Mapping[tuple[str, str], list[float]]) -> dict[str, Files]:
    """Gains by share of each loss and labels, .3 if not given.

    Of four clear training pairs as many are wrong as the share says, rounded up; a flip puts the
    first right. The fifth is a near-tie.
    """
    roles: dict[str, Files] = {"eval_sft": _answered(0.0)}
    for place, share in enumerate(NOISE_SHARES):
        prefix, num_wrong = flipped(share), -int(-4 * share // 1)
        truths = [truth(f"t{n}", n < num_wrong) for n in range(4)]
        truths.append(truth("t4", True, "ambiguous"))
        roles[f"{prefix}preferences"] = {"truth.jsonl": truths, "train.jsonl": [pair("t0")]}
        for labels in NOISE_LABELS:
            rows = [
                {"id": f"t{n}", "is_flipped": labels == "relabelled" and n == 0} for n in range(5)
            ]
            roles[f"{prefix}pairs_{labels}"] = {"train.jsonl": rows}
            for loss in NOISE_LOSSES:
                if share > 0 or loss not in TAKE_THE_RATE:
                    gain = gains.get((loss, labels), [0.3] * 4)[place]
                    roles[f"{prefix}eval_{loss}_{labels}"] = _answered(gain, 1.0 + place)
    return roles


FALLING = {
    ("dpo", "given"): [0.3, 0.25, 0.15, 0.0],
    ("cdpo", "given"): [0.3, 0.25, 0.18, 0.05],
    ("rdpo", "given"): [0.3, 0.26, 0.19, 0.06],
    ("ipo", "given"): [0.2, 0.18, 0.15, 0.1],
}


def test_noise_is_read_by_loss_labels_and_share(run: Run) -> None:
    reading = dpo_noise(run(_noisy(FALLING)))
    # Where nothing is turned round, cDPO and rDPO are DPO.
    assert len(reading.table) == 2 * (2 + 3 * 4)
    row = reading.table["IPO, labels as given, 25 % turned round"]
    assert row[GAIN] == pytest.approx(0.15)
    assert (row["KL, nats"], row[WRONG]) == (3.0, 0.25)
    assert reading.table["IPO, relabelled, 25 % turned round"][WRONG] == 0.0
    assert reading.table["DPO, labels as given, 40 % turned round"][WRONG] == 0.5
    # A flip of a right label is a wrong one.
    assert reading.table["DPO, relabelled, 0 % turned round"][WRONG] == 0.25
    (plot,) = reading.plots
    assert plot.series["rDPO, labels as given"] == (
        [0.0, 10.0, 25.0, 40.0],
        pytest.approx([0.3, 0.26, 0.19, 0.06]),
    )
    assert all(reading.checks.values()) and len(reading.checks) == 5 * len(CLAIMED)


def test_what_noise_does_not_do_is_not_said(run: Run) -> None:
    level = {
        ("dpo", "given"): [0.3, 0.3, 0.3, 0.3],
        ("ipo", "given"): [0.3, 0.2, 0.1, 0.0],
        ("dpo", "relabelled"): [0.2, 0.2, 0.2, 0.2],
    }
    assert not any(dpo_noise(run(_noisy(level))).checks.values())


def test_seeds_that_differ_by_more_than_is_looked_for_tell_nothing(run: Run) -> None:
    """The gain of cDPO over DPO at 40 % is .05 and, in another seed, -.05."""
    words = "40 % turned round: cDPO gains more than DPO on labels as given"
    results = {}
    for seed, gain in ((2, 0.05), (3, -0.05)):
        gains = {**FALLING, ("cdpo", "given"): [0.3, 0.25, 0.18, gain]}
        results[seed] = dpo_noise(run(_noisy(gains)))
        effect = results[seed].effects[words]
        assert effect == (pytest.approx(gain), LEAST_GAIN)
    checks = combine_seeds(results).checks
    assert checks[words] == [None, None]
    assert checks["25 % turned round: cDPO gains more than DPO on labels as given"] == [True] * 2
