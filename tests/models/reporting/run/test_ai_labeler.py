"""The report about a judge: its alignment by hand, its errors by their name, harmless rates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.models.reporting.run.conftest import TRAIN, Row, Write, pair, truth
from trimtab.models.config.reporting import ReportConfig
from trimtab.models.reporting.kit.artifacts import Artifacts
from trimtab.models.reporting.run.labels import ai_labeler
from trimtab.models.reporting.run.policies import answer_sets
from trimtab.models.stages import report
from trimtab.models.training.stage import Stage

# What the judge says of the six training pairs; t0, t1 and t4 are wrong, t2 is equal by gold.
PREFERENCES = [0.1, 0.9, 0.2, 0.5, 0.4, 0.8]


@pytest.fixture
def judged(label_inputs: dict[str, Path], write: Write) -> dict[str, Path]:
    """A run on the judge's labels: what it was given plays another role."""
    rows = [
        {"id": name, "split": "train", "preference": preference}
        for (name, *_), preference in zip(TRAIN, PREFERENCES, strict=True)
    ]
    summary = {"position_bias": 0.1, "share_tied": 0.5, "num_unparsed": 2, "cost": 0.25}
    known = [
        {**truth(name, kind, wrong, "train"), **({"gold_rejected": 0.8} if name == "t2" else {})}
        for name, kind, wrong, _ in TRAIN
    ]
    given = {"train.jsonl": [pair(name, None) for name, *_ in TRAIN], "truth.jsonl": known}
    (label_inputs["preferences"] / "summary.json").write_text('{"num_labelled": 5}')
    return label_inputs | {
        "judged": write("judged", {"judgements.jsonl": rows, "summary.json": summary}),
        "pairs_as_given": write("pairs_as_given", given),
    }


def test_alignment_by_hand(judged: dict[str, Path]) -> None:
    """Agrees with t1 and t5, half with t3: 2.5 of 6. Right: t0, t4, t5, half of t3; t2 is none."""
    found = ai_labeler(Artifacts(judged))
    assert found is not None and found.truth_alignment is not None
    assert (found.alignment.value, found.alignment.count) == (pytest.approx(2.5 / 6), 6)
    assert (found.truth_alignment.value, found.truth_alignment.count) == (
        pytest.approx(3.5 / 5),
        5,
    )
    assert found.alignment.low < 2.5 / 6 < found.alignment.high
    assert (found.num_labelled, found.position_bias, found.cost) == (5, 0.1, 0.25)


def test_a_judge_that_only_looks_labels_nothing(judged: dict[str, Path]) -> None:
    del judged["pairs_as_given"]
    found = ai_labeler(Artifacts(judged))
    assert found is not None and found.num_labelled == 0
    del judged["judged"]
    assert ai_labeler(Artifacts(judged)) is None


@pytest.mark.slow
def test_the_page_calls_a_judges_error_by_its_name(judged: dict[str, Path], tmp_path: Path) -> None:
    report.run(ReportConfig(), Stage(judged, tmp_path / "w"))
    html = (tmp_path / "w/output/report.html").read_text()
    assert "a judge model agrees with 41.7" in html
    assert "they find the judge&#39;s errors" in html
    assert "planted flip" not in html
    summary = json.loads((tmp_path / "w/output/summary.json").read_text())
    assert summary["ai_labeler_truth_alignment"] == pytest.approx(0.7)
    card = json.loads((tmp_path / "w/output/scorecard.json").read_text())
    assert card["ai_labeler"]["num_labelled"] == 5
    assert card["claims"][0]["statement"].startswith("Judge's errors are found")


def test_harmless_rate_is_of_those_asked_for_harm() -> None:
    measures: Row = {"score": 0.0, "judge_score": 0.0, "kl": 0.0, "length": 2, "logprob": -1.0}

    def row(place: str, **more: Any) -> Row:
        return {"set": place, "response": "a", **measures, **more}

    rows = [row("main"), *(row("main", harmless=each) for each in (True, True, False))]
    found = answer_sets([*rows, row("forget")], 0)
    harmless = found["main"].harmless
    assert harmless is not None
    assert (harmless.value, harmless.count) == (pytest.approx(2 / 3), 3)
    assert found["forget"].harmless is None
