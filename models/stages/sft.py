"""Stage `sft`: supervised fine-tuning on demonstrations, loss on response tokens only."""

from __future__ import annotations

import torch

from trimtab.models.config.training import SFTConfig
from trimtab.models.nets.loading import build_policy, gguf_of, load_tokenizer
from trimtab.models.nets.supported import check_trainable
from trimtab.models.training import distributed
from trimtab.models.training.data import context_length, encode_dialogues
from trimtab.models.training.imitation import imitate
from trimtab.models.training.stage import Stage


def run(config: SFTConfig, stage: Stage) -> None:
    """Inputs: `data` (demonstrations.jsonl and, from scratch, tokenizer/). Output: model/.

    Without `fine_tune`, model/ is the base model; without a base, the untrained one.
    """
    base = config.model.base
    tokenizer = load_tokenizer(base or stage.inputs["data"] / "tokenizer")
    if base is not None and gguf_of(base) is None:
        check_trainable(base, tokenizer)
    torch.manual_seed(config.seed)
    model = build_policy(config.model, tokenizer)
    summary: dict[str, float] = {}
    if config.fine_tune:
        path = stage.inputs["data"] / "demonstrations.jsonl"
        longest = min(config.model.max_length, context_length(model.config))
        rows = encode_dialogues(path, tokenizer, longest)
        # imitate also leaves the ranks and writes model/.
        summary = imitate(stage, model, tokenizer, rows, config.train, config.seed)
    else:
        distributed.leave()
        stage.write_model(model, tokenizer)
    stage.write_summary(summary)
