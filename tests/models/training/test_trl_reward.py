"""TRL's RewardTrainer with our losses: with nothing set TRL's own, else the papers' formulas."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import trl
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.models.judge.tiny import save_tiny
from trimtab.models.training.reward_function import RewardModel
from trimtab.models.training.trl_reward import RewardConfig, RewardTrainer, treat_labels

PAIRS = [
    {"prompt": f"Number {n}?", "chosen": f" It is {n}{'!' * n}", "rejected": f" No, {n * n}."}
    for n in range(6)
]
PROBABILITIES, WEIGHTS = [0.9, 0.5, 1.0, 0.7, 0.2, 1.0], [1.0, 0.25, 2.0, 0.0, 1.0, 1.0]
MARGINS = [0.3, -0.2, 0.0, 0.5, 0.1, -0.4]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("base"))


def _args(kind: Any, folder: Path, **settings: Any) -> Any:
    return kind(
        output_dir=str(folder), use_cpu=True, bf16=False, report_to="none", save_strategy="no",
        gradient_checkpointing=False, per_device_train_batch_size=6, max_steps=3, logging_steps=1,
        learning_rate=1e-3, disable_tqdm=True, **settings,
    )  # fmt: skip


@pytest.mark.parametrize("setting", ["loss_type", "smooth"])
def test_a_choice_that_there_is_not_is_refused(tmp_path: Path, setting: str) -> None:
    with pytest.raises(ValueError, match=f"{setting}: found 'advantages'; allowed: "):
        _args(RewardConfig, tmp_path, **{setting: "advantages"})


def _trained(trainer: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    return losses, {name: value.clone() for name, value in trainer.model.state_dict().items()}


@pytest.mark.slow
def test_with_nothing_set_it_is_trl_s_own(base: Path, tmp_path: Path) -> None:
    """With TRL's column `margin` too, and rewards that are centred."""
    rows = [{**pair, "margin": margin} for pair, margin in zip(PAIRS, MARGINS, strict=True)]
    runs = [
        _trained(
            trainer(
                str(base),
                _args(config, tmp_path, center_rewards_coefficient=0.01),
                train_dataset=Dataset.from_list(rows),
            )
        )
        for trainer, config in (
            (trl.RewardTrainer, trl.RewardConfig),
            (RewardTrainer, RewardConfig),
        )
    ]
    assert runs[0][0] == runs[1][0] and len(runs[0][0]) == 3
    assert runs[0][1].keys() == runs[1][1].keys()
    assert all(torch.equal(runs[0][1][name], runs[1][1][name]) for name in runs[0][1])


def _log_sigmoid(value: float) -> float:
    return -math.log1p(math.exp(-value))


def _mean(losses: list[float]) -> float:
    total = sum(weight * loss for weight, loss in zip(WEIGHTS, losses, strict=True))
    return total / sum(WEIGHTS)


def _batch(trainer: RewardTrainer) -> dict[str, Any]:
    """All pairs in their order."""
    examples = [dict(example) for example in trainer.train_dataset]
    batch: dict[str, Any] = trainer.data_collator(examples)
    return batch


def _trainer(base: Path, folder: Path, rows: list[dict[str, Any]], **settings: Any) -> Any:
    args = _args(RewardConfig, folder, **settings)
    return RewardTrainer(str(base), args, train_dataset=Dataset.from_list(rows))


def _treated() -> list[dict[str, Any]]:
    return [
        {**pair, "probability": probability, "weight": weight, "margin": margin}
        for pair, probability, weight, margin in zip(
            PAIRS, PROBABILITIES, WEIGHTS, MARGINS, strict=True
        )
    ]


def _gaps(trainer: Any, batch: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Rewards of both answers, each text by itself."""
    model, count = trainer.model.eval(), len(batch["input_ids"]) // 2
    rewards = []
    for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        with torch.no_grad():
            rewards.append(float(model(ids[mask.bool()][None]).logits[0, 0]))
    return rewards[:count], rewards[count:]


@pytest.mark.slow
def test_labels_margins_and_weights_are_in_the_loss(base: Path, tmp_path: Path) -> None:
    """-[p log sigmoid(d - m) + (1 - p) log sigmoid(m - d)], weighted [RM eq. 5 and 6]."""
    trainer = _trainer(base, tmp_path, _treated())
    batch = _batch(trainer)
    chosen, rejected = _gaps(trainer, batch)
    losses = [
        -p * _log_sigmoid(c - r - m) - (1 - p) * _log_sigmoid(m - c + r)
        for c, r, p, m in zip(chosen, rejected, PROBABILITIES, MARGINS, strict=True)
    ]
    loss = trainer.compute_loss(trainer.model, batch)
    assert float(loss.detach()) == pytest.approx(_mean(losses), abs=1e-5)
    assert trainer._metrics["eval"]["accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("pad", [0, 1])
def test_what_trl_trained_on_text_is_scored_at_the_end_token(
    base: Path, tmp_path: Path, pad: int
) -> None:
    """By the tokens of TRL's trainer, though the tokenizer had a chat template; padded with the end
    token, the one before it is read."""
    theirs = AutoTokenizer.from_pretrained(base)
    args = _args(RewardConfig, tmp_path)
    trainer = RewardTrainer(
        str(base), args, train_dataset=Dataset.from_list(PAIRS), processing_class=theirs
    )
    assert theirs.chat_template
    trainer.model.config.pad_token_id = pad
    chosen, rejected = _gaps(trainer, _batch(trainer))
    tokenizer = trainer.processing_class
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(pad)
    trainer.save_model(str(tmp_path / "saved"))
    reward = RewardModel.load(tmp_path / "saved")
    for name, expected in (("chosen", chosen), ("rejected", rejected)):
        scores = reward.score([(pair["prompt"], pair[name]) for pair in PAIRS])
        assert scores.tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "messages", "no prompt"])
def test_the_advantage_model_s_loss(base: Path, tmp_path: Path, form: str) -> None:
    """[AM eq. 6] with soft labels: the expectation over which answer is the better one."""
    rows = _treated()
    if form == "messages":
        for row in rows:
            row["prompt"] = [{"role": "user", "content": row["prompt"]}]
            for name in ("chosen", "rejected"):
                row[name] = [{"role": "assistant", "content": row[name]}]
    if form == "no prompt":
        for row in rows:
            prompt = row.pop("prompt")
            row |= {name: prompt + row[name] for name in ("chosen", "rejected")}
    trainer = _trainer(base, tmp_path, rows, loss_type="advantage", advantage_margin=1.5)
    batch = _batch(trainer)
    model, tokenizer = trainer.model.eval(), AutoTokenizer.from_pretrained(base)
    chosen, rejected = _gaps(trainer, batch)
    expected = []
    for row, pair in zip(rows, PAIRS, strict=True):
        text = pair["prompt"]
        if form == "messages":
            text = tokenizer.apply_chat_template(
                row["prompt"], add_generation_prompt=True, tokenize=False
            )
        if form == "no prompt":
            text += " "  # with which both answers begin
        ids = tokenizer(text, return_tensors="pt").input_ids
        with torch.no_grad():
            states = model.model(ids).last_hidden_state
            expected.append(float(model.expected_reward(states)[0, -1, 0]))
    losses = []
    for c, r, e, p, m in zip(chosen, rejected, expected, PROBABILITIES, MARGINS, strict=True):
        ranking = p * _log_sigmoid(c - r - m) + (1 - p) * _log_sigmoid(m - c + r)
        right = _log_sigmoid(1.5 - (c - e)) + _log_sigmoid(1.5 + (r - e))
        wrong = _log_sigmoid(1.5 - (r - e)) + _log_sigmoid(1.5 + (c - e))
        losses.append(-(ranking + p * right + (1 - p) * wrong))
    loss = trainer.compute_loss(trainer.model, batch)
    assert float(loss.detach()) == pytest.approx(_mean(losses), abs=1e-5)
    loss.backward()
    assert model.expected_reward.weight.grad.abs().sum() > 0
    assert max(expected) - min(expected) > 1e-3


@pytest.mark.slow
def test_an_advantage_model_is_trained_and_read_by_others(base: Path, tmp_path: Path) -> None:
    trainer = _trainer(base, tmp_path, PAIRS, loss_type="advantage")
    before = trainer.model.expected_reward.weight.detach().clone()
    losses, weights = _trained(trainer)
    assert losses[-1] < losses[0]
    assert not torch.equal(before, weights["expected_reward.weight"])
    trainer.save_model(str(tmp_path / "saved"))
    read = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").eval()
    ids = AutoTokenizer.from_pretrained(base)("Number 3?", return_tensors="pt").input_ids
    with torch.no_grad():
        assert torch.equal(read(ids).logits, trainer.model.eval()(ids).logits)
    assert read.config.num_labels == 1


def _labelled(**settings: Any) -> Any:
    args = RewardConfig("unused", use_cpu=True, bf16=False, **settings)
    rows = [{**pair, "strength": s} for pair, s in zip(PAIRS, (2, -1, 0.1, -3, 5, 0), strict=True)]
    return treat_labels(Dataset.from_list(rows), args)


def test_labels_are_treated_by_their_strength() -> None:
    """Flips of what is below -0.5, and margins of the order after the flip, by hand."""
    treated = _labelled(flip_below=-0.5, margin_scale=0.5, margin_clip=0.75)
    flipped = [n for n, row in enumerate(treated) if row["chosen"] == PAIRS[n]["rejected"]]
    assert flipped == [1, 3]
    assert [row["rejected"] for row in treated][1] == PAIRS[1]["chosen"]
    assert treated["margin"] == pytest.approx([0.75, 0.5, 0.05, 0.75, 0.75, 0.0])
    assert treated["probability"] == [1.0] * 6
    smoothed = _labelled(smoothing=0.2, smooth="negative", flip_below=-2.0)
    assert smoothed["probability"] == pytest.approx([1, 0.8, 1, 1, 1, 1])
    assert "margin" not in smoothed.column_names
    assert _labelled().column_names == ["prompt", "chosen", "rejected", "strength"]


@pytest.mark.parametrize(
    ("rows", "settings", "words"),
    [
        (PAIRS, {"flip_below": 0.0}, "flip_below: found no column `strength`"),
        (PAIRS, {"smoothing": 0.1, "smooth": "negative"}, "smoothing: found no column `strength`"),
        (_treated(), {"smoothing": 0.1}, "smoothing: found the columns probability, margin; all"),
        (PAIRS, {"smoothing": 0.7}, r"smoothing must be in \[0, 0.5\], found 0.7"),
    ],
)
def test_labels_that_cannot_be_treated_so_are_refused(
    rows: list[dict[str, Any]], settings: dict[str, Any], words: str
) -> None:
    args = RewardConfig("unused", use_cpu=True, bf16=False, **settings)
    with pytest.raises(ValueError, match=words):
        treat_labels(Dataset.from_list(rows), args)


def test_smoothing_needs_no_strength() -> None:
    args = RewardConfig("unused", use_cpu=True, bf16=False, smoothing=0.1)
    assert treat_labels(Dataset.from_list(PAIRS), args)["probability"] == [0.9] * 6


def test_an_advantage_model_has_no_adapters(base: Path, tmp_path: Path) -> None:
    args = _args(RewardConfig, tmp_path, loss_type="advantage")
    with pytest.raises(ValueError, match="found peft_config; allowed: none"):
        RewardTrainer(str(base), args, train_dataset=Dataset.from_list(PAIRS), peft_config=object())
    args.fsdp = ["full_shard"]
    with pytest.raises(ValueError, match="found fsdp or deepspeed; allowed: weights"):
        RewardTrainer(str(base), args, train_dataset=Dataset.from_list(PAIRS))


@pytest.mark.slow
def test_an_advantage_model_is_trained_on_two_ranks(base: Path, tmp_path: Path) -> None:
    """As on one: DDP would wait for e(x), which no output of the forward pass comes from."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(script), str(base), str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    torch.manual_seed(0)
    trainer = _trainer(base, tmp_path, PAIRS, loss_type="advantage", optim="sgd")
    before = trainer.model.state_dict()["expected_reward.weight"].clone()
    alone = _trained(trainer)[1]["expected_reward.weight"]
    both = torch.load(tmp_path / "weights.pt", weights_only=True)
    assert not torch.equal(alone, before)
    torch.testing.assert_close(both - before, alone - before, atol=1e-6, rtol=1e-3)


TRAIN = """
import sys
from pathlib import Path

import torch
from datasets import Dataset

from tests.models.training.test_trl_reward import PAIRS, _args
from trimtab.trl import RewardConfig, RewardTrainer

base, folder = sys.argv[1:]
args = _args(RewardConfig, Path(folder) / "out", loss_type="advantage", optim="sgd")
args.per_device_train_batch_size = 3
torch.manual_seed(0)
trainer = RewardTrainer(base, args, train_dataset=Dataset.from_list(PAIRS))
trainer.train()
if trainer.accelerator.is_main_process:
    torch.save(trainer.model.state_dict()["expected_reward.weight"], Path(folder) / "weights.pt")
"""
