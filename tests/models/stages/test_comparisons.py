"""Who answers what, and which labels are flipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.models.conftest import run_stage
from trimtab.models.data.records import read_rows
from trimtab.models.synthetic.tasks import family_of
from trimtab.models.training.data import SPLITS
from trimtab.models.training.progress import read_metrics


def _pairs(output: Path) -> list[dict[str, Any]]:
    return [row for split in SPLITS for row in read_rows(output / f"{split}.jsonl")]


def test_several_policies_share_the_prompts_and_a_pair_says_who_answered(
    tmp_path: Path, smoke_config: Any, world: Path, policy: Path, comparisons: Path
) -> None:
    given = {"data": world, "policy_0": policy, "policy_1": policy}
    output = run_stage("comparisons", smoke_config.comparisons, tmp_path / "two", **given)
    pairs = _pairs(output)
    assert {row["policy"] for row in pairs} == {0, 1}
    families = [{row["category"] for row in pairs if row["policy"] == n} for n in (0, 1)]
    assert len(families[0] & families[1]) > 8
    asked = [row["prompt"] for row in read_rows(world / "pair_prompts.jsonl")]
    assert all(row["prompt"] == asked[int(row["group"].rpartition("-")[2])] for row in pairs)
    assert not any("policy" in row for row in _pairs(comparisons))
    # One bar over both policies, and over both temperatures.
    bars = [row["progress"] for row in _progress(tmp_path / "two")]
    assert bars == sorted(bars)
    assert bars[-1] == [4 * len(asked)] * 2


def _progress(workdir: Path) -> list[dict[str, Any]]:
    assert read_metrics(workdir / "metrics.jsonl") == []
    return read_rows(workdir / "metrics.jsonl")


def test_prompts_of_expert_families_are_answered_at_a_temperature_of_their_own(
    tmp_path: Path, smoke_config: Any, world: Path, policy: Path, comparisons: Path
) -> None:
    """Nearly greedy answers of one prompt are mostly alike, and alike answers are no pair."""
    config = smoke_config.comparisons.model_copy(update={"expert_temperature": 0.01})
    output = run_stage("comparisons", config, tmp_path / "greedy", data=world, policy=policy)
    of_experts, of_others = [], []
    for folder in (output, comparisons):
        pairs: dict[bool, dict[str, Any]] = {True: {}, False: {}}
        for row in _pairs(folder):
            pairs[family_of(row["prompt"]).is_expert][row["id"]] = row
        of_experts.append(pairs[True])
        of_others.append(pairs[False])
    assert len(of_experts[0]) < 0.5 * len(of_experts[1])
    assert of_others[0] == of_others[1]


def test_flips_by_difficulty_are_as_many_of_other_pairs(
    tmp_path: Path, smoke_config: Any, world: Path, policy: Path, comparisons: Path
) -> None:
    config = smoke_config.comparisons.model_copy(update={"noise": "by_difficulty"})
    output = run_stage("comparisons", config, tmp_path / "hard", data=world, policy=policy)
    uniform, hard = (
        {row["id"]: row for row in read_rows(folder / "truth.jsonl")}
        for folder in (comparisons, output)
    )
    assert uniform.keys() == hard.keys()
    flipped = [
        {n for n, row in each.items() if row["kind"] == "flipped"} for each in (uniform, hard)
    ]
    assert flipped[0] != flipped[1]
    ambiguous = [
        {n for n, r in each.items() if r["kind"] == "ambiguous"} for each in (uniform, hard)
    ]
    assert ambiguous[0] == ambiguous[1]
