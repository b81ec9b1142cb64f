"""What methods gain for their distance from SFT, in two settings each by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.studies.conftest import Run
from tests.models.studies.policies_by_hand import judged
from trimtab.models.studies.frontier import (
    BOUND,
    NAMES,
    START,
    frontier,
    gains_most,
    temperature,
)
from trimtab.models.studies.results import combine_seeds
from trimtab.models.studies.variants import STRENGTHS, TEMPERATURES

Files = dict[str, Any]
SFT, GAIN = 0.5, "gold over SFT"


def _answered(gain: float, kl: float, measure: str = "gold") -> Files:
    """Two answers a set; the forget set loses as much as the main one gains."""
    return {
        "responses.jsonl": [
            {
                "set": place,
                measure: SFT + sign * gain + apart,
                "kl": kl + apart,
                "length": 6 + apart,
            }
            for place, sign in (("main", 1), ("forget", -1))
            for apart in (-0.25, 0.25)
        ]
    }


def _roles(measure: str = "gold", **gains: float) -> dict[str, Files]:
    """All methods at 1 and at 3 nats, each with one gain at both."""
    roles = {"eval_sft": _answered(0.0, 0.0, measure)}
    for arm in STRENGTHS:
        for value, kl in (("0.1", 3.0), ("0.5_recipe", 1.0)):
            roles[f"eval_{arm}_{value}"] = _answered(gains.get(arm, 0.1), kl, measure)
    return roles


def test_a_setting_is_a_row_and_a_point(run: Run) -> None:
    reading = frontier(run(_roles(dpo=0.2)))
    assert len(reading.table) == 2 * len(STRENGTHS)
    assert reading.table["DPO, beta 0.5 (recipe)"] == {
        GAIN: pytest.approx(0.2),
        "KL, nats": 1.0,
        f"{GAIN}, forget set": pytest.approx(-0.2),
        "length, tokens": 6.0,
    }
    (plot,) = reading.plots
    assert list(plot.series) == [START, *NAMES.values()]
    assert plot.series["DPO"] == ([3.0, 1.0], pytest.approx([0.2, 0.2]))
    assert plot.series[START] == ([0.0], [0.0])
    assert plot.x == "KL to SFT (nats per answer), main test prompts"
    assert plot.y == f"mean {GAIN} (0 to 1), main test prompts"


def test_the_claim_is_dpos(run: Run) -> None:
    held = frontier(run(_roles(dpo=0.2, best_of_n=0.9)))
    # Eight others: not best of n, whose KL is no measured one.
    assert list(held.checks.values()) == [True] * 8
    assert not any(BOUND in words for words in held.checks)
    not_held = frontier(run(_roles(dpo=0.2, full=0.3)))
    assert [words for words, seen in not_held.checks.items() if not seen] == [
        "DPO gains more than Full method at equal KL"
    ]


def test_without_a_kl_in_common_nothing_is_shown(run: Run) -> None:
    roles = _roles(dpo=0.2)
    for value, kl in (("0.1", 9.0), ("0.5_recipe", 8.0)):
        roles[f"eval_cpl_{value}"] = _answered(0.0, kl)
    reading = frontier(run(roles))
    assert reading.checks["DPO gains more than CPL at equal KL"] is None
    assert "not compared with CPL, at other KL" in gains_most([reading])


def test_what_is_said_is_of_all_seeds(run: Run) -> None:
    reading = frontier(run(_roles(full=0.3, best_of_n=0.9)))
    found = combine_seeds({2: reading, 3: reading}, gains_most)
    assert found.remark.startswith(
        "At equal KL Full method has the highest gold over SFT: clearly over "
        "PPO-max, Advantage Model (+0.200 ± 0.000, 1.00 to 3.00 nats), "
    )
    assert BOUND not in found.remark
    assert combine_seeds({2: reading, 3: reading}).remark == ""


def test_without_gold_the_held_out_reward_models_decide(run: Run) -> None:
    roles = _roles("judge_score", dpo=0.2)
    for files in roles.values():
        files["responses.jsonl"] = [r for r in files["responses.jsonl"] if r["set"] == "main"]
    row = frontier(run(roles)).table["DPO, beta 0.1"]
    assert row == {
        "held-out score over SFT": pytest.approx(0.2),
        "KL, nats": 3.0,
        "length, tokens": 6.0,
    }


def test_wins_are_read_by_temperature(run: Run) -> None:
    def roles(dpo: list[float], best_of_n: float) -> dict[str, Files]:
        """SFT's own answers win .2, .1, .1 and 0 net, PPO's policy .4, .3, .3 and .1."""
        nets = {"sft": [0.2, 0.1, 0.1, 0.0], "ppo_max_am": [0.4, 0.3, 0.3, 0.1], "dpo": dpo}
        nets["best_of_n"] = [best_of_n] * 4
        return {
            f"judge_{arm}_{t:g}": judged(net)
            for arm, values in nets.items()
            for t, net in zip(TEMPERATURES, values, strict=True)
        }

    reading = temperature(run(roles([0.4, 0.4, 0.4, 0.3], 0.4)))
    assert all(reading.checks.values()) and len(reading.checks) == 4
    assert reading.table["DPO, temperature 0.25"]["net"] == pytest.approx(0.4)
    assert not any(temperature(run(roles([0.0, 0.0, -0.1, -0.4], 0.5))).checks.values())
