"""The card of exported pairs says who voted, and what was changed."""

from __future__ import annotations

from typing import Any

from trimtab.models.reporting.model_card import Exported, model_card

AUDIT = {"num_pairs": 100, "num_looks_wrong": 4, "num_flipped": 0, "num_dropped": 0}
SETTINGS = {
    "ensemble.scores": ["mine.csv 0123456789abcdef", "s3://bucket/yours.jsonl"],
    "ensemble.reward_models": ["/home/somebody/models/gold/"],
    "ensemble.judges": [{"name": "qwen3", "judge": {"endpoint": {"model": "Qwen/Qwen3-8B"}}}],
}


def _card(roles: list[str], **audit: Any) -> str:
    entry: dict[str, Any] = {"role": "relabelled", "stage": "relabel", "digest": "d"}
    entry |= {"versions": {}, "parents": {}}
    card = {
        "audit": AUDIT | audit,
        "vote_used": "calibrated",
        "lineage": [entry | {"role": role} for role in roles],
    }
    return model_card(Exported("run", "", SETTINGS, card, entry))


def test_the_project_s_own_voters_were_not_trained_on_the_pair() -> None:
    roles = ["preferences", "style", "vectors_embedding", "cross_fitted_0", "cross_fitted_1"]
    text = _card([*roles, "strength", "cross_fitted_member_0"])
    assert (
        "3 models that were not trained on the pair voted on each (how an answer is written, "
        "reward model 1, reward model 2). 4 of 100 labels look wrong"
    ) in text


def test_what_the_user_s_voters_learned_from_is_not_known() -> None:
    external = ["external_votes_0", "external_votes_1", "external_reward_model_0"]
    text = _card(["style", *external, "external_judge_0", "strength"])
    assert (
        "1 model that was not trained on the pair voted on each (how an answer is written), and "
        "4 that the user brought (votes of mine.csv 0123456789abcdef, votes of yours.jsonl, reward "
        "model gold, judge qwen3): what these learned from is not known."
    ) in text
    assert "somebody" not in text


def test_weights_are_a_change() -> None:
    assert "No label was changed." in _card(["style"])
    text = _card(["style"], num_weighted=7)
    assert "Of all labels 7 given a lower weight." in text and "No label was changed" not in text
