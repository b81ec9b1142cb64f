"""Stage `rejection_sampling`: fine-tune a policy on its best answer to each prompt.

[LLAMA2] Touvron et al., Llama 2: Open Foundation and Fine-Tuned Chat Models, 2023,
arXiv 2307.09288, section 3.2.3.

Deviations:
1. The paper adjusts the sampling temperature from iteration to iteration; here it stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from trimtab.models.config.policy import RejectionSamplingConfig
from trimtab.models.nets.packing import encode
from trimtab.models.stages.sample_responses import read_samples
from trimtab.models.training.data import context_length
from trimtab.models.training.imitation import imitated_rows, imitation_loss, train_policy
from trimtab.models.training.stage import Stage


def run(config: RejectionSamplingConfig, stage: Stage) -> None:
    """Inputs: `policy` (start), `responses_0` and maybe more;
    `rehearsal` where it has a coefficient.

    Output: model/.
    """
    model, tokenizer = stage.policy("policy")
    best = best_answers(*read_samples(stage))
    responses = [[response] for response, _ in best.values()]
    rows = encode(tokenizer, list(best), responses, context_length(model.config))
    data, loss_function = imitated_rows(rows), imitation_loss(model)
    summary = train_policy(config, stage, model, tokenizer, data, loss_function)
    mean_score = sum(score for _, score in best.values()) / len(best)
    stage.write_summary({**summary, "num_examples": len(best), "score_kept": mean_score})


def best_answers(
    prompts: Sequence[str], responses: Sequence[str], scores: Sequence[float]
) -> dict[str, tuple[str, float]]:
    """The best of all samples of a prompt, with its score; of equal ones the earliest.

    Raises ValueError for a score that is NaN.
    """
    if any(map(math.isnan, scores)):
        raise ValueError("best_answers: scores hold NaN; score the answers again")
    best: dict[str, tuple[str, float]] = {}
    for prompt, response, score in zip(prompts, responses, scores, strict=True):
        if prompt not in best or score > best[prompt][1]:
            best[prompt] = response, score
    return best
