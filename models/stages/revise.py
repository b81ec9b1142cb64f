"""Stage `revise`: a model criticises and revises a policy's answers by principles drawn at random.

[CAI] Bai et al., Constitutional AI: Harmlessness from AI Feedback, arXiv 2212.08073, section 3.1.

Deviations (those of a single step are in `trimtab.models.judge.revise`)
1. The paper learns from the revisions of all steps; here the last one is a demonstration, and
   revisions.jsonl has all. What no step could revise is no demonstration.
2. Each step shows the dialogue and the newest draft; the paper keeps the steps before in view.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

import torch

from trimtab.models.config.policy import ReviseConfig
from trimtab.models.data.records import read_rows
from trimtab.models.judge.batch import OnAnswer
from trimtab.models.judge.build import build_chat_model
from trimtab.models.judge.chat import Usage
from trimtab.models.judge.constitutions import load_constitution
from trimtab.models.judge.resumable import ResumableBatch, usage_columns, usage_totals
from trimtab.models.judge.revise import Reviser
from trimtab.models.nets import counts
from trimtab.models.nets.generation import Sampling
from trimtab.models.training import signals
from trimtab.models.training.data import rows_of, with_columns, write_rows
from trimtab.models.training.sampling import respond
from trimtab.models.training.stage import Row, Stage
from trimtab.models.training.vllm_sampler import vllm_sampler


def run(config: ReviseConfig, stage: Stage) -> None:
    """Inputs: `data` (policy_prompts.jsonl), `policy`, and the user's own `constitution`, if any.

    Output: demonstrations.jsonl, of each prompt the last revision; revisions.jsonl, a row a prompt
    with the policy's `response` and all `steps` (principle, critique, revision, is_usable).
    """
    constitution = load_constitution(config.constitution, stage.inputs.get("constitution"))
    batch = ResumableBatch.resume(stage.workdir)
    drafts = _drafts(config, stage, batch)
    chat = build_chat_model(config.judge, stage.workdir, config.seed, signals.stop_requested)
    reviser = Reviser(chat, config, constitution)
    rows = batch.run(
        drafts,
        chat,
        partial(_revised, reviser),
        measures=_measures,
        items_at_once=config.prompts_at_once,
        answers_per_item=config.num_revisions * reviser.answers_per_step,
    )
    learned = [row for row in rows if any(step["is_usable"] for step in row["steps"])]
    if not learned:
        raise ValueError(
            f"none of the {len(rows) * config.num_revisions} answers is a revision (all are empty, "
            "or cut off at max_revision_tokens): raise it, or let another model revise"
        )
    stage.write_rows("revisions.jsonl", rows)
    stage.write_rows(
        "demonstrations.jsonl",
        (
            {"prompt": row["prompt"], "response": _last(row), "category": row["category"]}
            for row in learned
        ),
    )
    counts = {"num_prompts": len(rows), "num_demonstrations": len(learned)}
    stage.write_summary({**counts, **_measures(rows), **usage_totals(rows)})


def _drafts(config: ReviseConfig, stage: Stage, batch: ResumableBatch) -> list[Row]:
    """The prompts with the policy's answers, sampled once and then read from the checkpoint."""
    path = stage.workdir / "drafts.jsonl"
    if not path.exists() or not path.stat().st_size:
        rows = _prompts(config, stage)
        with vllm_sampler(config, stage.workdir):
            answers = respond(
                *stage.policy("policy", is_frozen=True),
                [row["prompt"] for row in rows],
                Sampling(config.policy_temperature, config.max_new_tokens),
                torch.Generator().manual_seed(config.seed),
            )
        write_rows(path, with_columns(rows, {"response": answers}))
        batch.save()
    return read_rows(path)


def _prompts(config: ReviseConfig, stage: Stage) -> list[Row]:
    """The prompts to answer, with their categories; ValueError where there are none."""
    path = stage.inputs["data"] / "policy_prompts.jsonl"
    rows = [
        {"prompt": row["prompt"], "category": row.get("category")}
        for row in rows_of(path, config.categories, what="prompts")
    ]
    count = counts.num_taken(len(rows), config.max_prompts)
    if count == len(rows):
        return rows
    return random.Random(f"revise/{config.seed}").sample(rows, count)


def _revised(reviser: Reviser, part: Sequence[Row], on_answer: OnAnswer) -> list[Row]:
    """Rows of a part of the prompts: every step of all of them, then the next."""
    prompts = [row["prompt"] for row in part]
    drafts = [row["response"] for row in part]
    steps: list[list[Row]] = [[] for _ in part]
    usages = [Usage()] * len(part)
    for number in range(1, reviser.config.num_revisions + 1):
        for index, step in enumerate(reviser.revise(prompts, drafts, number, on_answer)):
            values = asdict(step)
            del values["usage"]
            steps[index].append(values)
            usages[index] += step.usage
            drafts[index] = step.revision
    return [
        {**row, "steps": taken, **usage_columns(reviser.chat, usage)}
        for row, taken, usage in zip(part, steps, usages, strict=True)
    ]


def _last(row: Row) -> str:
    text: str = row["steps"][-1]["revision"]
    return text


def _measures(rows: list[Row]) -> dict[str, float]:
    """What the revisions changed; lengths are means, in words."""
    return {
        "share_changed": sum(_last(row) != row["response"] for row in rows) / len(rows),
        "words_before": sum(len(row["response"].split()) for row in rows) / len(rows),
        "words_after": sum(len(_last(row).split()) for row in rows) / len(rows),
        "num_unusable": sum(not step["is_usable"] for row in rows for step in row["steps"]),
    }
