"""Rehearsal beside any optimiser: the gradient of its term, and what is kept by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from tests.models.conftest import run_stage
from tests.models.jobs import Killed, die_after, job, launch, read_by
from trimtab.models.config.policy import (
    CPLConfig,
    DPOConfig,
    HIRConfig,
    PolicyConfig,
    RejectionSamplingConfig,
    RestConfig,
)
from trimtab.models.config.training import TrainConfig, ZeroConfig
from trimtab.models.data.records import read_rows
from trimtab.models.functional.rehearsal import nll_loss
from trimtab.models.nets.freezing import freeze_lower_layers
from trimtab.models.nets.loading import load_policy, load_tokenizer
from trimtab.models.nets.packing import Candidates, PackedBatch, encode
from trimtab.models.nets.scoring import response_logprobs
from trimtab.models.training import loop
from trimtab.models.training.data import encode_dialogues, write_rows
from trimtab.models.training.learner import ReplicatedLearner, TrainingRows, built_ahead
from trimtab.models.training.nll_term import NLLTerm, rehearsal_of, with_term
from trimtab.models.training.progress import read_metrics
from trimtab.models.training.scoring import logprob_rows

GOOD, BAD, KEPT = "sure done", "well basically um", "okay maybe"
GRADES = ("zero", "ten")
TRAIN = TrainConfig(learning_rate=3e-3, batch_size=8, num_epochs=2, checkpoint_every=2)
REHEARSES: dict[str, Any] = {"train": TRAIN, "rehearsal_coef": 0.5, "rehearsal_batch": 5}
CONFIGS: dict[str, PolicyConfig] = {
    "dpo": DPOConfig(**REHEARSES),
    "cpl": CPLConfig(**REHEARSES),
    "rejection_sampling": RejectionSamplingConfig(**REHEARSES),
    "rest": RestConfig(**REHEARSES, thresholds=(0.5,)),
    "hir": HIRConfig(**REHEARSES, instructions=GRADES),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, world: Path, policy: Path) -> dict[str, Path]:
    """Pairs and graded answers to 16 prompts, and 9 other prompts to rehearse."""
    folder = tmp_path_factory.mktemp("inputs")
    prompts = [row["prompt"] for row in read_rows(world / "policy_prompts.jsonl")]
    prompts = list(dict.fromkeys(prompts))[:25]
    pairs = [
        {"id": prompt, "prompt": prompt, "chosen": GOOD, "rejected": BAD} for prompt in prompts[9:]
    ]
    answers = [
        {"prompt": prompt, "responses": [GOOD, BAD], "scores": [1 + 0.01 * number, -1.0]}
        for number, prompt in enumerate(prompts[9:])
    ]
    write_rows(folder / "train.jsonl", pairs)
    write_rows(folder / "answers.jsonl", answers)
    kept = [{"prompt": prompt, "response": KEPT} for prompt in prompts[:9]]
    write_rows(folder / "rehearsal.jsonl", kept)
    names = ("preferences", "responses_0", "rehearsal")
    return {"policy": policy, "reference": policy, **dict.fromkeys(names, folder)}


def _nll(model: PreTrainedModel, rows: list[Candidates]) -> Tensor:
    """Of all response tokens together, the mean: a forward pass of transformers a row."""
    found, count = torch.zeros(()), 0
    for row in rows:
        response = row.responses[0]
        logits = model(torch.tensor([row.prompt + response])).logits[0]
        logprobs = logits[len(row.prompt) - 1 : -1].log_softmax(-1)
        found = found - logprobs[range(len(response)), response].sum()
        count += len(response)
    return found / count


@pytest.mark.parametrize("upper", [None, 1])
def test_a_step_has_the_gradient_of_the_loss_plus_the_coefficient_times_the_nll(
    inputs: dict[str, Path], upper: int | None
) -> None:
    model = load_policy(inputs["policy"] / "model").eval()
    tokenizer = load_tokenizer(inputs["policy"] / "model")
    train = TRAIN.model_copy(update={"micro_batch_tokens": 60, "trainable_layers": upper})
    config = DPOConfig(train=train, rehearsal_coef=0.7, rehearsal_batch=6)
    nll_term = rehearsal_of(config, inputs, model, tokenizer)
    assert nll_term is not None
    drawn = nll_term.draw(torch.Generator().manual_seed(3))
    prompts = [row["prompt"] for row in read_rows(inputs["preferences"] / "train.jsonl")]
    rows = encode(tokenizer, prompts, [[GOOD]] * len(prompts))
    freeze_lower_layers(model, upper)

    def own_loss(batch: PackedBatch, indices: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        loss, _ = nll_loss(*response_logprobs(model, batch)[::2])
        return 2 * loss, {}

    learner = ReplicatedLearner(model, with_term(model, own_loss, NLLTerm), train, 0.0, None)
    weights = torch.tensor([float(len(row.responses[0])) for row in rows])
    data = TrainingRows(rows, weights)
    micro_batches = built_ahead(learner, data, [0, 3, 5, 7], 60)
    found = loop._gradient(learner, micro_batches, (nll_term, drawn), 60)
    learned = {name: value for name, value in model.named_parameters() if value.requires_grad}
    ours = {name: value.grad for name, value in learned.items()}

    model.zero_grad()
    own, kept = 2 * _nll(model, [rows[index] for index in (0, 3, 5, 7)]), _nll(model, drawn)
    (own + 0.7 * kept).backward()
    torch.testing.assert_close(found, {"loss": own.detach(), "rehearsal_loss": kept.detach()})
    for name, value in learned.items():
        torch.testing.assert_close(ours[name], value.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_a_coefficient_a_response_weighs_the_sum_over_tokens(inputs: dict[str, Path]) -> None:
    """[AM eq. 9]: gamma times the mean over responses of -sum_t log pi."""
    model = load_policy(inputs["policy"] / "model").eval()
    rows = [Candidates([7, 8, 9], (list(range(10, 10 + length)),)) for length in (2, 5, 11)]
    learner = ReplicatedLearner(model, with_term(model, lambda *_: None, NLLTerm), TRAIN, 0.0, None)
    NLLTerm(rows, 0.01, 3, unit="response").accumulate(learner, rows, 10, is_last=True)
    ours = {name: value.grad.clone() for name, value in model.named_parameters()}

    model.zero_grad()
    total = _nll(model, rows) * (2 + 5 + 11)  # the sum over all tokens
    (0.01 * total / 3).backward()
    for name, value in model.named_parameters():
        torch.testing.assert_close(ours[name], value.grad, rtol=1e-4, atol=1e-6, msg=name)


def _kept(output: Path, inputs: dict[str, Path], behind: str) -> float:
    """Mean log-probability of what is rehearsed."""
    rows = read_rows(inputs["rehearsal"] / "rehearsal.jsonl")
    tokenizer = load_tokenizer(output / "model")
    prompts = [row["prompt"] + behind for row in rows]
    encoded = encode(tokenizer, prompts, [[row["response"]] for row in rows])
    return float(logprob_rows(load_policy(output / "model"), encoded).mean())


@pytest.mark.parametrize("stage", CONFIGS)
def test_every_optimiser_keeps_likelier_what_it_rehearses(
    tmp_path: Path, inputs: dict[str, Path], stage: str
) -> None:
    config, behind = CONFIGS[stage], f" {GRADES[-1]}" if stage == "hir" else ""
    found, amounts = [], []
    for coefficient in (0.0, 1.0):
        changed = config.model_copy(update={"rehearsal_coef": coefficient})
        folder = tmp_path / str(coefficient)
        output = run_stage(stage, changed, folder, **read_by(stage, **inputs))
        found.append(_kept(output, inputs, behind))
        amounts.append(json.loads((output / "summary.json").read_text()))
        rows = read_metrics(folder / "metrics.jsonl")
        assert all(("rehearsal_loss" in row) == (coefficient > 0) for row in rows)
    assert found[1] > found[0] + 1
    # Any of the rehearsed has at least a token to read, and the answer's two with its end.
    more = amounts[1]["num_trained_tokens"] - amounts[0]["num_trained_tokens"]
    assert amounts[0]["num_updates"] == amounts[1]["num_updates"]
    assert more > amounts[1]["num_updates"] * 5 * 4


def test_goes_on_with_the_same_draws(
    tmp_path: Path, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_stage("dpo", CONFIGS["dpo"], tmp_path / "whole", **read_by("dpo", **inputs))
    die_after(monkeypatch, loop, 3)
    with pytest.raises(Killed):
        run_stage("dpo", CONFIGS["dpo"], tmp_path / "killed", **read_by("dpo", **inputs))
    monkeypatch.undo()
    again = run_stage("dpo", CONFIGS["dpo"], tmp_path / "killed", **read_by("dpo", **inputs))
    ours, theirs = (load_file(out / "model/model.safetensors") for out in (again, whole))
    assert all(torch.equal(value, ours[name]) for name, value in theirs.items())
    assert json.loads((again / "summary.json").read_text()) == json.loads(
        (whole / "summary.json").read_text()
    )


def test_draws_are_of_all_rows_and_differ_by_step_and_seed(inputs: dict[str, Path]) -> None:
    tokenizer = load_tokenizer(inputs["policy"] / "model")
    rows = encode_dialogues(inputs["rehearsal"] / "rehearsal.jsonl", tokenizer)
    nll_term = NLLTerm(rows, 1.0, 4)
    first, second = (loop._draws(nll_term, 40, seed) for seed in (0, 1))
    assert first == loop._draws(nll_term, 40, 0) != second
    drawn = [tuple(row.prompt) for each in first if each is not None for row in each[1]]
    assert len(drawn) == 40 * 4
    assert set(drawn) == {tuple(row.prompt) for row in rows}
    assert first[0] != first[1]


@pytest.mark.slow
@pytest.mark.parametrize("zero", [None, ZeroConfig(stage=2)])
def test_two_ranks_rehearse_what_one_does(
    tmp_path: Path, inputs: dict[str, Path], zero: ZeroConfig | None
) -> None:
    run_stage("dpo", CONFIGS["dpo"], tmp_path / "alone", **read_by("dpo", **inputs))
    config = CONFIGS["dpo"]
    config = config.model_copy(update={"train": TRAIN.model_copy(update={"zero": zero})})
    launch(job(tmp_path / "both", config, tmp_path, 2, "dpo", inputs))
    both, alone = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("both", "alone"))
    assert len(both) == len(alone) == 4
    for row, other in zip(both, alone, strict=True):
        assert row == pytest.approx(other, rel=1e-3, abs=1e-5)
