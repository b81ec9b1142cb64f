"""Stage `evaluate`: let one policy answer the evaluation prompts, and measure the answers.

Every answer is kept with its scores, so that judging two policies against each other afterwards
is arithmetic (`models.engine.judge`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from models.config import EvaluateConfig
from models.engine import ranks
from models.engine.data import context_length, read_rows, write_rows
from models.engine.ppo_rollout import in_parts
from models.engine.progress import Progress, write_json
from models.engine.rollouts import respond
from models.engine.scoring import score_rows, with_lower_states
from models.nets.generation import Sampling
from models.nets.loading import load_policy, load_scorer, load_tokenizer
from models.nets.lower_layers import tie_lower_layers
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
    columns = _measures(inputs, policy, tokenizer, prompts, responses)
    ranks.leave()
    if config.has_gold:
        columns["gold"] = [quality(p, r) for p, r in zip(prompts, responses, strict=True)]
    answers = [
        {**row, "response": response, **{name: values[index] for name, values in columns.items()}}
        for index, (row, response) in enumerate(zip(rows, responses, strict=True))
    ]
    write_rows(workdir / "output" / "responses.jsonl", answers)
    write_json(workdir / "output" / "summary.json", _summary(answers))


@torch.no_grad()
def _measures(
    inputs: dict[str, Path],
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[str],
    responses: list[str],
) -> dict[str, list[float]]:
    """Of each response: length, log-probability under the policy, KL to the reference, scores.

    Lower layers that all these models have in common run once; beside the policy one other model
    is loaded at a time.
    """
    limit = context_length(policy.config)
    rows = encode(tokenizer, prompts, [[response] for response in responses], limit)
    scorer = load_scorer(inputs["scorer"] / "model")
    depth = tie_lower_layers(policy, scorer, policy.config.num_hidden_layers - 1)
    rows = with_lower_states(policy, rows, depth)
    scores = score_rows(scorer, rows)[:, 0]
    del scorer

    def tied(model: PreTrainedModel) -> PreTrainedModel:
        tie_lower_layers(policy, model, depth)
        return model.eval()

    def likelihoods(model: PreTrainedModel) -> tuple[Tensor, ...]:
        return in_parts(rows, lambda batch: response_logprobs(model, batch))

    ours, _, mask = likelihoods(policy)
    theirs, _, _ = likelihoods(tied(load_policy(inputs["reference"] / "model")))
    votes = [
        score_rows(tied(load_scorer(inputs[name] / "model")), rows)[:, 0]
        for name in sorted(inputs)
        if name.startswith("judge_")
    ]
    return {
        "length": mask.sum(1).tolist(),
        "logprob": ours.sum(1).tolist(),
        "kl": (ours - theirs).sum(1).tolist(),
        "score": scores.tolist(),
        "judge_score": torch.stack(votes).mean(0).tolist(),
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
