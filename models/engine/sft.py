"""Stage `sft`: supervised fine-tuning on demonstrations, loss on response tokens only."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from models.config import SFTConfig
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
    """Inputs: `data` (demonstrations.jsonl and, from scratch, tokenizer/). Output: model/."""
    base = config.model.base
    tokenizer = load_base_tokenizer(base or str(inputs["data"] / "tokenizer"))
    torch.manual_seed(config.seed)
    model = build_policy(config.model, tokenizer)
    rows = encode_dialogues(
        inputs["data"] / "demonstrations.jsonl", tokenizer, config.model.max_length
    )

    def loss_function(batch: PackedBatch, indices: Tensor) -> tuple[Tensor, Metrics]:
        logprobs, entropies, response_mask = response_logprobs(model, batch)
        loss, _ = nll_loss(logprobs, response_mask)
        entropy = entropies.sum() / response_mask.sum()
        return loss, {"entropy": entropy}

    summary = fit(
        model,
        rows,
        torch.tensor([float(len(row.responses[0])) for row in rows]),
        loss_function,
        config.train,
        seed=config.seed,
        workdir=workdir,
    )
    save_model(model, tokenizer, workdir / "output" / "model")
    write_json(workdir / "output" / "summary.json", summary)
