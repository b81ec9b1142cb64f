"""A plan as people read it: work, memory, the machine, warnings, assumptions."""

from __future__ import annotations

import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from trimtab.models.config.judge import EndpointConfig, endpoints_of
from trimtab.models.config.training import trainer_of
from trimtab.models.estimates.hours import (
    SECONDS_A_LAYER,
    SHARE_OF_BANDWIDTH,
    Range,
    rate_of,
)
from trimtab.models.estimates.machine import GIB
from trimtab.models.estimates.memory import FLOAT_BYTES
from trimtab.models.estimates.work import Work
from trimtab.models.nets import counts

if TYPE_CHECKING:
    from trimtab.flows.pipeline.run import PlannedStage
    from trimtab.flows.runs.plan import Plan, PlanRow

WIDTH = 100


def count(value: int) -> str:
    """A number; `-` for none."""
    return f"{value:,}" if value else "-"


def tokens(value: int) -> str:
    """Tokens in thousands, millions or billions; `-` for none."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return count(value)


def size(value: int) -> str:
    """Bytes in GiB, or in MiB below one; `-` for none."""
    if not value:
        return "-"
    return f"{value / GIB:.1f} GiB" if value >= GIB else f"{value / 2**20:.1f} MiB"


# Columns of the tables: the heading, what of a stage's work or memory it shows, and how.
WORK_COLUMNS = (
    ("steps", "optimiser_steps", count),
    ("sampled", "sampled_tokens", tokens),
    ("forward", "forward_tokens", tokens),
    ("trained", "trained_tokens", tokens),
)
MEMORY_COLUMNS = (
    ("weights", "weights"),
    ("gradients", "gradients"),
    ("Adam", "optimiser"),
    ("frozen", "frozen"),
    ("activations", "activations"),
    ("cache", "cache"),
    ("total", "total"),
)
DEVICE_ASSUMPTIONS = (
    "Where there are GPUs, each rank of a trainer takes one (num_ranks; auto counts as one rank). "
    "A rank holds whole models, or with ZeRO a part of them, as counted above."
)
HOURS_ASSUMPTION = (
    "Training and passes at that rate of bfloat16 products; sampling between reading the weights "
    f"for each token of a batch, at {SHARE_OF_BANDWIDTH:.0%} of the memory's rate, and "
    f"{1000 * SECONDS_A_LAYER:.1f} ms a layer, as measured on an H200. Not counted: loading, "
    "storing, what the CPU does, GPUs that wait; a local judge's tokens count as the policy's. "
    "Tokens are upper bounds: rows that are half as long take half"
)

CATEGORY_ASSUMPTIONS = {
    "judge_preferences": "judge_preferences asks about pairs of some categories only; how many is "
    "not known in advance, so all pairs are counted",
    "judge_answers": "judge_answers asks about prompts of some categories only; how many is not "
    "known in advance, so all prompts are counted",
    "revise": "revise answers prompts of some categories only; how many is not known in advance, "
    "so all prompts are counted, here and in constitutional_sft",
}


def plan_text(plan: Plan, notes: Sequence[str] = ()) -> str:
    """The plan as a text of several tables; `notes` stand before its warnings."""
    shape, base = plan.shape, plan.config.sft.model.base
    seeds = f" Each of {plan.num_seeds} seeds takes as much." if plan.num_seeds > 1 else ""
    if plan.machine.has_gpus:
        warnings = _too_large_for_a_gpu(plan)
    else:
        warnings = [line for rows in plan.parallel for line in _too_large_together(plan, rows)]
    parts = [
        f"Plan of {plan.config.recipe}, seed {plan.config.seed}, flow {plan.flow}: "
        f"{len(plan.rows)} stages, then the report. Nothing was run.{seeds}",
        f"Model: {base or 'a small Llama from scratch'}; {shape.policy_parameters:,} parameters "
        f"as a policy, {shape.scorer_parameters(1):,} as a reward model or critic.",
        "Work. Stages of one step can run at once; tokens are upper bounds.\n" + _work_table(plan),
        "Memory of one process at its peak, predicted.\n" + _memory_table(plan),
        *_gpu_time(plan),
        "Machine\n" + bullets(_machine(plan)),
        "Warnings\n" + bullets([*notes, *(warnings or [_largest_need(plan)])]),
        "Assumptions\n" + bullets(_assumptions(plan)),
    ]
    return "\n\n".join(parts)


def _work_table(plan: Plan) -> str:
    def cells(work: Work) -> list[str]:
        return [shown(getattr(work, field)) for _, field, shown in WORK_COLUMNS]

    rows = [
        [str(row.stage.step), row.name, row.stage.stage, f"{row.work.examples:,}", *cells(row.work)]
        for row in plan.rows
    ]
    total = sum((row.work for row in plan.rows), Work())
    header = ["step", "role", "stage", "examples", *(heading for heading, *_ in WORK_COLUMNS)]
    return table(header, [*rows, ["", "total", "", "", *cells(total)]], texts=(1, 2))


def _memory_table(plan: Plan) -> str:
    rows = []
    for alike in _group_by_peak(row for row in plan.rows if row.work.phases):
        phase, memory = alike[0].work.peak
        cells = [size(getattr(memory, field)) for _, field in MEMORY_COLUMNS]
        rows.append([phase, count(alike[0].work.parameters), *cells, _names(alike)])
    header = ["peak in", "parameters", *(heading for heading, _ in MEMORY_COLUMNS), "roles"]
    return table(header, rows, texts=(0, len(header) - 1))


def _group_by_peak(rows: Iterable[PlanRow]) -> list[list[PlanRow]]:
    """Rows of the same peak and number of parameters, in order of first appearance."""
    return _group(rows, lambda row: (row.work.peak, row.work.parameters))


def _group(rows: Iterable[PlanRow], key: Callable[[PlanRow], Hashable]) -> list[list[PlanRow]]:
    groups: dict[Hashable, list[PlanRow]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return list(groups.values())


def _gpu_time(plan: Plan) -> list[str]:
    """A table of hours for each card that the machine may have; nothing without GPUs."""
    cards = plan.machine.cards
    if not cards:
        return []
    computing = (row for row in plan.rows if row.operations)
    groups = _group(computing, lambda row: (row.stage.stage, row.operations))
    lines = [
        (name, *(hours_text(plan.gpu_hours(rows, card)) for card in cards))
        for name, rows in [*((_names(rows), rows) for rows in groups), ("total", plan.rows)]
    ]
    header = ("roles", *(card.name for card in cards))
    sources = [f"{card.name}: {rate_of(card).source}" for card in cards]
    return [
        "GPU-hours of all seeds, estimated: of all GPUs together, while they compute.\n"
        + table(header, lines, texts=(0,)),
        "Where the hours are from\n" + bullets([*sources, HOURS_ASSUMPTION]),
    ]


def hours_text(hours: Range) -> str:
    """Hours from the least to the most."""
    return " to ".join(
        f"{value:,.0f}" if value >= 10 else f"{value:.{1 if value >= 1 else 2}f}"
        for value in (hours.least, hours.most)
    )


def too_large(plan: Plan) -> str | None:
    """Describe the first stage that does not fit on the machine by itself; None if all fit.

    Stages that run at once are not added up, as their peaks may not coincide.
    """
    for row in plan.rows:
        if plan.machine.has_gpus and row.work.num_ranks > plan.machine.num_devices:
            return f"{row.name} takes {row.work.num_ranks} GPUs, one a rank (num_ranks)"
        if row.work.phases and (needed := plan.needed(row)) > plan.machine.memory:
            return f"{row.name} needs {size(needed)}{' a GPU' * plan.machine.has_gpus}"
    return None


def plan_values(plan: Plan) -> dict[str, Any]:
    """The plan as JSON has it: bytes, tokens, and hours as [least, most] by card."""
    cards = plan.machine.cards

    def hours(rows: Sequence[PlanRow]) -> dict[str, list[float]]:
        ranges = {card.name: plan.gpu_hours(rows, card) for card in cards}
        return {name: [span.least, span.most] for name, span in ranges.items()}

    return {
        "recipe": plan.config.recipe,
        "flow": plan.flow,
        "seeds": plan.num_seeds,
        "machine": {
            "gpus": plan.machine.num_devices * plan.machine.has_gpus,
            "bytes": plan.machine.memory,
            "cards": {card.name: rate_of(card).source for card in cards},
        },
        "gpu_hours": hours(plan.rows),
        "fits": too_large(plan) is None,
        "stages": [
            {
                "roles": row.roles,
                "stage": row.stage.stage,
                "step": row.stage.step,
                "ranks": row.work.num_ranks,
                "examples": row.work.examples,
                **{field: getattr(row.work, field) for _, field, _ in WORK_COLUMNS},
                "trained_parameters": row.work.parameters,
                "operations": row.operations,
                "peak_phase": row.work.peak[0],
                "peak_bytes": plan.needed(row) if row.work.phases else 0,
                "gpu_hours": hours([row]),
            }
            for row in plan.rows
        ],
    }


def _machine(plan: Plan) -> list[str]:
    machine = plan.machine
    overhead = size(machine.overhead(1))
    if machine.has_gpus:
        overhead += f" (with several ranks {size(machine.overhead(2))})"
    lines = [
        f"Compared with: {machine}. Overhead of a process: {overhead}. Margin to keep free: "
        f"{size(machine.margin)}, a tenth.",
        DEVICE_ASSUMPTIONS,
    ]
    if not machine.has_gpus:
        return lines
    for rows in plan.parallel:
        ranks = max(row.work.num_ranks for row in rows)
        at_once = max(1, machine.num_devices // ranks)
        waves = -(-len(rows) // at_once)
        if len(rows) * ranks > 1:
            lines.append(
                f"step {rows[0].stage.step}: {_names(rows)}{' at once' * (len(rows) > 1)}, on "
                f"{min(ranks * min(len(rows), at_once), machine.num_devices)} of "
                f"{machine.num_devices} GPUs" + (f" in {waves} waves" if waves > 1 else "")
            )
    return [*lines, f"every other step: one trainer, on 1 of {machine.num_devices} GPUs"]


def _largest_need(plan: Plan) -> str:
    """The stages that take most of a device, and what they leave free."""
    groups = [plan.largest_at_once(rows) for rows in plan.parallel]
    if not groups:
        return "no stage has a model"
    needed, largest = max(
        ((sum(map(plan.needed, rows)), rows) for rows in groups), key=lambda group: group[0]
    )
    where = "a GPU's" if plan.machine.has_gpus else "this computer's"
    return (
        f"memory: at most {size(needed)} ({_names(largest)}) of {where} "
        f"{size(plan.machine.memory)}, {size(plan.machine.memory - needed)} stay free"
    )


def _too_large_for_a_gpu(plan: Plan) -> list[str]:
    lines = []
    for alike in _group_by_peak(plan.rows):
        first = alike[0]
        phase, ranks = first.work.peak[0], first.work.num_ranks
        if ranks > plan.machine.num_devices:
            lines.append(
                f"TOO FEW GPUS: {_names(alike)}. Its {ranks} ranks (num_ranks) take one each, "
                f"there are {plan.machine.num_devices}"
            )
        left = plan.machine.memory - plan.needed(first)
        where = f"{_names(alike)}. {size(plan.needed(first))} in the phase `{phase}`"
        if phase and left < 0:
            lines.append(
                f"DOES NOT FIT on one GPU: {where}, a GPU has {size(plan.machine.memory)}. "
                f"{_remedy(plan, first)}"
            )
        elif phase and left < plan.machine.margin:
            lines.append(
                f"CLOSE: {where} leave {size(left)} of a GPU's {size(plan.machine.memory)}. It may "
                "not fit"
            )
    return lines


def _too_large_together(plan: Plan, rows: list[PlanRow]) -> list[str]:
    at_once = plan.largest_at_once(rows)
    needed = sum(map(plan.needed, at_once))
    if needed <= plan.machine.memory - plan.machine.margin:
        return []
    verdict = "CLOSE" if needed <= plan.machine.memory else "DOES NOT FIT"
    return [
        f"{verdict}: {_names(at_once)}: {size(needed)} needed at once, there are "
        f"{size(plan.machine.memory)}. Run fewer trainers at once (TRIMTAB_MAX_PARALLEL), lower "
        "micro_batch_tokens, or use a machine with more memory"
    ]


def _remedy(plan: Plan, row: PlanRow) -> str:
    """Settings or GPUs with which a stage would fit."""
    trainer, gpus = trainer_of(row.stage.config), plan.machine.num_devices
    if trainer is None:
        return "Nothing is trained in it: it needs GPUs with more memory, or a smaller model"
    smaller = "smaller micro batches"
    if not trainer.gradient_checkpointing:
        smaller = f"gradient_checkpointing=true or {smaller}"
    if trainer.zero is not None:
        return f"It already uses ZeRO: take more ranks, a higher ZeRO stage, or {smaller}"
    works = {stage: row.sharded(stage, gpus) for stage in (1, 2, 3)}
    parts = {stage: work.peak for stage, work in works.items() if work is not None}
    room = plan.machine.memory - plan.machine.overhead(gpus)
    prefix = "" if trainer is row.stage.config else "train."
    optimiser = "" if trainer.optimiser == "adamw" else f" {prefix}optimiser=adamw"
    for stage, (_, memory) in parts.items():
        if memory.total <= room:
            return (
                f"It needs ZeRO stage {stage} over {gpus} GPUs ({size(memory.total)} each): "
                f"{prefix}num_ranks={gpus} {prefix}zero.stage={stage}{optimiser}"
            )
    stage, (phase, memory) = max(parts.items())
    return (
        f"No ZeRO stage is enough: under stage {stage} over {gpus} GPUs {size(memory.total)} "
        f"each remain in the phase `{phase}`, of which activations and cache "
        f"{size(memory.activations + memory.cache)}. It also needs {smaller}"
    )


def _assumptions(plan: Plan) -> list[str]:
    lines = [
        *plan.amounts.assumptions,
        "every round is assumed to be promoted, so that all rounds.max_rounds are planned; the "
        "collapse guard is assumed never to stop PPO",
        "trained tokens count once for each model they train; optimiser steps are those of PPO's "
        "critic, if it has one, which takes more than the policy",
        "bytes a parameter: 4 a weight, 4 a gradient, 8 for Adam's two moments (2 with "
        "optimiser=adamw_8bit), under bfloat16 products too, which narrow activations. Frozen: "
        "models that only run. Weights under MetaRM hold a saved copy where each rank has them "
        "whole; gradients under ZeRO hold its buckets",
        "activations are kept whole where gradient_checkpointing is off; attention is fused (its "
        f"scores are not kept); without gradient up to {counts.PASS_TOKENS:,} tokens "
        f"pass at once and generation caches up to {counts.CACHE_TOKENS:,}, which no setting "
        f"changes; on a GPU up to {counts.GPU_PASS_TOKENS:,} pass and "
        f"{counts.GPU_DECODING_ROWS} answers are generated at once where "
        f"{counts.FREE_SHARE:.0%} of the memory that is then free holds them",
        "the overhead of a process on a GPU is estimated, not measured. Left to the margin: "
        "fragmentation (of activations up to two fifths, measured on CPU), the sentence encoder of "
        "rehearsal",
    ]
    if any(row.stage.stage == "trunk_cache" for row in plan.rows):
        lines.append(
            "trunk_cache runs the frozen layers over all pairs and stores their output, up to "
            f"{size(_stored(plan))}; scorers then pass their upper layers only, and so do PPO and "
            "evaluation for all of their models but one. Tokens are counted as before, operations "
            "of scorers without the frozen layers"
        )
    lines += spending_in_words((row.stage for row in plan.rows), plan.num_seeds)
    limited = {row.stage.stage for row in plan.rows if getattr(row.stage.config, "categories", ())}
    lines += [line for stage, line in CATEGORY_ASSUMPTIONS.items() if stage in limited]
    if plan.machine.has_gpus:
        lines.append(
            "precision=auto is counted as bfloat16, as it is from Ampere on; an older GPU computes "
            "in float32 and takes more, for which a plan with precision=float32 says how much"
        )
        lines.append(
            "ZeRO over n GPUs: stage 1 keeps 1/n of Adam's state on each, with a copy of that part "
            "of the weights (counted under Adam), 2 also 1/n of the gradients, 3 also of the "
            "weights, frozen ones included; each GPU has a micro batch of its own. Under stages 2 "
            "and 3 with precision=bfloat16 weights take 2 bytes, but not their part under Adam. A "
            "model is loaded whole on each rank, a weight of 4 bytes, before it is partitioned, "
            "and a model of PPO is gathered whole to sample or to score. In the end the first GPU "
            "has what was trained whole. While a checkpoint is written the host holds 12 bytes a "
            "trained parameter, once for all ranks"
        )
    return lines


def _stored(plan: Plan) -> int:
    """Bytes on disk of the kept output of frozen layers."""
    tokens = sum(row.work.forward_tokens for row in plan.rows if row.stage.stage == "trunk_cache")
    return FLOAT_BYTES * tokens * plan.shape.hidden_size


def _names(rows: Iterable[PlanRow]) -> str:
    return names(role for row in rows for role in row.roles)


def spending_in_words(stages: Iterable[PlannedStage], num_seeds: int) -> list[str]:
    """A line for each endpoint and stage that asks it: its limits in all seeds together."""
    numbers: Counter[tuple[str, Hashable, EndpointConfig]] = Counter()
    for stage in filter(_asks, stages):
        is_shared = stage.stage == "judge_answers"  # one for all seeds
        key = (stage.stage, stage.config if is_shared else None, next(endpoints_of(stage.config)))
        numbers[key] += 1 if is_shared else num_seeds
    lines = []
    for (name, _, endpoint), number in numbers.items():
        limits = endpoint.limits_in_words
        spends = f"all may spend {limits}" if limits else "no limit is given"
        lines.append(f"{number} x {name} asks the endpoint's {endpoint.model}: {spends}")
    return lines


def _asks(stage: PlannedStage) -> bool:
    """Whether a stage asks an endpoint. PPO with a scorer does not; nor does `head_to_head`, which
    only has the configuration of `evaluate`."""
    if stage.stage == "head_to_head" or (stage.stage == "ppo_max" and "scorer" in stage.inputs):
        return False
    return any(True for _ in endpoints_of(stage.config))


def names(roles: Iterable[str]) -> str:
    """Roles as one text; those numbered one after another as `member_0…9`."""
    texts: list[str] = []
    last: tuple[str, int] | None = None
    for role in roles:
        stem = role.rstrip("0123456789")
        number = role.removeprefix(stem)
        if number and last == (stem, int(number) - 1):
            texts[-1] = texts[-1].partition("…")[0] + f"…{number}"
        else:
            texts.append(role)
        last = (stem, int(number)) if number else None
    return ", ".join(texts)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], texts: Collection[int]) -> str:
    """Columns aligned: those in `texts` to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, *rows):
        cells = [
            cell.ljust(width) if index in texts else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def bullets(lines: Sequence[str]) -> str:
    """A paragraph for each line, with a dash before it."""
    return "\n".join(
        textwrap.fill(
            line, WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False
        )
        for line in lines
    )
