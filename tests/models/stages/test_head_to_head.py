"""Stage `judge`: what promotes a policy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.models.conftest import run_stage
from trimtab.models.config.reporting import EvaluateConfig
from trimtab.models.training.data import write_rows


@pytest.mark.parametrize(("wins", "is_promoted"), [(3, False), (4, True)])
def test_a_few_wins_are_not_certain(tmp_path: Path, wins: int, is_promoted: bool) -> None:
    """Of wins only the interval begins at (n - 1.96^2) / (n + 1.96^2): below 0 of three."""
    for name, score in (("ours", 1.0), ("theirs", 0.0)):
        rows = [
            {"set": "validation", "prompt": f"prompt {at}", "response": name, "judge_score": score}
            for at in range(wins)
        ]
        write_rows(tmp_path / name / "responses.jsonl", rows)
    output = run_stage(
        "head_to_head",
        EvaluateConfig(has_gold=False, tie_margin=0.1),
        tmp_path / "work",
        ours=tmp_path / "ours",
        theirs=tmp_path / "theirs",
    )
    found = json.loads((output / "judgement.json").read_text())["validation_judge_score"]
    assert (found["win"], found["net"], found["net_high"]) == (1.0, 1.0, 1.0)
    squared = 1.959964**2
    assert found["net_low"] == pytest.approx((wins - squared) / (wins + squared), abs=1e-6)
    assert json.loads((output / "summary.json").read_text())["is_promoted"] is is_promoted


def test_what_is_lost_of_the_forget_set_is_counted_by_family(tmp_path: Path) -> None:
    """One of eight families is lost whole: no more is known than from eight cases."""
    for name in ("ours", "theirs"):
        rows = [
            {
                "set": place,
                "prompt": f"{place} {at}",
                "category": f"family {at % 8}",
                "response": name,
                "judge_score": float(name == "theirs" and at % 8 == 0),
            }
            for place in ("forget", "validation")
            for at in range(160)
        ]
        write_rows(tmp_path / name / "responses.jsonl", rows)
    output = run_stage(
        "head_to_head",
        EvaluateConfig(has_gold=False),
        tmp_path / "work",
        ours=tmp_path / "ours",
        theirs=tmp_path / "theirs",
    )
    found = json.loads((output / "judgement.json").read_text())
    forget, prompts = found["forget_judge_score"], found["validation_judge_score"]
    assert forget["lose"] == prompts["lose"] == 0.125
    assert forget["net"] == prompts["net"] == -0.125
    assert prompts["net_high"] < 0 < forget["net_high"]
    # Of eight draws from eight families none may be the lost one: (7/8)^8 = .34.
    assert prompts["difference_high"] < forget["difference_high"] == 0.0
    assert forget["difference_low"] == pytest.approx(-0.375)
