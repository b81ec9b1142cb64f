"""Stage `sample_responses`: several answers of a policy to each prompt, with their scores.

What rejection sampling, ReST (there it is called Grow) and HIR learn from. A stage of its own, so
that what follows can be changed, or killed, without sampling again.
"""

from __future__ import annotations

import random

import torch

from trimtab.models.config.policy import SampleResponsesConfig
from trimtab.models.nets import counts
from trimtab.models.nets.generation import Sampling
from trimtab.models.training import distributed
from trimtab.models.training.data import read_rows
from trimtab.models.training.progress import Progress
from trimtab.models.training.sampling import respond_often
from trimtab.models.training.scoring import score_answers
from trimtab.models.training.stage import Row, Stage
from trimtab.models.training.vllm_sampler import vllm_sampler


def run(config: SampleResponsesConfig, stage: Stage) -> None:
    """Inputs: `data` (policy_prompts.jsonl), `policy`, `scorer`.

    Output: answers.jsonl, a row a prompt with its `responses` and their `scores`.
    """
    rows = stage.rows("data", "policy_prompts.jsonl")
    count = counts.num_taken(len(rows), config.num_prompts)
    drawn = random.Random(f"answers/{config.seed}").sample(rows, count)
    sampling = Sampling(
        config.temperature, config.max_new_tokens, config.top_p, instruction=config.instruction
    )
    policy, tokenizer = stage.policy("policy", is_frozen=True)
    with vllm_sampler(config, stage.workdir):
        answers = respond_often(
            policy,
            tokenizer,
            [row["prompt"] for row in drawn],
            config.num_responses,
            sampling,
            torch.Generator().manual_seed(config.seed),
            Progress(stage.workdir),
        )
    scores = score_answers(stage.scorer("scorer"), tokenizer, drawn, answers)
    distributed.leave()
    columns = zip(drawn, answers, scores.tolist(), strict=True)
    stage.write_rows(
        "answers.jsonl",
        ({**row, "responses": texts, "scores": own} for row, texts, own in columns),
    )
    stage.write_summary(
        {
            "num_sampled": scores.numel(),
            "score": float(scores.mean()),
            "best_score": float(scores.amax(1).mean()),
            "distinct": sum(len(set(texts)) for texts in answers) / scores.numel(),
        }
    )


def read_answers(stage: Stage) -> list[list[Row]]:
    """The rows of the artifacts `responses_0`, `responses_1`, ... in this order."""
    return [read_rows(folder / "answers.jsonl") for folder in stage.several("responses")]
