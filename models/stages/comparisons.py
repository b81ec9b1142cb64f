"""Stage `comparisons`: sample the SFT policy and let simulated annotators compare the answers."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import torch

from trimtab.models.config.data import ComparisonsConfig
from trimtab.models.nets import counts
from trimtab.models.nets.generation import Sampling
from trimtab.models.nets.loading import load_policy, load_tokenizer
from trimtab.models.synthetic.annotators import (
    Annotator,
    LabelledPair,
    annotate,
    flip_hard_pairs,
    truth_row,
)
from trimtab.models.synthetic.tasks import family_of
from trimtab.models.training import distributed
from trimtab.models.training.progress import Progress
from trimtab.models.training.sampling import respond_often
from trimtab.models.training.stage import Row, Stage
from trimtab.models.training.vllm_sampler import vllm_sampler


def run(config: ComparisonsConfig, stage: Stage) -> None:
    """Inputs: `data` (pair_prompts.jsonl), `policy`; K > 1 policies are `policy_0`, `policy_1` ...

    Several policies share the prompts, drawn at random, and a pair says who answered (`policy`,
    from 0).
    Output: train, validation, test, truth.
    """
    prompts = [row["prompt"] for row in stage.rows("data", "pair_prompts.jsonl")]
    if config.num_prompts is not None and config.num_prompts < len(prompts):
        prompts = random.Random(f"prompts/{config.seed}").sample(prompts, config.num_prompts)
    policies = [folder / "model" for folder in stage.several("policy")]
    writers = [number % len(policies) for number in range(len(prompts))]
    if len(policies) > 1:
        random.Random(f"writers/{config.seed}").shuffle(writers)
    answers = _sample(config, prompts, policies, writers, stage.workdir)
    distributed.leave()
    splits, truth = _compare(config, prompts, answers, writers)
    for split, rows in splits.items():
        stage.write_rows(f"{split}.jsonl", rows)
    stage.write_rows("truth.jsonl", truth)
    kinds = Counter(row["kind"] for row in truth)
    compared = {row["group"] for rows in splits.values() for row in rows}
    stage.write_summary(
        {
            **{f"num_{split}": len(rows) for split, rows in splits.items()},
            **{f"share_{kind}": count / len(truth) for kind, count in kinds.items()},
            "share_wrong": sum(row["is_wrong"] for row in truth) / len(truth),
            "num_prompts_without_pair": len(prompts) - len(compared),
        }
    )


def _sample(
    config: ComparisonsConfig,
    prompts: list[str],
    policies: list[Path],
    writers: list[int],
    workdir: Path,
) -> list[list[str]]:
    """The responses to each prompt, by the policy that `writers` names. Prompts of the expert
    families are sampled after the others."""
    answers: dict[int, list[str]] = {}
    total = config.num_responses * len(prompts)
    for number, folder in enumerate(policies):
        policy, tokenizer = load_policy(folder, is_frozen=True), load_tokenizer(folder)
        generator = torch.Generator().manual_seed(config.seed + number)
        temperatures = {False: config.temperature, True: config.expert_temperature}
        with vllm_sampler(config, workdir):
            for is_expert, temperature in temperatures.items():
                rows = [
                    row
                    for row, prompt in enumerate(prompts)
                    if writers[row] == number and family_of(prompt).is_expert is is_expert
                ]
                if not rows:
                    continue
                texts = respond_often(
                    policy,
                    tokenizer,
                    [prompts[row] for row in rows],
                    config.num_responses,
                    Sampling(temperature, config.max_new_tokens),
                    generator,
                    Progress(workdir, done=config.num_responses * len(answers), of=total),
                )
                answers |= zip(rows, texts, strict=True)
    return [answers[row] for row in range(len(prompts))]


def _compare(
    config: ComparisonsConfig, prompts: list[str], answers: list[list[str]], writers: list[int]
) -> tuple[dict[str, list[Row]], list[Row]]:
    """Let annotators compare each prompt's answers: pairs by split, and the truth about them all.

    answers: of each prompt its responses. Of every prompt the first pair is drawn from one
    sequence of random numbers, and further ones from another, so that how many are asked for does
    not change the first.
    """
    rng, further = (random.Random(f"{name}/{config.seed}") for name in ("annotators", "further"))
    is_uniform = config.noise == "uniform"
    annotator = Annotator(
        config.flip_share if is_uniform else 0.0,
        config.ambiguous_share,
        config.clear_gap,
        config.sharpness,
    )
    labelled: list[tuple[int, str, str, LabelledPair]] = []  # prompt, split, id
    for index, (prompt, responses) in enumerate(zip(prompts, answers, strict=True)):
        split, group = _draw_split(config, rng), f"pair-{index:05d}"
        compared: set[frozenset[str]] = set()
        for number in range(config.pairs_per_prompt):
            drawn = rng if number == 0 else further
            pair = annotate(prompt, responses, annotator, drawn, compared)
            if pair is None:
                continue
            compared.add(frozenset((pair.chosen, pair.rejected)))
            labelled.append((index, split, group if number == 0 else f"{group}-{number}", pair))
    pairs = [pair for *_, pair in labelled]
    if not is_uniform:
        pairs = flip_hard_pairs(pairs, config.flip_share)
    splits: dict[str, list[Row]] = {"train": [], "validation": [], "test": []}
    truth: list[Row] = []
    for (index, split, identifier, _), pair in zip(labelled, pairs, strict=True):
        row = truth_row(identifier, pair)
        truth.append({**row, "split": split})
        splits[split].append(
            {
                "id": identifier,
                "prompt": pair.prompt,
                "chosen": pair.chosen,
                "rejected": pair.rejected,
                "category": row["category"],
                "rating": pair.rating,
                "group": f"pair-{index:05d}",
                **({"policy": writers[index]} if any(writers) else {}),
            }
        )
    return splits, truth


def _draw_split(config: ComparisonsConfig, rng: random.Random) -> str:
    draw = rng.random()
    share = counts.split_shares(config)
    if draw < share["test"]:
        return "test"
    return "validation" if draw < share["test"] + share["validation"] else "train"
