"""Stage `sample_responses`: several answers of a policy to each prompt, with their scores.

What rejection sampling, ReST (there it is called Grow) and HIR learn from. A stage of its own, so
that what follows can be changed, or killed, without sampling again.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trimtab.models import counts
from trimtab.models.config.policy import SampleResponsesConfig
from trimtab.models.nets.generation import Sampling
from trimtab.models.nets.loading import load_policy, load_scorer, load_tokenizer
from trimtab.models.training import distributed
from trimtab.models.training.data import read_rows, write_rows
from trimtab.models.training.progress import Progress, write_json
from trimtab.models.training.sampling import encode_prompts, respond_often
from trimtab.models.training.scoring import score_answers
from trimtab.models.training.vllm_sampler import vllm_sampler


def run(config: SampleResponsesConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Inputs: `data` (policy_prompts.jsonl), `policy`, `scorer`.

    Output: answers.jsonl, a row a prompt with its `responses` and their `scores`.
    """
    rows = read_rows(inputs["data"] / "policy_prompts.jsonl")
    count = counts.num_taken(len(rows), config.num_prompts)
    drawn = random.Random(f"answers/{config.seed}").sample(rows, count)
    prompts = [row["prompt"] for row in drawn]
    tokenizer = load_tokenizer(inputs["policy"] / "model")
    policy = load_policy(inputs["policy"] / "model", is_frozen=True)
    with vllm_sampler(config, workdir):
        answers = respond_often(
            policy,
            tokenizer,
            encode_prompts(policy, tokenizer, prompts, config.max_new_tokens, config.instruction),
            config.num_responses,
            Sampling(config.temperature, config.max_new_tokens, config.top_p),
            torch.Generator().manual_seed(config.seed),
            Progress(workdir),
        )
    scorer = load_scorer(inputs["scorer"] / "model", is_frozen=True)
    scores = score_answers(scorer, tokenizer, drawn, answers)
    distributed.leave()
    columns = zip(drawn, answers, scores.tolist(), strict=True)
    write_rows(
        workdir / "output" / "answers.jsonl",
        ({**row, "responses": texts, "scores": own} for row, texts, own in columns),
    )
    write_json(
        workdir / "output" / "summary.json",
        {
            "num_sampled": scores.numel(),
            "score": float(scores.mean()),
            "best_score": float(scores.amax(1).mean()),
            "distinct": sum(len(set(texts)) for texts in answers) / scores.numel(),
        },
    )


def read_answers(inputs: Mapping[str, Path]) -> list[list[dict[str, Any]]]:
    """The rows of the artifacts `responses_0`, `responses_1`, ... in this order."""
    numbers = sorted(
        int(name.removeprefix("responses_")) for name in inputs if name.startswith("responses_")
    )
    return [read_rows(inputs[f"responses_{number}"] / "answers.jsonl") for number in numbers]
