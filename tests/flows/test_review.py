"""A review brought back to a label audit, through the command."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.flows.command import digests, from_store, start, trimtab

pytestmark = pytest.mark.slow

RUN = ("run", "smoke", "--flow", "label-audit")


def _audited(home: Path) -> dict[str, dict[str, Any]]:
    path = home / "reports/smoke-seed0-label-audit/audited.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return {row["id"]: row for row in map(json.loads, stream)}


def test_a_review_counts_and_only_what_follows_runs_again(tmp_path: Path) -> None:
    home, review = tmp_path / "home", tmp_path / "review.jsonl"
    trimtab(home, *RUN)
    voted = _audited(home)
    flipped = [row for row in voted.values() if row["is_flipped"]][:2]
    with_review = (*RUN, f"relabel.review={review}")
    expected, lines = dict(voted), []
    for pair, verdict, weight in zip(flipped, ("keep", "drop"), (1.0, 0.0), strict=True):
        lines.append(json.dumps({"id": pair["id"], "verdict": verdict, "note": None}) + "\n")
        settled = {"is_flipped": False, "label": 1.0, "margin": 0.0}
        expected[pair["id"]] = {**pair, **settled, "weight": weight, "review": verdict}
    review.write_text("".join(lines))
    before = digests(home)
    assert from_store(trimtab(home, *with_review)) == (6, 8)
    manifests = list(home.glob("store/artifacts/*/*/manifest.json"))
    new = {path.parts[-3] for path in manifests if path.parts[-2] not in before}
    assert new - {"report"} == {"raw", "relabel", "audit"}
    assert _audited(home) == expected
    review.write_text(json.dumps({"id": "nobody", "verdict": "keep"}))
    process = start(home, *with_review)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "review.jsonl:1: unknown_id in field 'id': found 'nobody'" in output
