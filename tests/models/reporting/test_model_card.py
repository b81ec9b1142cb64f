"""The card of exported pairs says who voted, and what was changed; a scorer's, how it is probed."""

from __future__ import annotations

from typing import Any

from trimtab.models.reporting.export import ExportedScorer
from trimtab.models.reporting.model_card import Exported, model_card

AUDIT = {"num_pairs": 100, "num_looks_wrong": 4, "num_flipped": 0, "num_dropped": 0}
SETTINGS = {
    "ensemble.scores": ["mine.csv 0123456789abcdef", "s3://bucket/yours.jsonl"],
    "ensemble.rewards": [
        {"model": "/home/somebody/models/gold/"},
        {"function": "rules:politeness"},
    ],
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
    external = ["external_votes_0", "external_votes_1"]
    external += ["external_reward_votes_0", "external_reward_votes_1"]
    text = _card(["style", *external, "external_judge_0", "strength"])
    assert (
        "1 model that was not trained on the pair voted on each (how an answer is written), and "
        "5 that the user brought (votes of mine.csv 0123456789abcdef, votes of yours.jsonl, reward "
        "model gold, reward function rules:politeness, judge qwen3): what these learned from is "
        "not known."
    ) in text
    assert "somebody" not in text


def test_weights_are_a_change() -> None:
    assert "No label was changed." in _card(["style"])
    text = _card(["style"], num_weighted=7)
    assert "Of all labels 7 given a lower weight." in text and "No label was changed" not in text


def test_a_scorer_s_card_says_what_it_makes_of_changed_answers() -> None:
    def found(value: float, low: float, high: float) -> dict[str, float]:
        return {"value": value, "low": low, "high": high, "count": 200}

    probe = {"shift": found(0.5, 0.25, 0.75), "preferred": found(0.6, 0.53, 0.67)}
    scorer = {"role": "reward_model", "categories": {}, "probes": {"repeated": probe}}
    entry: dict[str, Any] = {"role": "reward_model", "stage": "reward_model", "digest": "d"}
    entry |= {"versions": {}, "parents": {}}
    of_export = ExportedScorer(
        ["reward"], False, {"score_token": "<end>", "is_always_appended": True}
    )
    card = {"scorers": {"relabelled": scorer | {"longer_preferred": found(0.7, 0.6, 0.8)}}}
    text = model_card(Exported("run", "", {}, card, entry, scorer=of_export))
    assert "| Prefers the longer of two answers | 0.700 | [0.600, 0.800] | 200 |" in text
    row = "| the answer twice | +0.50 | [+0.25, +0.75] | 0.600 | [0.530, 0.670] | 200 |"
    assert row in text
    without = {"scorers": {"relabelled": scorer | {"probes": {}}}}
    assert "## Probes" not in model_card(Exported("run", "", {}, without, entry, scorer=of_export))
