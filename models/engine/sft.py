"""Stage `sft`: supervised fine-tuning on demonstrations, loss on response tokens only."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from models.config import SFTConfig
from models.engine import ranks
from models.engine.data import encode_dialogues
from models.engine.learners import Metrics
from models.engine.loop import fit
from models.engine.progress import write_json
from models.functional.rehearsal import nll_loss
from models.nets.loading import build_policy, save_model
from models.nets.packaged import load_base_tokenizer
from models.nets.packing import PackedBatch
from models.nets.scoring import response_logprobs

CONFIG = SFTConfig


def run(config: SFTConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Inputs: `data` (demonstrations.jsonl and, from scratch, tokenizer/). Output: model/.

    Without `fine_tune` the model is the base, from scratch the untrained one.
    """
    base = config.model.base
    tokenizer = load_base_tokenizer(base or str(inputs["data"] / "tokenizer"))
    torch.manual_seed(config.seed)
    model = build_policy(config.model, tokenizer)
    summary: dict[str, float] = {}
    if config.fine_tune:
        summary = _fit(config, model, tokenizer, inputs["data"], workdir)
    else:
        ranks.leave()
    save_model(model, tokenizer, workdir / "output" / "model")
    write_json(workdir / "output" / "summary.json", summary)


def _fit(
    config: SFTConfig,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    data: Path,
    workdir: Path,
) -> dict[str, float]:
    """Train on the demonstrations; returns the summary."""
    rows = encode_dialogues(data / "demonstrations.jsonl", tokenizer, config.model.max_length)

    def loss_function(batch: PackedBatch, indices: Tensor) -> tuple[Tensor, Metrics]:
        logprobs, entropies, response_mask = response_logprobs(model, batch)
        loss, _ = nll_loss(logprobs, response_mask)
        entropy = entropies.detach().sum() / response_mask.sum()
        return loss, {"entropy": entropy}

    return fit(
        model,
        rows,
        torch.tensor([float(len(row.responses[0])) for row in rows]),
        loss_function,
        config.train,
        seed=config.seed,
        workdir=workdir,
    )
