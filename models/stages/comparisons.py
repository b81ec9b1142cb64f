"""Stage `comparisons`: sample the SFT policy and let simulated annotators compare the answers."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import torch

from trimtab.models import counts
from trimtab.models.config.data import ComparisonsConfig
from trimtab.models.nets.generation import Sampling
from trimtab.models.nets.loading import load_policy, load_tokenizer
from trimtab.models.synthetic.annotators import Annotator, annotate, truth_row
from trimtab.models.training import distributed
from trimtab.models.training.data import read_rows, write_rows
from trimtab.models.training.progress import Progress, write_json
from trimtab.models.training.sampling import encode_prompts, respond_often

Row = dict[str, object]


def run(config: ComparisonsConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Inputs: `data` (pair_prompts.jsonl), `policy`. Output: train, validation, test, truth."""
    prompts = [row["prompt"] for row in read_rows(inputs["data"] / "pair_prompts.jsonl")]
    policy = load_policy(inputs["policy"] / "model")
    tokenizer = load_tokenizer(inputs["policy"] / "model")
    answers = respond_often(
        policy,
        tokenizer,
        encode_prompts(policy, tokenizer, prompts, config.max_new_tokens),
        config.num_responses,
        Sampling(config.temperature, config.max_new_tokens),
        torch.Generator().manual_seed(config.seed),
        Progress(workdir),
    )
    distributed.leave()
    splits, truth = _compare(config, prompts, answers)
    output = workdir / "output"
    for split, rows in splits.items():
        write_rows(output / f"{split}.jsonl", rows)
    write_rows(output / "truth.jsonl", truth)
    kinds = Counter(str(row["kind"]) for row in truth)
    compared = {row["group"] for rows in splits.values() for row in rows}
    write_json(
        output / "summary.json",
        {
            **{f"num_{split}": len(rows) for split, rows in splits.items()},
            **{f"share_{kind}": count / len(truth) for kind, count in kinds.items()},
            "share_wrong": sum(bool(row["is_wrong"]) for row in truth) / len(truth),
            "num_prompts_without_pair": len(prompts) - len(compared),
        },
    )


def _compare(
    config: ComparisonsConfig, prompts: list[str], answers: list[list[str]]
) -> tuple[dict[str, list[Row]], list[Row]]:
    """Let annotators compare each prompt's answers: pairs by split, and the truth about them all.

    answers: of each prompt its responses. Of every prompt the first pair is drawn from one
    sequence of random numbers, and further ones from another, so that how many are asked for does
    not change the first.
    """
    rng, further = (random.Random(f"{name}/{config.seed}") for name in ("annotators", "further"))
    annotator = Annotator(
        config.flip_share, config.ambiguous_share, config.clear_gap, config.sharpness
    )
    splits: dict[str, list[Row]] = {"train": [], "validation": [], "test": []}
    truth: list[Row] = []
    for index, (prompt, responses) in enumerate(zip(prompts, answers, strict=True)):
        split = _draw_split(config, rng)
        compared: set[frozenset[str]] = set()
        for number in range(config.pairs_per_prompt):
            comparison = annotate(
                prompt,
                responses,
                annotator,
                rng if number == 0 else further,
                compared,
            )
            if comparison is None:
                continue
            compared.add(frozenset((comparison.chosen, comparison.rejected)))
            group = f"pair-{index:05d}"
            row = truth_row(group if number == 0 else f"{group}-{number}", comparison)
            truth.append({**row, "split": split})
            splits[split].append(
                {
                    "id": row["id"],
                    "prompt": prompt,
                    "chosen": comparison.chosen,
                    "rejected": comparison.rejected,
                    "category": row["category"],
                    "rating": comparison.rating,
                    "group": group,
                }
            )
    return splits, truth


def _draw_split(config: ComparisonsConfig, rng: random.Random) -> str:
    draw = rng.random()
    share = counts.split_shares(config)
    if draw < share["test"]:
        return "test"
    return "validation" if draw < share["test"] + share["validation"] else "train"
