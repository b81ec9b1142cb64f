"""Losses and gradients of the stage `dpo` are those of TRL's trainers on the same batch.

DPOTrainer, KTOTrainer, CPOTrainer (SimPO) and ORPOTrainer of TRL 1.16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trimtab.models.config.policy import DPOConfig
from trimtab.models.config.training import TrainConfig
from trimtab.models.nets.loading import load_policy, load_tokenizer
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.stages.dpo import BaselineKL, _pair_arguments, _pair_loss
from trimtab.models.training.data import Pairs, context_length, read_pairs
from trimtab.models.training.learner import ReplicatedLearner
from trimtab.models.training.scoring import logprob_rows

BETA = 1.0
NUM_PAIRS = 24
PLAIN = {
    "bf16": False,
    "gradient_checkpointing": False,
    "use_cpu": True,
    "report_to": "none",
}


class Found(NamedTuple):
    loss: Tensor
    gradients: dict[str, Tensor]
    metrics: dict[str, float]


@pytest.fixture
def tokenizer(policy: Path) -> PreTrainedTokenizerBase:
    return load_tokenizer(policy / "model")


@pytest.fixture
def pairs(comparisons: Path, tokenizer: PreTrainedTokenizerBase) -> Pairs:
    """Pairs of different prompts."""
    every = read_pairs(comparisons / "train.jsonl", tokenizer, None)
    first = {prompt: place for place, prompt in reversed(list(enumerate(every.prompts)))}
    return every.subset(sorted(first.values())[:NUM_PAIRS])


@pytest.fixture
def reference(policy: Path) -> PreTrainedModel:
    return load_policy(policy / "model").eval()


@pytest.fixture
def model(policy: Path) -> PreTrainedModel:
    """The reference, moved: at its start every pair's loss is log 2."""
    moved = load_policy(policy / "model").eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for value in moved.parameters():
            value += 0.5 * value.std() * torch.randn_like(value)
    return moved


def _gradients(model: PreTrainedModel) -> dict[str, Tensor]:
    """The gradients, which are set to none."""
    found = {name: value.grad.clone() for name, value in model.named_parameters()}
    model.zero_grad()
    return found


def _ours(
    model: PreTrainedModel,
    reference: PreTrainedModel | None,
    pairs: Pairs,
    **config: Any,
) -> Found:
    """The loss of one batch of all pairs; reference: None where the loss has none."""
    settings = DPOConfig(**config)
    count = len(pairs.rows)
    ref_logprobs, baseline = torch.zeros(count, 2), None
    if reference is not None:
        ref_logprobs = logprob_rows(reference, pairs.rows)
    if settings.loss == "kto":
        assert reference is not None
        baseline = BaselineKL(reference, pairs.rows, [range(count)], context_length(model.config))
    loss_function = _pair_loss(model, settings, baseline)
    arguments = _pair_arguments(pairs, ref_logprobs, list(range(count)))
    metrics: dict[str, Tensor] = {}
    if baseline is None:
        loss, metrics = loss_function(pack(pairs.rows), arguments)
    else:
        learner = ReplicatedLearner(model, loss_function, TrainConfig(), 0.0, None)
        with baseline(0, learner) as of_step:
            loss, metrics = loss_function(pack(pairs.rows), arguments)
        metrics |= of_step
    loss.backward()
    numbers = {name: value.item() for name, value in metrics.items()}
    return Found(loss.detach(), _gradients(model), numbers)


def _trainer(kind: Any, config: Any, model: PreTrainedModel, rows: list[Any], **more: Any) -> Any:
    from datasets import Dataset  # which takes seconds to load: not where tests are collected

    return kind(model=model, args=config, train_dataset=Dataset.from_list(rows), **more)


def _text(pairs: Pairs) -> list[dict[str, str]]:
    return [
        {"prompt": row["prompt"], "chosen": f" {row['chosen']}", "rejected": f" {row['rejected']}"}
        for row in pairs.records
    ]


def _is_same(found: Found, theirs: Tensor, model: PreTrainedModel) -> None:
    """The loss to 1e-5, and all gradients."""
    theirs.backward()
    assert found.loss.item() == pytest.approx(theirs.item(), abs=1e-5)
    for name, gradient in _gradients(model).items():
        torch.testing.assert_close(found.gradients[name], gradient, rtol=1e-5, atol=2e-6, msg=name)


# TRL 1.16's plain loss takes no heed of label_smoothing; its `robust` one is another: with L that
# of right labels and W that of wrong ones, R = ((1 - e) L - e W) / (1 - 2 e). So the
# smoothed one, (1 - e) L + e W, is 2 (1 - e) L - (1 - 2 e) R, a weighting that TRL takes.
SMOOTHED = {"loss_type": ["sigmoid", "robust"], "loss_weights": [1.6, -0.6]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "how"),
    [
        ({}, {}),
        ({"label_smoothing": 0.2}, SMOOTHED),
        ({"loss": "robust", "label_smoothing": 0.2}, {"loss_type": ["robust"]}),
        ({"loss": "hinge"}, {"loss_type": ["hinge"]}),
        ({"loss": "ipo"}, {"loss_type": ["ipo"]}),
    ],
    ids=["sigmoid", "smoothed", "robust", "hinge", "ipo"],
)
def test_dpo_trainer(
    tmp_path: Path,
    pairs: Pairs,
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    reference: PreTrainedModel,
    config: dict[str, Any],
    how: dict[str, Any],
) -> None:
    from trl import DPOConfig as TheirConfig
    from trl import DPOTrainer

    found = _ours(model, reference, pairs, beta=BETA, **config)
    args = TheirConfig(
        output_dir=str(tmp_path),
        beta=BETA,
        label_smoothing=config.get("label_smoothing", 0.0),
        per_device_train_batch_size=NUM_PAIRS,
        **how,
        **PLAIN,
    )
    more = {"ref_model": reference, "processing_class": tokenizer}
    trainer = _trainer(DPOTrainer, args, model, _text(pairs), **more)
    (batch,) = trainer.get_train_dataloader()
    theirs = trainer.compute_loss(trainer.model.eval(), batch)
    assert abs(theirs.item() - math.log(2)) > 0.01
    _is_same(found, theirs, model)


@pytest.mark.slow
def test_kto_trainer(
    tmp_path: Path,
    pairs: Pairs,
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    reference: PreTrainedModel,
) -> None:
    """Of chosen answers and then of rejected ones each gets TRL the answer of the one before, which
    are those that a pair gets of the pair before. The moved model is the reference: z0 is above 0.
    """
    from trl import KTOConfig, KTOTrainer

    model, reference = reference, model
    weights = {"desirable_weight": 1.3, "undesirable_weight": 0.7}
    found = _ours(model, reference, pairs, loss="kto", beta=0.1, **weights)
    rows = [
        {"prompt": row["prompt"], "completion": row[key], "label": key == "chosen"}
        for key in ("chosen", "rejected")
        for row in _text(pairs)
    ]
    args = KTOConfig(
        output_dir=str(tmp_path),
        beta=0.1,
        per_device_train_batch_size=len(rows),
        **weights,
        **PLAIN,
    )
    more = {"ref_model": reference, "processing_class": tokenizer}
    trainer = _trainer(KTOTrainer, args, model, rows, **more)
    (batch,) = trainer.get_train_dataloader()
    theirs = trainer.compute_loss(trainer.model.eval(), batch)
    (kl,) = trainer._metrics["eval"]["kl"]
    assert kl > 0.1
    assert found.metrics["kl"] == pytest.approx(kl, abs=1e-4)
    _is_same(found, theirs, model)


def _padded(rows: Sequence[Candidates]) -> dict[str, Tensor]:
    """A batch as TRL's collator makes them, of the same tokens."""
    batch: dict[str, Tensor] = {}
    for place, name in enumerate(("chosen", "rejected")):
        texts = [torch.tensor([*row.prompt, *row.responses[place]]) for row in rows]
        labels = [text.clone() for text in texts]
        for row, label in zip(rows, labels, strict=True):
            label[: len(row.prompt)] = -100
        masks = [torch.ones_like(text) for text in texts]
        for key, values, padding in (
            ("input_ids", texts, 0),
            ("attention_mask", masks, 0),
            ("labels", labels, -100),
        ):
            batch[f"{name}_{key}"] = pad_sequence(values, batch_first=True, padding_value=padding)
    return batch


@pytest.mark.slow
def test_simpo_is_that_of_cpo_trainer(
    tmp_path: Path, pairs: Pairs, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel
) -> None:
    from trl.experimental.cpo import CPOConfig, CPOTrainer

    found = _ours(model, None, pairs, loss="simpo", beta=2.0, simpo_gamma=0.7)
    settings: dict[str, Any] = {"loss_type": "simpo", "simpo_gamma": 0.7, "cpo_alpha": 0.0}
    args = CPOConfig(output_dir=str(tmp_path), beta=2.0, **settings, **PLAIN)
    trainer = _trainer(CPOTrainer, args, model, _text(pairs), processing_class=tokenizer)
    theirs, metrics = trainer.get_batch_loss_metrics(model, _padded(pairs.rows))
    for ours, name in (("score_chosen", "chosen"), ("score_gap", "margins")):
        assert found.metrics[ours] == pytest.approx(metrics[f"rewards/{name}"], abs=1e-5)
    _is_same(found, theirs, model)


@pytest.mark.slow
def test_orpo_trainer(
    tmp_path: Path, pairs: Pairs, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel
) -> None:
    """The odds ratio of a batch; the whole loss where TRL's SFT term is that of the paper: of one
    pair at a time, whose prompt is one token."""
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    config: dict[str, Any] = {"loss": "orpo", "beta": 0.3}
    args = ORPOConfig(output_dir=str(tmp_path), beta=0.3, padding_value=0, **PLAIN)
    trainer = _trainer(ORPOTrainer, args, model, _text(pairs), processing_class=tokenizer)
    found = _ours(model, None, pairs, **config)
    _, metrics = trainer.get_batch_loss_metrics(model, _padded(pairs.rows))
    names = {
        "log_odds_ratio": "log_odds_ratio",
        "log_odds_chosen": "log_odds_chosen",
        "score_chosen": "rewards/chosen",
        "score_rejected": "rewards/rejected",
        "accuracy": "rewards/accuracies",
    }
    for ours, name in names.items():
        assert found.metrics[ours] == pytest.approx(metrics[name], abs=1e-5)

    rows = [Candidates(row.prompt[-1:], row.responses) for row in pairs.rows]
    alone = Pairs(pairs.records, rows, pairs.label, pairs.margin, pairs.weight)
    found = _ours(model, None, alone, **config)
    losses = [trainer.get_batch_loss_metrics(model, _padded([row]))[0] for row in rows]
    _is_same(found, torch.stack(losses).mean(), model)
