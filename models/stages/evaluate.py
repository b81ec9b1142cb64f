"""Stage `evaluate`: let one policy answer the evaluation prompts, and measure the answers.

Every answer is kept with its scores, so that comparing two policies afterwards is arithmetic
(`trimtab.models.stages.head_to_head`). With several candidates a prompt the answer is
the best of them by the scorer, and what fewer would have given is estimated from the same ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trimtab.models.config.reporting import EvaluateConfig
from trimtab.models.data.records import read_rows
from trimtab.models.functional.best_of_n import best_of, best_of_k_values, best_of_n_kl
from trimtab.models.judge.harmlessness import harmless_answers
from trimtab.models.nets.generation import Sampling
from trimtab.models.nets.loading import load_policy
from trimtab.models.nets.packing import Candidates, encode, token_ids, with_categories
from trimtab.models.nets.trunk import tie_trunk
from trimtab.models.rewards.reward import is_external, score_by
from trimtab.models.synthetic.gold import quality
from trimtab.models.training import distributed
from trimtab.models.training.data import context_length, with_columns
from trimtab.models.training.progress import Progress
from trimtab.models.training.sampling import respond_often
from trimtab.models.training.scoring import (
    logprob_rows,
    other_tokenizer,
    score_samples,
    with_trunk,
)
from trimtab.models.training.stage import Row, Stage
from trimtab.models.training.vllm_sampler import vllm_sampler

# Measures of which `best_of_k.json` has the best of k.
VALUES = ("score", "judge_score", "gold")


def run(config: EvaluateConfig, stage: Stage) -> None:
    """Inputs: `policy`, `reference`, `data` (eval/*.jsonl), `scorer`; held-out reward models as
    `judge_0` ... `judge_J`. Scorer and judges may be rewards from outside.

    Output: responses.jsonl with, for every prompt of every set, response, length, kl and log-prob
    (nats, whole response), `score` (the scorer that was optimised), `judge_score` (mean of the
    held-out reward models), that of each under its name and, in the synthetic world, `gold`; of
    requests for harm also `harmless`, where that is known. Of several candidates best_of_k.json
    says by set, for k = 1 ... n, what the best of k is worth, and its KL bound. The summary has
    what a judge's answers came to.
    """
    rows = [
        {"set": path.stem, **row}
        for path in sorted((stage.inputs["data"] / "eval").glob("*.jsonl"))
        for row in read_rows(path)
    ]
    policy, tokenizer = stage.policy("policy", is_frozen=True)
    policy.eval()
    prompts = [row["prompt"] for row in rows]
    sampling = Sampling(
        config.temperature,
        config.max_new_tokens,
        config.top_p,
        config.repetition_penalty,
        config.instruction,
    )
    # A pass over the prompts to sample, one for each scorer, one for the KL.
    passes = 3 + sum(name.startswith("judge_") for name in stage.inputs)
    size = config.num_candidates * len(prompts)
    progress = Progress(stage.workdir, of=passes * size)
    with vllm_sampler(config, stage.workdir):
        answers = respond_often(
            policy,
            tokenizer,
            prompts,
            config.num_candidates,
            sampling,
            torch.Generator().manual_seed(config.seed),
            progress,
        )
    progress.finish(size)
    best, values, columns = _measures(config, stage, policy, tokenizer, rows, answers, progress)
    distributed.leave()
    if config.has_gold:
        gold = [[quality(p, r) for r in texts] for p, texts in zip(prompts, answers, strict=True)]
        values["gold"] = torch.tensor(gold, dtype=torch.float64)
    for name, value in values.items():
        columns[name] = value.gather(1, best[:, None])[:, 0]
    responses = [texts[place] for texts, place in zip(answers, best.tolist(), strict=True)]
    rows = with_columns(rows, {"response": responses, **columns})
    verdicts, judge_spending = harmless_answers(config, rows, stage.workdir)
    for row, is_harmless in zip(rows, verdicts, strict=True):
        row |= {} if is_harmless is None else {"harmless": is_harmless}
    stage.write_rows("responses.jsonl", rows)
    stage.write_summary({**_summary(rows), **judge_spending})
    if config.num_candidates > 1:
        stage.write_json("best_of_k.json", _best_of_k([row["set"] for row in rows], values))


@torch.no_grad()
def _measures(
    config: EvaluateConfig,
    stage: Stage,
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt_rows: list[Row],
    answers: list[list[str]],
    progress: Progress,
) -> tuple[Tensor, dict[str, Tensor], dict[str, Any]]:
    """The best candidate (N,), the scores (N, n) of all, and measures (N,) of the best ones.

    These measures are length, log-probability under the policy and KL to the reference, plus the
    bound of best of n. Lower layers that all models share run once. Beside the policy, one other
    model is loaded at a time.
    """
    instruction = token_ids(tokenizer, [config.instruction])[0]
    limit = context_length(policy.config) - len(instruction)
    rows = encode(tokenizer, [row["prompt"] for row in prompt_rows], answers, limit)
    rows = with_categories(rows, [row.get("category") for row in prompt_rows])
    depth = policy.config.num_hidden_layers - 1
    heldout = [name for name in sorted(stage.inputs) if name.startswith("judge_")]
    scores = {}
    names = ("scorer", *heldout)
    trained = [name for name in names if not is_external(stage.inputs[name])]
    for name in names:
        if name in trained:
            scorer = stage.scorer(name)
            reader = other_tokenizer(stage.inputs[name] / "model", stage.inputs["policy"] / "model")
            shared = tie_trunk(policy, scorer, depth) if reader is None else 0
            if name == trained[0]:
                depth = shared
                rows = with_trunk(policy, rows, depth)
            scores[name] = score_samples(scorer, reader, rows, prompt_rows, answers)
            del scorer
        else:
            scores[name] = score_by(stage, name, config.seed, prompt_rows, answers)
        progress.finish(config.num_candidates * len(prompt_rows))
    best = best_of(scores["scorer"])
    if config.num_candidates > 1:
        rows = [
            Candidates(row.prompt, (row.responses[place],), category=row.category)
            for row, place in zip(rows, best.tolist(), strict=True)
        ]
        rows = with_trunk(policy, rows, depth)
    instructed = rows
    if instruction:
        instructed = [Candidates(row.prompt + instruction, row.responses) for row in rows]
    reference = load_policy(stage.inputs["reference"] / "model", is_frozen=True)
    tie_trunk(policy, reference, depth)
    ours, theirs = logprob_rows(policy, instructed)[:, 0], logprob_rows(reference, rows)[:, 0]
    progress.finish(config.num_candidates * len(prompt_rows))
    kl = ours - theirs + best_of_n_kl(config.num_candidates)
    lengths = [len(row.responses[0]) for row in rows]
    heldout_scores = {name: scores[name] for name in heldout}
    judge_score = torch.stack(list(heldout_scores.values())).mean(0)
    return (
        best,
        {"score": scores["scorer"], "judge_score": judge_score, **heldout_scores},
        {"length": lengths, "logprob": ours, "kl": kl},
    )


def _best_of_k(sets: list[str], values: dict[str, Tensor]) -> dict[str, dict[str, list[Any]]]:
    """By set of prompts: k, the KL bound, and the mean value of the best of k."""
    counts = range(1, values["score"].shape[1] + 1)
    result: dict[str, dict[str, list[Any]]] = {}
    for name in dict.fromkeys(sets):
        at = torch.tensor([place for place, of_prompt in enumerate(sets) if of_prompt == name])
        result[name] = {
            "k": list(counts),
            "kl_bound": [best_of_n_kl(k) for k in counts],
            **{
                value: best_of_k_values(values["score"][at], values[value][at]).tolist()
                for value in VALUES
                if value in values
            },
        }
    return result


def _summary(answers: list[Row]) -> dict[str, float]:
    """Means of every measure on every set, perplexity, and the share of distinct answers."""
    summary: dict[str, float] = {}
    for name in sorted({row["set"] for row in answers}):
        rows = [row for row in answers if row["set"] == name]
        for measure in ("gold", "score", "judge_score", "length", "kl"):
            if measure in rows[0]:
                summary[f"{name}_{measure}"] = sum(row[measure] for row in rows) / len(rows)
        harmless = [row["harmless"] for row in rows if "harmless" in row]
        if harmless:
            summary[f"{name}_harmless"] = sum(harmless) / len(harmless)
        nats = -sum(row["logprob"] for row in rows) / sum(row["length"] for row in rows)
        summary[f"{name}_perplexity"] = float(torch.tensor(nats).exp())
        summary[f"{name}_distinct"] = len({row["response"] for row in rows}) / len(rows)
    return summary
