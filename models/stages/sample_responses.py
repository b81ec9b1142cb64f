"""Stage `sample_responses`: several answers of a policy to each prompt, with their scores.

What rejection sampling, ReST (there it is called Grow) and HIR learn from. A stage of its own, so
that what follows can be changed, or killed, without sampling again.
"""

from __future__ import annotations

import random

import torch

from trimtab.models.config.policy import SampleResponsesConfig
from trimtab.models.data.records import read_rows
from trimtab.models.nets import counts
from trimtab.models.nets.generation import Sampling
from trimtab.models.rewards.reward import score_by
from trimtab.models.training import distributed
from trimtab.models.training.data import with_columns
from trimtab.models.training.progress import Progress
from trimtab.models.training.sampling import respond_often
from trimtab.models.training.stage import Stage
from trimtab.models.training.vllm_sampler import vllm_sampler


def run(config: SampleResponsesConfig, stage: Stage) -> None:
    """Inputs: `data` (policy_prompts.jsonl), `policy`, `scorer`.

    Output: answers.jsonl, a row a prompt with its `responses` and their `scores`.
    """
    prompts = stage.rows("data", "policy_prompts.jsonl")
    count = counts.num_taken(len(prompts), config.num_prompts)
    drawn = random.Random(f"answers/{config.seed}").sample(prompts, count)
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
    scores = score_by(stage, "scorer", config.seed, drawn, answers)
    distributed.leave()
    rows = with_columns(drawn, {"responses": answers, "scores": scores})
    stage.write_rows("answers.jsonl", rows)
    stage.write_summary(
        {
            "num_sampled": scores.numel(),
            "score": float(scores.mean()),
            "best_score": float(scores.amax(1).mean()),
            "distinct": sum(len(set(texts)) for texts in answers) / scores.numel(),
        }
    )


def read_samples(stage: Stage) -> tuple[list[str], list[str], list[float]]:
    """Prompt, response and score of every sample in `responses_0`, `responses_1`, ..., in order."""
    rows = [
        row for folder in stage.several("responses") for row in read_rows(folder / "answers.jsonl")
    ]
    return (
        [row["prompt"] for row in rows for _ in row["responses"]],
        [response for row in rows for response in row["responses"]],
        [score for row in rows for score in row["scores"]],
    )
