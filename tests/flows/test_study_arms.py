"""Arms of exhibits: what they start from, what scores them, and what their prompts are."""

from __future__ import annotations

from trimtab.flows.config.recipes import recipe_named
from trimtab.flows.pipeline.run import PlannedRun
from trimtab.flows.study import submit_arms
from trimtab.models.studies.advantage_model import NORMALISED_ARMS, RAW_ARMS
from trimtab.models.studies.registry import exhibits_of
from trimtab.models.studies.variants import (
    DPO_LOSSES,
    LOSS_BETAS,
    NOISE_LABELS,
    NOISE_SHARES,
    REHEARSAL_KL_COEFS,
    ROUND_ARMS,
    flipped,
)


def _planned(paper: str, name: str) -> PlannedRun:
    run = PlannedRun(recipe_named("default"))
    submit_arms(*exhibits_of(paper, name), run)
    return run


def test_what_a_policy_gains_is_over_sft_by_its_own_scorer() -> None:
    run = _planned("part-2", "figure-9")
    for name in ("free_baseline", "free_flip"):
        start, ours = run[f"eval_start_{name}"], run[f"eval_{name}"]
        assert start.inputs["policy"] is run["sft"] and ours.inputs["policy"] is not run["sft"]
        assert start.config == ours.config
        for shared in ("scorer", "data", "reference"):
            assert start.inputs[shared] is ours.inputs[shared]
    assert run["eval_start_free_flip"].inputs["scorer"] is run["scorer_flip"]


def test_a_round_gains_over_the_round_before_it_and_its_target_rises() -> None:
    run = _planned("part-2", "figure-17")
    for arm in (*ROUND_ARMS, "dynamic_meta"):
        policies = [run["sft"], *(run[f"policy_{arm}_{number}"] for number in (1, 2, 3, 4))]
        for number in (1, 2, 3, 4):
            start = run[f"eval_start_{arm}_{number}"]
            assert start.inputs["policy"] is policies[number - 1]
            assert start.inputs["scorer"] is run[f"eval_{arm}_{number}"].inputs["scorer"]
    targets = [run[f"policy_dynamic_meta_{number}"].config.kl_target for number in (1, 2, 3, 4)]
    assert targets == [0.1, 0.2, 0.3, 0.4]
    assert all(run[f"policy_meta_{number}"].config.kl_target is None for number in (1, 2, 3, 4))


def test_every_scorer_is_optimised_on_raw_and_on_normalised_scores() -> None:
    run = _planned("advantage-model", "table-2")
    for raw, normalised in zip(RAW_ARMS, NORMALISED_ARMS, strict=True):
        ours, theirs = run[f"policy_{raw}"], run[f"policy_{normalised}"]
        changes = {"score_treatment": "raw", "score_clip": None}
        assert ours.config == theirs.config.model_copy(update=changes)
        assert theirs.config.score_treatment == "normalised"
        assert ours.inputs == theirs.inputs
    scorers = [run[f"policy_{name}"].inputs["scorer"] for name in RAW_ARMS]
    assert scorers == [run["scorer_raw"], run["advantage_raw"], run["advantage_raw"]]
    rehearsed = [run[f"policy_{name}"].inputs.get("rehearsal") for name in RAW_ARMS]
    assert rehearsed == [None, None, run["rehearsal_full"]]


def test_ppo_s_prompts_share_the_forget_families_in_arms_of_their_own() -> None:
    run = _planned("advantage-model", "rehearsal")
    plain, shared = run["policy_policy_0"], run["policy_shared_policy_0"]
    assert plain.config == shared.config
    worlds = [policy.inputs["data"].config for policy in (plain, shared)]
    assert worlds[0].num_policy_experts == 0
    assert worlds[1] == worlds[0].model_copy(update={"num_policy_experts": 480})
    for coef in REHEARSAL_KL_COEFS:
        without, ours = (run[f"policy_shared_{arm}_{coef:g}"] for arm in ("without", "policy"))
        assert "rehearsal" not in without.inputs
        assert ours.inputs["rehearsal"] is run["rehearsal_shared_policy"]
        assert ours.inputs["data"] is without.inputs["data"]
    assert run["rehearsal_shared_policy"].inputs["data"] is shared.inputs["data"]
    assert run["data"] is plain.inputs["data"]


def test_losses_share_all_but_themselves_and_their_beta() -> None:
    run = _planned("methods", "dpo-losses")
    for loss in DPO_LOSSES:
        for beta in LOSS_BETAS[loss]:
            stage = run[f"policy_{loss}_{beta:g}"]
            changes = {"loss": loss, "beta": beta}
            assert stage.config == run["policy_sigmoid_1"].config.model_copy(update=changes)
            assert stage.inputs["pairs"] is run["relabelled"]
            assert stage.inputs["policy"] is run["sft"]
            assert stage.inputs.get("reference") is (
                None if loss in ("simpo", "orpo") else run["sft"]
            )
            measured = run[f"eval_{loss}_{beta:g}"]
            assert measured.inputs["scorer"] is run["eval_sft"].inputs["scorer"]
            assert measured.config == run["eval_sft"].config


def test_noise_is_in_the_labels_and_told_to_the_losses_that_take_a_rate() -> None:
    run = _planned("methods", "dpo-noise")
    for share in NOISE_SHARES:
        prefix = flipped(share)
        preferences = run[f"{prefix}preferences"]
        assert preferences.config.flip_share == share
        for labels in NOISE_LABELS:
            pairs = run[f"{prefix}pairs_{labels}"]
            assert pairs.inputs["preferences"] is preferences
            assert pairs.inputs["strength"] is run[f"{prefix}strength"]
            assert pairs.config.flip_below == (None if labels == "given" else 0.0)
            assert pairs.config.smooth == "none"
            told = {
                loss: run[f"{prefix}policy_{loss}_{labels}"].config
                for loss in ("dpo", "cdpo", "rdpo", "ipo")
                if f"{prefix}policy_{loss}_{labels}" in run.roles
            }
            assert len(told) == (4 if share else 2)
            assert {loss: config.loss for loss, config in told.items()}.items() <= {
                ("dpo", "sigmoid"),
                ("cdpo", "sigmoid"),
                ("rdpo", "robust"),
                ("ipo", "ipo"),
            }
            for loss, config in told.items():
                assert config.label_smoothing == (share if loss in ("cdpo", "rdpo") else 0.0)
                assert run[f"{prefix}policy_{loss}_{labels}"].inputs["pairs"] is pairs
