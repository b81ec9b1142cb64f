"""Constitutional AI end to end: the recipe at smoke's sizes, from revisions to a policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.flows.command import trimtab
from trimtab.flows.config.recipes import recipe_named
from trimtab.models.data.records import read_rows

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect")]

SIZES = (
    *("world", "comparisons", "sft", "ensemble", "reward_model", "advantage_model"),
    *("rehearsal", "ppo", "evaluate"),
)


def _output(home: Path, stage: str) -> Path:
    (summary,) = home.glob(f"store/artifacts/{stage}/*/*/summary.json")
    return summary.parent


@pytest.fixture(scope="module")
def card(home: Path) -> dict[str, Any]:
    """What smoke has made already, up to SFT, is found in the store. Harmful pairs are few."""
    smoke = recipe_named("smoke").model_dump(mode="json")
    sizes = [f"{section}={json.dumps(smoke[section])}" for section in SIZES]
    few = ('arms=["full"]', 'judge_preferences.splits=["train"]')
    trimtab(home, "run", "constitutional", *sizes, *few, "--flow", "policy", "--name", "mine")
    path = home / "reports/mine/scorecard.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_the_policy_is_of_what_was_revised(card: dict[str, Any]) -> None:
    stages = {entry["role"]: entry for entry in card["lineage"]}
    assert [
        stages[role]["stage"] for role in ("helpful_sft", "revisions", "sft", "policy_full")
    ] == [*("sft", "revise", "constitutional_sft", "ppo_max")]
    for role in ("revisions", "sft"):
        assert stages[role]["parents"]["policy"]["key"] == stages["helpful_sft"]["key"]
    for role in ("policy", "reference"):
        assert stages["policy_full"]["parents"][role]["key"] == stages["sft"]["key"]
    # Smoke's SFT answers no request for harm harmlessly; the gold scorer, right in .9, mends a
    # draft with probability .8 in each of four steps.
    before, *_, after = (step["share_harmless"]["value"] for step in card["revisions"]["steps"])
    assert len(card["revisions"]["steps"]) == 5
    assert before < 0.5 < after
    assert [policy["name"] for policy in card["policies"]] == ["sft", "full"]


def test_harmful_pairs_have_the_judges_labels_and_others_peoples(
    home: Path, card: dict[str, Any]
) -> None:
    judged = {
        r["id"]: r for r in read_rows(_output(home, "judge_preferences") / "judgements.jsonl")
    }
    labelled = _output(home, "ai_labels")
    pairs = {row["id"]: row for row in read_rows(labelled / "train.jsonl")}
    assert judged.keys() == {name for name, r in pairs.items() if r["category"] == "harmful"}
    assert card["ai_labeler"]["num_labelled"] == len(judged) > 0
    (given,) = (entry for entry in card["lineage"] if entry["role"] == "pairs_as_given")
    (folder,) = (
        path.parent
        for path in home.glob("store/artifacts/comparisons/*/*/train.jsonl")
        if given["key"] in path.parts
    )
    for row in read_rows(folder / "train.jsonl"):
        found, preference = pairs[row["id"]], judged.get(row["id"], {}).get("preference")
        if preference is None:
            assert found == row
        else:
            assert found["chosen"] == row["rejected" if preference < 0.5 else "chosen"]
            assert found.get("label", 1.0) == max(preference, 1 - preference)
