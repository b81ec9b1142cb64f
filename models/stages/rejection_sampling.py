"""Stage `rejection_sampling`: fine-tune a policy on its best answer to each prompt.

[LLAMA2] Touvron et al., Llama 2: Open Foundation and Fine-Tuned Chat Models, 2023,
arXiv 2307.09288, section 3.2.3.

Deviations:
1. The paper adjusts the sampling temperature from iteration to iteration; here it stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from trimtab.models.config.policy import RejectionSamplingConfig
from trimtab.models.functional.best_of_n import best_of
from trimtab.models.nets.packing import encode
from trimtab.models.stages.sample_responses import read_answers
from trimtab.models.training.data import context_length
from trimtab.models.training.imitation import imitated_rows, imitation_loss, train_policy
from trimtab.models.training.stage import Stage


class Best(NamedTuple):
    """The best answer to a prompt, and its score."""

    response: str
    score: float


def run(config: RejectionSamplingConfig, stage: Stage) -> None:
    """Inputs: `policy` (start), `responses_0` and maybe more;
    `rehearsal` where it has a coefficient.

    Output: model/.
    """
    model, tokenizer = stage.policy("policy")
    best = best_answers(read_answers(stage))
    responses = [[each.response] for each in best.values()]
    rows = encode(tokenizer, list(best), responses, context_length(model.config))
    data, loss_function = imitated_rows(rows), imitation_loss(model)
    summary = train_policy(config, stage, model, tokenizer, data, loss_function)
    stage.write_model(model, tokenizer)
    score = sum(each.score for each in best.values()) / len(best)
    stage.write_summary({**summary, "num_examples": len(best), "score_kept": score})


def best_answers(sampled: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Best]:
    """The best of all samples of a prompt, by prompt; of equal ones the earliest."""
    best: dict[str, Best] = {}
    for rows in sampled:
        places = best_of(torch.tensor([row["scores"] for row in rows], dtype=torch.float64))
        for row, place in zip(rows, places.tolist(), strict=True):
            found = Best(row["responses"][place], row["scores"][place])
            so_far = best.get(row["prompt"])
            if so_far is None or found.score > so_far.score:
                best[row["prompt"]] = found
    return best
