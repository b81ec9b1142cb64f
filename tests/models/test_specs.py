"""Specifications of stages: what tasks hand over is what trainers find, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.models.specs import HIR, PPO_MAX, SPECS, STRENGTH, WIN_MATRIX, InputError
from trimtab.models.training.stage import Stage


def test_trainers_find_what_tasks_hand_over_in_their_order() -> None:
    many = [Path(str(number)) for number in range(12)]
    for given in (None, many[0], many):
        named = PPO_MAX.named({"safety_scorer": Path("other"), "scorer": given})
        wanted = given if isinstance(given, list) else [given] if given else []
        assert Stage(named, Path("work")).several("scorer") == wanted
        assert named["safety_scorer"] == Path("other")


def test_a_mapping_s_artifacts_keep_their_own_names() -> None:
    given = {"evaluations": {"0.sft": 1, "0.full": 2}, "verdicts": [3, 4]}
    named = WIN_MATRIX.named(given)
    assert named == {"0.sft": 1, "0.full": 2, "verdicts_0": 3, "verdicts_1": 4}
    WIN_MATRIX.check(named)


def test_missing_and_unknown_inputs_are_refused_with_what_is_allowed() -> None:
    with pytest.raises(InputError, match=r"hir: inputs \['responses'\] are missing"):
        HIR.check(["policy"])
    with pytest.raises(InputError, match=r"no inputs \['pairs'\]; allowed: .*'policy'"):
        HIR.check(["policy", "responses_0", "pairs"])
    with pytest.raises(InputError, match=r"\['member'\] are missing"):
        STRENGTH.check(["member_x"])
    with pytest.raises(InputError, match=r"no inputs \['policy_0'\]"):  # one, never several
        HIR.check(["policy", "policy_0", "responses_0"])


def test_every_input_has_one_kind() -> None:
    for spec in SPECS.values():
        assert not set(spec.optional) & {*spec.required, *spec.several}, spec.name
        assert len(spec.inputs) == len(set(spec.inputs)), spec.name
