"""Limits of what is asked are those of a run: each of its stages that asks has an even share.

So whatever stages run at once, wherever, and whichever of them is tried again: what all of them may
spend adds up to the limit. How many there are is known from a plan of the run, in which every
judgement promotes; what a stage leaves of its share, no other gets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from flows.config import ConfigError
from flows.run import PlannedRun, PlannedStage, Run, SharedRun
from models.config.judge import endpoints_of, with_share


@dataclass
class _CountedRun(SharedRun, PlannedRun):
    """A run that notes each of its stages down once."""


def share_limits(runs: Sequence[Run], stages: Callable[..., Any]) -> None:
    """Let the stages that `stages(*runs)` is going to submit share the runs' limits."""
    endpoints = (endpoint for run in runs for endpoint in endpoints_of(run.config))
    if all(each.max_cost is None and each.max_total_tokens is None for each in endpoints):
        return
    made: dict[Hashable, PlannedStage] = {}
    stages(*(_CountedRun(run.config, dict(run.roles), made=made) for run in runs))
    counts = Counter(each.stage for each in made.values() if _asks(each) and not _is_alone(each))
    for each in made.values():
        for endpoint in endpoints_of(each.config):
            number, limit = counts[each.stage], endpoint.max_total_tokens
            if limit is not None and limit < number:
                raise ConfigError(
                    f"max_total_tokens must be at least {number}, found {limit}: {number} stages "
                    f"{each.stage} share it out"
                )
    for run in runs:
        run.num_sharing = counts


def _asks(stage: PlannedStage) -> bool:
    """Whether a stage asks an endpoint. PPO with a scorer does not; nor does `judge`, which only
    has the configuration of `evaluate`."""
    has_scores = stage.stage == "head_to_head" or (
        stage.stage == "ppo_max" and "scorer" in stage.inputs
    )
    return not has_scores and any(True for _ in endpoints_of(stage.config))


def _is_alone(stage: PlannedStage) -> bool:
    """Whether the limits it has are nobody else's: a judge of `judges` asks in one stage."""
    return stage.stage == "judge_answers"


def shares_in_words(stages: Iterable[PlannedStage], num_seeds: int) -> list[str]:
    """What each of a plan's stages may spend, so many seeds alike: a line a kind of stage."""
    asking: dict[Hashable, list[PlannedStage]] = {}
    for stage in filter(_asks, stages):
        asking.setdefault((stage.stage, stage.config if _is_alone(stage) else None), []).append(
            stage
        )
    lines = []
    for found in asking.values():
        name, config = found[0].stage, found[0].config
        number = len(found) * (1 if _is_alone(found[0]) else num_seeds)
        share, whole = (next(endpoints_of(each)) for each in (with_share(config, number), config))
        limits = [
            f"{getattr(share, limit):.6g} of {limit} = {getattr(whole, limit):.6g}"
            for limit in ("max_cost", "max_total_tokens")
            if getattr(whole, limit) is not None
        ]
        spends = f"each may take {' and '.join(limits)}" if limits else "no limit is given"
        lines.append(f"{number} x {name} asks the endpoint's {whole.model}: {spends}")
    return lines
