"""What the trainers of a finished smoke run counted is what its plan says of every stage.

In the synthetic world a word is a token, so that lengths are counted in the texts that the stages
wrote. Where a plan cannot know a number beforehand (how many prompts yield a pair, how long rows
are), it is an upper bound; with the number put in its place, it is exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tests.flows.conftest import FINISHED, NAME
from trimtab.flows.config.overrides import apply_changes, parse_overrides
from trimtab.flows.config.recipes import recipe_named
from trimtab.flows.runs.plan import Plan, PlanRow, make_plan
from trimtab.models.data.records import read_rows
from trimtab.models.estimates.machine import Machine
from trimtab.models.estimates.stages import work_of
from trimtab.models.estimates.work import Work

pytestmark = pytest.mark.slow

SUPERVISED = {"sft", "reward_model", "advantage_model", "meta_rm"}
SAMPLING = {"comparisons", "rehearsal", "evaluate"}
SCORERS = {"scorer", "judge_0", "judge_1", "judge_2"}


@dataclass(frozen=True)
class Ran:
    """A stage of the plan, and the artifact that the run made of it."""

    row: PlanRow
    folder: Path
    summary: dict[str, Any]
    inputs: dict[str, Path]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Of each step."""
        return [
            row["metrics"] for row in read_rows(self.folder / "metrics.jsonl") if "metrics" in row
        ]

    @property
    def totals(self) -> set[int]:
        """What the stage said that it had to do: steps, or samples."""
        rows = read_rows(self.folder / "metrics.jsonl")
        return {row["progress"][1] for row in rows if "progress" in row}

    def work(self, **amounts: Any) -> Work:
        """What the plan would say, had it known these amounts."""
        stage, inputs = self.row.stage, self.row.inputs
        known = replace(inputs, amounts=replace(inputs.amounts, **amounts))
        return work_of(stage.stage, stage.config, known)


@pytest.fixture(scope="module")
def plan() -> Plan:
    _, recipe, *changes = FINISHED
    return make_plan(
        apply_changes(recipe_named(recipe), parse_overrides(changes)),
        "rlhf",
        Machine.this_computer(2),
    )


@pytest.fixture(scope="module")
def ran(finished: Path, plan: Plan) -> list[Ran]:
    """Every stage that has a model, by its configuration and the stages that it reads."""
    manifests = [
        (path.parent, json.loads(path.read_text()))
        for path in finished.glob("store/artifacts/*/*/manifest.json")
    ]
    folder_of = {m["key"]: next(p for p in path.iterdir() if p.is_dir()) for path, m in manifests}
    found = []
    for row in plan.rows:
        if not row.work.phases:
            continue
        config = row.stage.config.model_dump(mode="json")
        same = [m for _, m in manifests if m["stage"] == row.stage.stage and m["config"] == config]
        assert same, row.name
        for manifest in same:
            inputs = {name: folder_of[each["key"]] for name, each in manifest["parents"].items()}
            found.append(Ran(row, folder_of[manifest["key"]], manifest["summary"], inputs))
    return found


def _of(ran: list[Ran], *stages: str) -> Iterator[Ran]:
    found = [each for each in ran if each.row.stage.stage in stages]
    assert found
    yield from found


def _words(row: dict[str, Any], *names: str) -> int:
    return sum(len(row[name].split()) for name in names)


def test_the_plan_has_the_stages_of_the_run_and_all_with_a_model_are_counted(
    finished: Path, plan: Plan
) -> None:
    card = json.loads((finished / f"reports/{NAME}/scorecard.json").read_text())
    planned = {role for row in plan.rows for role in row.roles}
    assert {stage["role"] for stage in card["stages"]} == planned
    with_model = {row.stage.stage for row in plan.rows if row.work.phases}
    assert with_model == SUPERVISED | SAMPLING | {"ppo_max"}


def test_supervised_stages_take_the_planned_steps_rows_and_tokens(ran: list[Ran]) -> None:
    for each in _of(ran, *SUPERVISED):
        if each.row.stage.stage == "sft":
            rows = read_rows(each.inputs["data"] / "demonstrations.jsonl")
            lengths = [_words(row, "prompt", "response") + 1 for row in rows]
            known: dict[str, Any] = {}
        else:
            rows = read_rows(each.inputs["preferences"] / "train.jsonl")
            lengths = [_words(row, "prompt", "chosen", "rejected") + 2 for row in rows]
            known = _pairs(each)
        mean = Fraction(sum(lengths), len(lengths))
        work = each.work(**known, dialogue_tokens=mean, pair_tokens=mean)
        assert work.examples == len(rows) <= each.row.work.examples
        assert work.optimiser_steps == len(each.metrics) <= each.row.work.optimiser_steps
        learned = work.trained_tokens - _ascent_tokens(each, len(each.metrics))
        assert learned == each.summary["num_trained_tokens"]
        assert work.trained_tokens <= each.row.work.trained_tokens


def _pairs(each: Ran) -> dict[str, int]:
    """How many pairs there were."""
    splits = ("train", "validation", "test")
    files = {split: each.inputs["preferences"] / f"{split}.jsonl" for split in splits}
    num = {split: len(read_rows(path)) for split, path in files.items()}
    train = {"train_pairs": num["train"], "train_rankings": num["train"]}
    return {"pairs": sum(num.values()), **train}


def _ascent_tokens(each: Ran, steps: int) -> int:
    """Of MetaRM's ascents, which its count of tokens leaves out: a meta batch a step."""
    if each.row.stage.stage != "meta_rm":
        return 0
    config, prompt = each.row.stage.config, each.row.inputs.amounts.prompt_tokens
    row = prompt + config.num_responses * (config.max_new_tokens + 1)
    return steps * config.meta_batch * row


def test_scorers_score_the_planned_pairs(ran: list[Ran]) -> None:
    for each in _of(ran, "reward_model", "advantage_model"):
        scores = read_rows(each.folder / "scores.jsonl")
        assert each.work(**_pairs(each), pair_tokens=1).forward_tokens == len(scores)


def test_stages_that_sample_give_the_planned_answers_and_none_too_long(ran: list[Ran]) -> None:
    answers = {"rehearsal": "rehearsal.jsonl", "evaluate": "responses.jsonl"}
    for each in _of(ran, *SAMPLING):
        stage, config, work = each.row.stage.stage, each.row.stage.config, each.row.work
        # An evaluation passes its answers once to sample, for each scorer, and for the KL.
        passes = 1 + len(each.inputs.keys() & SCORERS) + 1 if stage == "evaluate" else 1
        assert each.totals == {passes * work.sampled_tokens // config.max_new_tokens}
        if stage == "comparisons":
            assert work.examples == len(read_rows(each.inputs["data"] / "pair_prompts.jsonl"))
            rows = read_rows(each.folder / "train.jsonl")
            texts = [row[name] for row in rows for name in ("chosen", "rejected")]
        else:
            rows = read_rows(each.folder / answers[stage])
            texts = [row["response"] for row in rows]
            number = each.summary["num_sampled"] if stage == "rehearsal" else len(rows)
            assert work.examples == number
        assert 0 < max(len(text.split()) for text in texts) <= config.max_new_tokens
    for each in _of(ran, "meta_rm"):
        config, prompts = each.row.stage.config, len(read_rows(each.folder / "spreads.jsonl"))
        samples = prompts * config.num_responses
        assert each.row.work.sampled_tokens == samples * config.max_new_tokens


def test_no_evaluation_passes_more_tokens_than_planned(ran: list[Ran]) -> None:
    for each in _of(ran, "evaluate"):
        rows = read_rows(each.folder / "responses.jsonl")
        prompts = sum(_words(row, "prompt") for row in rows)
        whole = prompts + sum(row["length"] for row in rows)
        # Prompts to sample; answers under the scorer, a judge, the policy and the reference.
        assert prompts + 4 * whole <= each.row.work.forward_tokens
        longest = [each.row.inputs.amounts.prompt_tokens, each.row.stage.config.max_new_tokens + 1]
        assert each.row.work.forward_tokens == len(rows) * (longest[0] + 4 * sum(longest))


def test_ppo_takes_the_planned_steps_answers_and_tokens(ran: list[Ran]) -> None:
    rehearsing = 0
    for each in _of(ran, "ppo_max"):
        config, work = each.row.stage.config, each.row.work
        rollouts = read_rows(each.folder / "rollouts.jsonl")
        assert work.examples == len(rollouts) == each.summary["num_sampled"]
        assert each.totals == {len(each.metrics)}
        answers = len(rollouts) // len(each.metrics)
        # Each round's tokens: prompts as they are, responses as the trainer counted them.
        tokens = [round(answers * metrics["response_length"]) for metrics in each.metrics]
        assert sum(tokens) <= work.sampled_tokens
        for row in rollouts:
            tokens[row["step"] - 1] += _words(row, "prompt")
        # A round that updates the policy says so; the critic learns in each.
        num_models = [1 + ("policy_loss" in metrics) for metrics in each.metrics]
        learned = config.num_epochs * sum(
            own * count for own, count in zip(tokens, num_models, strict=True)
        )
        plain = work_of("ppo_max", config, replace(each.row.inputs, num_rehearsed=0))
        _, longest = each.row.inputs.prompt_and_row(config.max_new_tokens)
        assert plain.trained_tokens == config.num_epochs * answers * longest * sum(num_models)
        updates = work.optimiser_steps // len(each.metrics)
        assert each.summary["num_updates"] == updates * (sum(num_models) - len(each.metrics))
        rehearsed = each.summary["num_trained_tokens"] - learned
        if "rehearsal" not in each.inputs:
            assert rehearsed == work.trained_tokens - plain.trained_tokens == 0
            continue
        rehearsing += 1
        rows = read_rows(each.inputs["rehearsal"] / "rehearsal.jsonl")
        lengths = [_words(row, "prompt", "response") + 1 for row in rows]
        num_drawn = (work.trained_tokens - plain.trained_tokens) // longest
        assert num_drawn == each.summary["num_updates"] * config.rehearsal_batch
        assert num_drawn * min(lengths) <= rehearsed <= num_drawn * max(lengths)
        assert max(lengths) <= longest
    assert rehearsing == 2
