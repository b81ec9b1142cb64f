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
