"""Exhibits of selective rehearsal by hand: what is lost at equal coefficients and at equal KL."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.studies.conftest import Run
from tests.models.studies.policies_by_hand import judged
from trimtab.models.studies.rehearsal import (
    UNSHOWN,
    rehearsal,
    rehearsal_criteria,
    rehearsal_risk,
)
from trimtab.models.studies.variants import (
    REHEARSAL_KL_COEFS,
    REHEARSALS,
    RISK_KL_COEFS,
    RISKS,
    SHARED_REHEARSALS,
    SHARED_RISKS,
)


def test_rehearsal_is_read_at_equal_coefficients_and_at_equal_kl(run: Run) -> None:
    def roles(**lost: float) -> dict[str, Any]:
        examples = [{"category": "main"}]
        artifacts: dict[str, Any] = {"rehearsal_policy": {"rehearsal.jsonl": examples}}
        for name in ("random", "shared_policy"):
            shown = [*examples, {"category": "forget"}]
            artifacts[f"rehearsal_{name}"] = {"rehearsal.jsonl": shown}
        for name in (*REHEARSALS, *SHARED_REHEARSALS):
            for coef in REHEARSAL_KL_COEFS:
                rows = [
                    {"set": place, "kl": 2 - 5 * coef, "length": 5, "category": place}
                    for place in ("main", "forget")
                ]
                artifacts[f"eval_{name}_{coef:g}"] = {"responses.jsonl": rows}
                artifacts[f"judge_{name}_{coef:g}"] = judged(0.2, forget=0.5 - 2 * lost[name])
        return artifacts

    lost = {"without": 0.4, "policy": 0.3, "random": 0.2, "demonstrations": 0.1}
    shared = {"shared_without": 0.3, "shared_policy": 0.2}
    reading = rehearsal(run(roles(**lost, **shared)))
    assert all(reading.checks.values())
    assert (
        "families shared: rehearsal, PPO's prompts loses less than families shared: without "
        in (" ".join(reading.checks))
    )
    row = reading.table["rehearsal, SFT's prompts, KL coefficient 0.05"]
    assert row["forget, lose"] == pytest.approx(0.1)
    assert row["KL, nats"] == row["KL, nats, forget set"] == pytest.approx(1.75)
    unshown = [row.get(UNSHOWN) for row in reading.table.values()][:: len(REHEARSAL_KL_COEFS)]
    assert unshown == [None, 1.0, None, 0.0, None, 0.0]
    alike = rehearsal(run(roles(**dict.fromkeys((*lost, *shared), 0.1))))
    assert set(alike.checks.values()) == {False}


def test_rehearsal_by_risk_is_read_on_both_sets(run: Run) -> None:
    def answers(coef: float, golds: tuple[float, float]) -> dict[str, Any]:
        rows = [{"set": "main", "kl": 2 - 5 * coef, "length": 5}]
        for family, gold in zip("ab", golds, strict=True):
            rows += [{"set": "forget", "category": family, "gold": gold, "kl": 1, "length": 5}] * 2
        return {"responses.jsonl": rows}

    def roles(main: dict[str, float], **lost: float) -> dict[str, Any]:
        files: dict[str, Any] = {"eval_sft": answers(0.0, (0.9, 0.6))}
        for name in (*RISKS, *SHARED_RISKS):
            for coef in RISK_KL_COEFS:
                files[f"eval_{name}_{coef:g}"] = answers(coef, (0.8, 0.2))
                net = main.get(name, 0.2)
                files[f"judge_{name}_{coef:g}"] = judged(net, forget=0.5 - 2 * lost[name])
        return files

    lost = {"nothing": 0.4, "uniform": 0.2, "risk": 0.05, "kl_risk": 0.05, "ptx": 0.1}
    lost |= {"shared_nothing": 0.3, "shared_kl_risk": 0.1}
    reading = rehearsal_risk(run(roles({"risk": 0.16}, **lost)))
    assert all(reading.checks.values())
    row = reading.table["rehearsal by risk, KL coefficient 0.05"]
    assert row["forget, lose"] == pytest.approx(0.05)
    assert row["main, net"] == pytest.approx(0.16)
    # Family a lost .1 of SFT's gold, b .4.
    assert row["gold lost of the worst forget family"] == pytest.approx(0.4)
    less = {"risk": 0.14, "kl_risk": 0.14, "shared_kl_risk": 0.14}
    worse = rehearsal_risk(run(roles(less, **dict.fromkeys(lost, 0.05))))
    assert set(worse.checks.values()) == {False}


def test_criteria_are_compared_by_what_is_lost(run: Run) -> None:
    def roles(**lost: float) -> dict[str, Any]:
        return {
            role: files
            for name, share in lost.items()
            for role, files in (
                (f"eval_{name}_0", {"responses.jsonl": [{"set": "main", "kl": 2, "length": 5}]}),
                (f"judge_{name}_0", judged(0.2, forget=0.5 - 2 * share)),
            )
        }

    lost = {"without": 0.4, "demonstrations": 0.1, "entropy": 0.2, "length": 0.2, "random": 0.15}
    reading = rehearsal_criteria(run(roles(**lost)))
    assert all(reading.checks.values())
    assert reading.table["least entropy"]["forget, lose"] == pytest.approx(0.2)
    alike = dict.fromkeys(lost, 0.1)
    assert not any(rehearsal_criteria(run(roles(**alike))).checks.values())
