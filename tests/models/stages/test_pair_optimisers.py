"""DPO, its relatives and CPL: what pairs teach a policy, where the better answer is known."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.models.conftest import run_stage
from tests.models.jobs import Killed, die_after, job, launch, read_by
from trimtab.models.config.policy import CPLConfig, DPOConfig
from trimtab.models.config.training import LoraConfig, TrainConfig, ZeroConfig
from trimtab.models.data.records import read_rows
from trimtab.models.nets.loading import load_policy, load_tokenizer
from trimtab.models.nets.packing import Candidates
from trimtab.models.training import loop
from trimtab.models.training.data import read_pairs, write_rows
from trimtab.models.training.progress import read_metrics
from trimtab.models.training.scoring import logprob_rows

LIKED, DISLIKED = "sure done", "well basically um"
TRAIN = TrainConfig(learning_rate=2e-3, batch_size=8, num_epochs=4, checkpoint_every=2)
DPO, CPL = DPOConfig(train=TRAIN), CPLConfig(train=TRAIN)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory, world: Path) -> Path:
    """24 prompts, of which people like short answers, and the relabelling of all kinds."""
    folder = tmp_path_factory.mktemp("pairs")
    prompts = [row["prompt"] for row in read_rows(world / "policy_prompts.jsonl")[:24]]
    plain = {"chosen": LIKED, "rejected": DISLIKED, "is_flipped": False, "label": 1.0}
    flipped = {**plain, "chosen": DISLIKED, "rejected": LIKED, "is_flipped": True, "label": 0.9}
    write_rows(
        folder / "train.jsonl",
        (
            {"id": str(index), "prompt": prompt, **(flipped if index % 3 == 0 else plain)}
            for index, prompt in enumerate(prompts)
        ),
    )
    return folder


@pytest.fixture(scope="module")
def inputs(policy: Path, pairs: Path) -> dict[str, Path]:
    return {"policy": policy, "preferences": pairs, "pairs": pairs}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, inputs: dict[str, Path]) -> Path:
    inputs = {**inputs, "reference": inputs["policy"]}
    return run_stage("dpo", DPO, tmp_path_factory.mktemp("dpo"), **inputs)


@pytest.fixture(scope="module")
def unbiased(tmp_path_factory: pytest.TempPathFactory, pairs: Path) -> Path:
    """The same pairs with the label of an unbiased loss at rate .4: .6 / .2."""
    folder = tmp_path_factory.mktemp("unbiased")
    write_rows(
        folder / "train.jsonl", ({**row, "label": 3.0} for row in read_rows(pairs / "train.jsonl"))
    )
    return folder


@pytest.mark.parametrize("stage", ["dpo", "cpl", "reward_model", "advantage_model"])
def test_an_unbiased_loss_below_0_is_no_fault(
    tmp_path: Path,
    smoke_config: Any,
    inputs: dict[str, Path],
    unbiased: Path,
    comparisons: Path,
    stage: str,
) -> None:
    """All that learn from pairs do from labels above 1. The Advantage Model's bounds hold its loss:
    at scores of a and -a it is about 6 log(1 + exp(a - 2.5)) - 4 a, least at a = 2.5 + log 2."""
    config = {"dpo": DPO, "cpl": CPL}.get(stage)
    if config is None:
        config = getattr(smoke_config, stage).model_copy(update={"train": TRAIN})
    given = {**inputs, "pairs": unbiased, "preferences": comparisons}
    if stage == "dpo":
        given["reference"] = inputs["policy"]
    run_stage(stage, config, tmp_path, **given)
    losses = [row["loss"] for row in read_metrics(tmp_path / "metrics.jsonl")]
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < 0
    assert (
        stage != "advantage_model" or losses[-1] > 6 * math.log(3) - 4 * (2.5 + math.log(2)) - 0.1
    )


def test_smoothing_of_labels_that_take_noise_out_is_refused(
    tmp_path: Path, inputs: dict[str, Path], unbiased: Path
) -> None:
    config = DPO.model_copy(update={"label_smoothing": 0.1})
    with pytest.raises(
        ValueError, match=r"label_smoothing must be 0 on labels above 1, found 0\.1"
    ):
        run_stage(
            "dpo", config, tmp_path, **{**inputs, "pairs": unbiased}, reference=inputs["policy"]
        )


def _logprobs(policy: Path, pairs: Path) -> torch.Tensor:
    """(N, 2) of preferred and other answers."""
    rows = read_pairs(pairs / "train.jsonl", load_tokenizer(policy / "model")).rows
    return logprob_rows(load_policy(policy / "model"), rows)


def _same_weights(ours: Path, theirs: Path) -> bool:
    mine, others = (load_file(folder / "model/model.safetensors") for folder in (ours, theirs))
    return mine.keys() == others.keys() and all(
        torch.equal(value, mine[name]) for name, value in others.items()
    )


def test_dpo_makes_what_is_preferred_after_relabelling_likelier(
    trained: Path, policy: Path, pairs: Path
) -> None:
    ratios = _logprobs(trained, pairs) - _logprobs(policy, pairs)
    assert bool((ratios[:, 0] > ratios[:, 1] + 5).all())
    rows = read_metrics(trained.parent / "metrics.jsonl")
    assert len(rows) == 4 * 3  # 24 pairs, batches of 8
    # The policy starts as its reference: all implicit rewards are 0.
    assert rows[0]["loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert rows[0]["score_gap"] == pytest.approx(0.0, abs=1e-5)
    assert rows[-1]["accuracy"] == 1.0


def test_the_logged_rewards_are_those_of_the_policy_that_was_saved(
    tmp_path: Path, inputs: dict[str, Path], policy: Path, pairs: Path
) -> None:
    """One step at rate 0: beta times the log ratio to another reference, read back by hand."""
    train = TRAIN.model_copy(update={"learning_rate": 1e-12, "num_epochs": 1, "batch_size": 24})
    config = DPO.model_copy(update={"train": train, "beta": 0.3})
    other = run_stage("cpl", CPL, tmp_path / "other", **inputs)
    run_stage("dpo", config, tmp_path / "dpo", **inputs, reference=other)
    (row,) = read_metrics(tmp_path / "dpo" / "metrics.jsonl")
    rewards = 0.3 * (_logprobs(policy, pairs) - _logprobs(other, pairs)).mean(0)
    assert row["score_chosen"] == pytest.approx(float(rewards[0]), rel=1e-4)
    assert row["score_rejected"] == pytest.approx(float(rewards[1]), rel=1e-4)


def test_both_answers_behind_one_prompt_are_as_likely_as_alone(policy: Path, pairs: Path) -> None:
    model = load_policy(policy / "model")
    rows = read_pairs(pairs / "train.jsonl", load_tokenizer(policy / "model")).rows
    packed = logprob_rows(model, rows)
    for place in (0, 1):
        alone = [Candidates(row.prompt, (row.responses[place],)) for row in rows]
        torch.testing.assert_close(packed[:, place], logprob_rows(model, alone)[:, 0])


def test_labels_of_one_half_teach_nothing(
    tmp_path: Path, inputs: dict[str, Path], pairs: Path
) -> None:
    rows = [{**row, "label": 0.5} for row in read_rows(pairs / "train.jsonl")]
    write_rows(tmp_path / "pairs" / "train.jsonl", rows)
    inputs = {**inputs, "pairs": tmp_path / "pairs", "reference": inputs["policy"]}
    output = run_stage("dpo", DPO, tmp_path / "dpo", **read_by("dpo", **inputs))
    ratios = _logprobs(output, pairs) - _logprobs(inputs["policy"], pairs)
    assert float((ratios[:, 0] - ratios[:, 1]).abs().max()) < 1e-2


def test_cpl_learns_the_preference_and_its_bias_keeps_what_was_compared_likely(
    tmp_path: Path, inputs: dict[str, Path], policy: Path, pairs: Path
) -> None:
    start, means = _logprobs(policy, pairs), {}
    for bias in (1.0, 0.25):
        config = CPL.model_copy(update={"conservative_bias": bias})
        output = run_stage("cpl", config, tmp_path / str(bias), **inputs)
        found = _logprobs(output, pairs)
        gained = found - start
        assert bool((gained[:, 0] > gained[:, 1] + 3).all())
        means[bias] = float(found.mean())
    assert means[0.25] > means[1.0] + 1


# Each loss at a beta of about its paper's.
LOSSES: dict[str, dict[str, Any]] = {
    "robust": {"label_smoothing": 0.2},
    "hinge": {},
    "ipo": {"beta": 0.5},
    "kto": {},
    "simpo": {"beta": 2.0},
    "orpo": {"beta": 0.5},
}


def _with_loss(loss: str, **train: Any) -> DPOConfig:
    return DPOConfig(loss=loss, train=TRAIN.model_copy(update=train), **LOSSES[loss])


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_learns_the_preference(
    tmp_path: Path, inputs: dict[str, Path], policy: Path, pairs: Path, loss: str
) -> None:
    """People like the long answer here, which SFT finds the less likely one, a token too. Losses
    without a reference are given none."""
    turned = tmp_path / "turned"
    rows = read_rows(pairs / "train.jsonl")
    write_rows(
        turned / "train.jsonl", ({**row, "is_flipped": not row["is_flipped"]} for row in rows)
    )
    config = _with_loss(loss)
    inputs = {**inputs, "pairs": turned}
    if config.needs_reference:
        inputs["reference"] = policy
    output = run_stage("dpo", config, tmp_path, **inputs)
    gained = _logprobs(output, turned) - _logprobs(policy, turned)
    assert bool((gained[:, 0] > gained[:, 1] + 2).all())
    steps = read_metrics(tmp_path / "metrics.jsonl")
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert (steps[0]["accuracy"], steps[-1]["accuracy"]) == (0.0, 1.0)


@pytest.mark.parametrize("loss", ["sigmoid", "kto"])
def test_a_loss_that_needs_a_reference_says_so(
    tmp_path: Path, inputs: dict[str, Path], loss: str
) -> None:
    with pytest.raises(ValueError, match=f"reference: an input that the loss {loss} needs"):
        run_stage("dpo", DPO.model_copy(update={"loss": loss}), tmp_path, **inputs)


def test_what_a_loss_cannot_read_is_refused(
    tmp_path: Path, inputs: dict[str, Path], unbiased: Path, pairs: Path
) -> None:
    given = {**inputs, "reference": inputs["policy"]}
    with pytest.raises(ValueError, match=r"loss must not be robust on labels above 1, found 0\.2"):
        run_stage("dpo", _with_loss("robust"), tmp_path / "1", **{**given, "pairs": unbiased})
    rows = [{**row, "margin": -0.25} for row in read_rows(pairs / "train.jsonl")]
    write_rows(tmp_path / "pairs" / "train.jsonl", rows)
    with pytest.raises(ValueError, match=r"margins must be 0 where loss is kto, found up to 0\.25"):
        run_stage(
            "dpo", _with_loss("kto"), tmp_path / "2", **{**given, "pairs": tmp_path / "pairs"}
        )


def test_the_baseline_of_kto_is_that_of_its_batch(
    tmp_path: Path, inputs: dict[str, Path], policy: Path, pairs: Path
) -> None:
    """One step at rate 0: the mean log ratio of each prompt with the answers to the one before it,
    every text passed alone."""
    train = {"learning_rate": 1e-12, "num_epochs": 1, "batch_size": 24}
    # ORPO makes both answers likelier, so that the mean is above 0.
    start = run_stage("dpo", _with_loss("orpo"), tmp_path / "start", **inputs)
    given = {**inputs, "policy": start, "reference": policy}
    run_stage("dpo", _with_loss("kto", **train), tmp_path / "kto", **given)
    (row,) = read_metrics(tmp_path / "kto" / "metrics.jsonl")
    rows = read_pairs(pairs / "train.jsonl", load_tokenizer(policy / "model")).rows
    # All answers are one of two texts, whichever prompt they were for.
    alone = [Candidates(row.prompt, (text,)) for row in rows for text in rows[0].responses]
    ours, theirs = (logprob_rows(load_policy(of / "model"), alone) for of in (start, policy))
    expected = max(0.0, float((ours - theirs).mean()))
    assert expected > 0.1
    assert row["kl"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("like", "train"),
    [
        (DPO, {}),
        (DPO, {"lora": LoraConfig(rank=4)}),
        (CPL, {"trainable_layers": 1}),
        (_with_loss("kto"), {"dropout": 0.1, "trainable_layers": 1}),
        (_with_loss("orpo"), {}),
    ],
)
def test_goes_on_where_it_was_killed(
    tmp_path: Path,
    inputs: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    like: DPOConfig | CPLConfig,
    train: dict[str, Any],
) -> None:
    stage = "dpo" if isinstance(like, DPOConfig) else "cpl"
    config = like.model_copy(update={"train": TRAIN.model_copy(update=train)})
    inputs = read_by(stage, **inputs, reference=inputs["policy"])
    whole = run_stage(stage, config, tmp_path / "whole", **inputs)
    die_after(monkeypatch, loop, 7)
    with pytest.raises(Killed):
        run_stage(stage, config, tmp_path / "killed", **inputs)
    monkeypatch.undo()
    assert _same_weights(run_stage(stage, config, tmp_path / "killed", **inputs), whole)


@pytest.mark.slow
@pytest.mark.parametrize("zero", [None, ZeroConfig(stage=3)])
@pytest.mark.parametrize("like", [DPO, _with_loss("kto")], ids=["sigmoid", "kto"])
def test_two_ranks_learn_what_one_does(
    tmp_path: Path, inputs: dict[str, Path], like: DPOConfig, zero: ZeroConfig | None
) -> None:
    """With micro batches of a few pairs too: KTO's baseline is of the whole batch."""
    inputs = {**inputs, "reference": inputs["policy"]}
    run_stage("dpo", like, tmp_path / "alone", **inputs)
    train = TRAIN.model_copy(update={"zero": zero, "micro_batch_tokens": 64})
    config = like.model_copy(update={"train": train})
    launch(job(tmp_path / "ranks", config, tmp_path, 2, "dpo", inputs))
    ours, alone = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("ranks", "alone"))
    assert [row["step"] for row in ours] == [row["step"] for row in alone]
    for row, other in zip(ours[:5], alone, strict=False):
        assert row == pytest.approx(other, rel=1e-3, abs=1e-5)
