"""How the cost of clustered rehearsal grows with the prompts that are answered.

    python -m tests.bench.rehearsal

A Llama of four layers of width 128, from random weights, over the synthetic world's words;
its prompts and their lengths are the world's. Two threads. Prints a table: seconds of each part at
each number of prompts, and the exponent of its growth (slope of a line through logarithms); then
the peak of resident memory.
"""

from __future__ import annotations

import argparse
import random
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification

from trimtab.flows.config.recipes.synthetic import default
from trimtab.models.config.policy import RehearsalConfig
from trimtab.models.config.training import ModelConfig
from trimtab.models.functional.rehearsal import top_k_per_cluster
from trimtab.models.nets.generation import Sampling
from trimtab.models.nets.loading import build_policy
from trimtab.models.stages.rehearsal import embed, fit_clusters
from trimtab.models.stages.world import word_tokenizer
from trimtab.models.synthetic.tasks import FAMILIES, draw_prompt
from trimtab.models.training.sampling import respond
from trimtab.models.training.scoring import score_answers

PARTS = ("sample", "score", "embed", "cluster", "keep")


def main() -> None:
    """Measure each number of prompts, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.rehearsal")
    parser.add_argument("--prompts", type=int, nargs="+", default=[1000, 10_000, 100_000])
    options = parser.parse_args()
    torch.set_num_threads(2)
    config = default().rehearsal.model_copy(update={"algorithm": "mini_batch_kmeans"})
    rows = {count: seconds(count, config) for count in options.prompts}
    print(f"| prompts | {' | '.join(PARTS)} | all |")
    print("|---|" + "---|" * (len(PARTS) + 1))
    for count, parts in rows.items():
        print(f"| {count:,} | " + " | ".join(f"{value:.1f}" for value in parts) + " |")
    if len(rows) > 1:
        exponents = [exponent(list(rows), column) for column in zip(*rows.values(), strict=True)]
        print("| exponent | " + " | ".join(f"{value:.2f}" for value in exponents) + " |")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"\nPeak of resident memory: {peak:.1f} GiB")


def seconds(count: int, config: RehearsalConfig) -> list[float]:
    """Of each part, and their sum."""
    tokenizer = word_tokenizer()
    policy = build_policy(ModelConfig(), tokenizer).eval()
    policy.config.num_labels = 1
    scorer = AutoModelForSequenceClassification.from_config(policy.config).eval()
    rng = random.Random(0)
    tasks = list(FAMILIES.values())
    prompts = [draw_prompt(rng.choice(tasks), rng) for _ in range(count)]
    sampling = Sampling(config.temperature, config.max_new_tokens, config.top_p)
    generator = torch.Generator().manual_seed(0)
    responses, sampled = _timed(lambda: respond(policy, tokenizer, prompts, sampling, generator))
    rows = [{"prompt": prompt} for prompt in prompts]
    scores, scored = _timed(
        lambda: score_answers(scorer, tokenizer, rows, [[text] for text in responses])[:, 0]
    )
    embeddings, embedded = _timed(lambda: embed(prompts, config.encoder).vectors)
    clusters, clustered = _timed(lambda: fit_clusters(embeddings, config)[0])
    _, chosen = _timed(lambda: top_k_per_cluster(scores, clusters, config.per_cluster))
    parts = [sampled, scored, embedded, clustered, chosen]
    return [*parts, sum(parts)]


def exponent(counts: list[int], costs: tuple[float, ...]) -> float:
    """Of cost ~ count ** exponent."""
    return float(np.polyfit(np.log(counts), np.log(np.maximum(costs, 1e-6)), 1)[0])


def _timed(function: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    result = function()
    return result, time.perf_counter() - started


if __name__ == "__main__":
    main()
