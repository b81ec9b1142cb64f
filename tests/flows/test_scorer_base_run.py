"""A run whose scorers have another tokenizer, size and family than its policies, end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tests.flows.command import trimtab
from tests.models.judge.tiny import save_tiny_neox

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect")]


def test_every_stage_takes_scorers_that_read_bytes(home: Path, tmp_path: Path) -> None:
    save_tiny_neox(tmp_path / "bytes")
    base = {
        "model": {"base": str(tmp_path / "bytes"), "max_length": 256},
        "train": {"learning_rate": 1e-3, "batch_size": 64},
    }
    layers = [
        f"{section}.train.trainable_layers=1"
        for section in ("ensemble.member", "reward_model", "advantage_model", "rounds.meta_rm")
    ]
    settings = (
        f"scorer_base={json.dumps(base)}",
        *layers,
        "ppo.critic_init=policy",
        'arms=["full", "best_of_n", "rejection_sampling", "rest"]',
    )
    trimtab(home, "run", "smoke", *settings, "--name", "bytes")
    card = json.loads((home / "reports/bytes/scorecard.json").read_text())
    stages = {entry["role"]: entry for entry in card["lineage"]}
    for role in ("member_0", "reward_model", "advantage_model", "scorer_trunk"):
        assert stages[role]["parents"]["policy"]["key"] == stages["scorer_base"]["key"]
    assert stages["meta_rm_2"]["parents"]["trunk"]["key"] == stages["scorer_trunk"]["key"]
    assert {policy["name"] for policy in card["policies"]} >= {"sft", "full", "best_of_n", "rest"}
    for role, size in (("policy_full", None), ("meta_rm_2", 258), ("policy_round_2", None)):
        entry = stages[role]
        (model,) = home.glob(f"store/artifacts/{entry['stage']}/{entry['key']}/*/model")
        words = len(AutoTokenizer.from_pretrained(model))
        assert words == 258 if size else words < 258
