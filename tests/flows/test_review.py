"""A review brought back to a label audit, through the command."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.flows.command import digests, from_store, trimtab
from tests.flows.conftest import NAME

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect")]

RUN = ("run", "smoke", "--flow", "label-audit")


def _audited(folder: Path) -> dict[str, dict[str, Any]]:
    with gzip.open(folder / "audited.jsonl.gz", "rt", encoding="utf-8") as stream:
        return {row["id"]: row for row in map(json.loads, stream)}


def test_a_review_counts_and_only_what_follows_runs_again(home: Path, tmp_path: Path) -> None:
    voted = _audited(home / "reports" / NAME)
    flipped = [row for row in voted.values() if row["is_flipped"]][:2]
    expected, lines = dict(voted), []
    for pair, verdict, weight in zip(flipped, ("keep", "drop"), (1.0, 0.0), strict=True):
        lines.append(json.dumps({"id": pair["id"], "verdict": verdict, "note": None}) + "\n")
        settled = {"is_flipped": False, "label": 1.0, "margin": 0.0}
        expected[pair["id"]] = {**pair, **settled, "weight": weight, "review": verdict}
    review = tmp_path / "review.jsonl"
    review.write_text("".join(lines))
    before, whole = digests(home), home / f"reports/{NAME}/scorecard.json"
    report = whole.read_bytes()
    assert from_store(trimtab(home, *RUN, f"relabel.review={review}", "--name", "mine")) == (6, 8)
    manifests = list(home.glob("store/artifacts/*/*/manifest.json"))
    new = {path.parts[-3] for path in manifests if path.parts[-2] not in before}
    assert new - {"report"} == {"raw", "relabel", "audit"}
    assert _audited(home / "reports/mine") == expected
    assert whole.read_bytes() == report
    card = json.loads((home / "reports/mine/scorecard.json").read_text())
    roles = {stage["role"] for stage in card["stages"]} - {"member_0", "member_1"}
    assert roles == {"data", "sft", "preferences", "strength", "relabelled", "audit"}
    for name in (NAME, "mine"):
        assert 'href="audit.html"' in (home / "reports" / name / "report.html").read_text()
        assert "pairs look wrong" in (home / "reports" / name / "audit.html").read_text()
