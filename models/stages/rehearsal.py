"""Stage `rehearsal`: cluster the SFT policy's own answers and keep the best of each [AM 3.2]."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.mixture import GaussianMixture

from trimtab.models.config.policy import RehearsalConfig
from trimtab.models.functional.rehearsal import top_k_per_cluster
from trimtab.models.nets import counts
from trimtab.models.nets.generation import Samples, Sampling
from trimtab.models.rewards.reward import score_by
from trimtab.models.training import distributed
from trimtab.models.training.data import with_columns
from trimtab.models.training.embedding import embed
from trimtab.models.training.progress import Progress
from trimtab.models.training.sampling import encode_prompts, sample
from trimtab.models.training.stage import Row, Stage
from trimtab.models.training.vllm_sampler import vllm_sampler

Array = np.ndarray[Any, Any]


def run(config: RehearsalConfig, stage: Stage) -> None:
    """Inputs: `data` (policy_prompts.jsonl or demonstrations.jsonl), `policy`, `scorer`.

    Output: rehearsal.jsonl; measured.jsonl, the next best of each cluster, by which PPO may measure
    what it loses there; if configured clusters.jsonl, of every prompt that PPO trains on.
    """
    rows = read_prompts(config, stage)
    count = counts.num_taken(len(rows), config.max_prompts)
    if count < len(rows):
        rows = random.Random(config.seed).sample(rows, count)
    prompts = [row["prompt"] for row in rows]
    sampling = Sampling(config.temperature, config.max_new_tokens, config.top_p)
    policy, tokenizer = stage.policy("policy", is_frozen=True)
    with vllm_sampler(config, stage.workdir):
        sampled = sample(
            policy,
            tokenizer,
            encode_prompts(policy, tokenizer, prompts, sampling),
            sampling,
            torch.Generator().manual_seed(config.seed),
            progress=Progress(stage.workdir),
        )
    responses = tokenizer.batch_decode(sampled.responses, skip_special_tokens=True)
    answers = [[response] for response in responses]
    scores = score_by(stage, "scorer", config.seed, rows, answers)[:, 0]
    distributed.leave()
    clusters, nearest = fit_clusters(embed(prompts, config.encoder).vectors, config)
    ranked_by = rank_values(config, scores, sampled)
    best = top_k_per_cluster(ranked_by, clusters, config.per_cluster).tolist()
    behind = next_best(ranked_by, clusters, config.per_cluster, best)
    for name, kept in (("rehearsal", best), ("measured", behind)):
        stage.write_rows(
            f"{name}.jsonl",
            (
                {
                    "prompt": prompts[index],
                    "response": responses[index],
                    "category": rows[index].get("category"),
                    "cluster": int(clusters[index]),
                    "advantage_score": float(scores[index]),
                    "ranked_by": float(ranked_by[index]),
                }
                for index in kept
            ),
        )
    if config.cluster_policy_prompts:
        _write_clusters(config, stage, dict(zip(prompts, clusters.tolist(), strict=True)), nearest)
    stage.write_summary(
        {
            "num_sampled": len(prompts),
            "num_kept": len(best),
            "num_clusters": len(set(clusters.tolist())),
            "score_all": float(scores.mean()),
            "score_kept": float(scores[best].mean()),
        }
    )


def _write_clusters(
    config: RehearsalConfig,
    stage: Stage,
    by_prompt: dict[str, int],
    nearest: Callable[[Array], Array],
) -> None:
    """clusters.jsonl; by_prompt: the clusters that are known."""
    trained_on = [row["prompt"] for row in stage.rows("data", "policy_prompts.jsonl")]
    if others := [prompt for prompt in dict.fromkeys(trained_on) if prompt not in by_prompt]:
        theirs = nearest(embed(others, config.encoder).vectors).tolist()
        by_prompt |= dict(zip(others, theirs, strict=True))
    columns = {"cluster": [by_prompt[prompt] for prompt in trained_on]}
    stage.write_rows("clusters.jsonl", with_columns([{"prompt": p} for p in trained_on], columns))


def next_best(
    ranked_by: torch.Tensor, clusters: torch.Tensor, per_cluster: int, best: Sequence[int]
) -> list[int]:
    """Up to `per_cluster` responses of each cluster that are not among its `best`; of a cluster
    that has no others, its best.

    ranked_by: (N,), higher is better. clusters: (N,). best: indices.
    """
    ranked, kept = top_k_per_cluster(ranked_by, clusters, 2 * per_cluster).tolist(), set(best)
    further = [index for index in ranked if index not in kept]
    of_further = set(clusters[further].tolist())
    return sorted([*further, *(index for index in best if int(clusters[index]) not in of_further)])


def rank_values(config: RehearsalConfig, scores: torch.Tensor, sampled: Samples) -> torch.Tensor:
    """What the N responses are ranked by (N,), higher is better; scores: (N,).

    By entropy: minus the mean over a response's tokens, nats, of the policy's entropy.
    """
    lengths = torch.tensor([len(response) for response in sampled.responses])
    if config.criterion == "entropy":
        return -sampled.entropies.sum(1) / lengths
    if config.criterion == "length":
        return -lengths.float()
    if config.criterion == "random":
        return torch.rand(len(lengths), generator=torch.Generator().manual_seed(config.seed))
    return scores


def read_prompts(config: RehearsalConfig, stage: Stage) -> list[Row]:
    """The rows of different prompts in the input `data`; demonstrations of plain text have none.

    Raises ValueError if no row has one.
    """
    name = "demonstrations" if config.prompts == "demonstrations" else "policy_prompts"
    rows = {row["prompt"]: row for row in stage.rows("data", f"{name}.jsonl") if row["prompt"]}
    if not rows:
        raise ValueError(
            f"rehearsal.prompts={config.prompts}: none of them has a prompt; take 'policy'"
        )
    return list(rows.values())


def fit_clusters(
    embeddings: Array, config: RehearsalConfig
) -> tuple[torch.Tensor, Callable[[Array], Array]]:
    """The cluster (N,) of each embedding (N, D), and what gives the nearest of each of others."""
    count, seed = min(config.num_clusters, len(embeddings)), config.seed
    if config.algorithm == "kmeans":
        clustering = KMeans(count, random_state=seed, n_init=4)
    elif config.algorithm == "mini_batch_kmeans":
        clustering = MiniBatchKMeans(count, random_state=seed, n_init=4, batch_size=4096)
    else:
        clustering = GaussianMixture(count, covariance_type="diag", random_state=seed)
    return torch.tensor(clustering.fit_predict(embeddings), dtype=torch.long), clustering.predict
