"""Stage `evaluate`: let one policy answer the evaluation prompts, and measure the answers.

Every answer is kept with its scores, so that judging two policies against each other afterwards
is arithmetic (`models.engine.judge`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from models.config import EvaluateConfig
from models.engine.data import read_rows, write_rows
from models.engine.ppo_rollout import in_parts
from models.engine.progress import Progress, write_json
from models.engine.rollouts import respond
from models.engine.scoring import score_texts
from models.nets.generation import Sampling
from models.nets.loading import load_policy, load_scorer, load_tokenizer
from models.nets.packing import encode
from models.nets.scoring import response_logprobs
from models.world.gold import quality

CONFIG = EvaluateConfig


def run(config: EvaluateConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Inputs: `policy`, `reference`, `data` (eval/*.jsonl), `scorer`, `judge_0` ... `judge_J`.

    Output: responses.jsonl with, for every prompt of every set, response, length, kl and log-prob
    (nats, whole response), `score` (the scorer that was optimised), `judge_score` (mean of the
    held-out judges) and, in the synthetic world, `gold`.
    """
    rows = [
        {"set": path.stem, **row}
        for path in sorted((inputs["data"] / "eval").glob("*.jsonl"))
        for row in read_rows(path)
    ]
    tokenizer = load_tokenizer(inputs["policy"] / "model")
    policy = load_policy(inputs["policy"] / "model").eval()
    prompts = [row["prompt"] for row in rows]
    responses = respond(
        policy,
        tokenizer,
        prompts,
        Sampling(config.temperature, config.max_new_tokens),
        torch.Generator().manual_seed(config.seed),
        progress=Progress(workdir),
    )
    columns = _likelihoods(inputs, tokenizer, prompts, responses)
    scorer = load_scorer(inputs["scorer"] / "model")
    columns["score"] = score_texts(scorer, tokenizer, prompts, responses).tolist()
    judges = sorted(name for name in inputs if name.startswith("judge_"))
    votes = [
        score_texts(load_scorer(inputs[name] / "model"), tokenizer, prompts, responses)
        for name in judges
    ]
    columns["judge_score"] = torch.stack(votes).mean(0).tolist()
    if config.has_gold:
        columns["gold"] = [quality(p, r) for p, r in zip(prompts, responses, strict=True)]
    answers = [
        {**row, "response": response, **{name: values[index] for name, values in columns.items()}}
        for index, (row, response) in enumerate(zip(rows, responses, strict=True))
    ]
    write_rows(workdir / "output" / "responses.jsonl", answers)
    write_json(workdir / "output" / "summary.json", _summary(answers))


@torch.no_grad()
def _likelihoods(
    inputs: dict[str, Path],
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[str],
    responses: list[str],
) -> dict[str, list[float]]:
    """Per response: length in tokens, log-probability under the policy, and KL to the reference."""
    policy = load_policy(inputs["policy"] / "model").eval()
    reference = load_policy(inputs["reference"] / "model").eval()
    limit = int(policy.config.max_position_embeddings)
    rows = [
        encode(tokenizer, prompt, [response], limit)
        for prompt, response in zip(prompts, responses, strict=True)
    ]
    pad = tokenizer.pad_token_id
    ours, _, mask = in_parts(rows, pad, lambda batch: response_logprobs(policy, batch))
    theirs, _, _ = in_parts(rows, pad, lambda batch: response_logprobs(reference, batch))
    return {
        "length": mask.sum(1).tolist(),
        "logprob": ours.sum(1).tolist(),
        "kl": (ours - theirs).sum(1).tolist(),
    }


def _summary(answers: list[dict[str, Any]]) -> dict[str, float]:
    """Means of every measure on every set, perplexity, and the share of distinct answers."""
    summary: dict[str, float] = {}
    for name in sorted({row["set"] for row in answers}):
        rows = [row for row in answers if row["set"] == name]
        for measure in ("gold", "score", "judge_score", "length", "kl"):
            if measure in rows[0]:
                summary[f"{name}_{measure}"] = sum(row[measure] for row in rows) / len(rows)
        nats = -sum(row["logprob"] for row in rows) / sum(row["length"] for row in rows)
        summary[f"{name}_perplexity"] = float(torch.tensor(nats).exp())
        summary[f"{name}_distinct"] = len({row["response"] for row in rows}) / len(rows)
    return summary
