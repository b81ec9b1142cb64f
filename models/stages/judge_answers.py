"""Stage `judge_answers`: a judge model compares every two policies' answers to the same prompts.

It is asked about each two different answers to a prompt once, in both orders, however many policies
gave them. Equal answers are a tie without a request. A pair is also a tie if the orders disagree
(`trimtab.models.functional.verdicts.order_verdicts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path

from trimtab.models.config.judge import JudgeAnswersConfig
from trimtab.models.data.records import read_rows
from trimtab.models.judge.judge import Comparison
from trimtab.models.judge.resumable import judge_pairs, pair_measures, usage_totals
from trimtab.models.nets import counts
from trimtab.models.reporting.compare.answers import PROMOTION_SET, SFT
from trimtab.models.training.stage import Row, Stage

# Two answers to a prompt, whichever policies gave them.
Question = tuple[str, str, str]
# A set of prompts, and a prompt's place in it.
Place = tuple[str, int]


def run(config: JudgeAnswersConfig, stage: Stage) -> None:
    """Inputs: `<seed>.<policy>` (evaluate artifacts, two policies or more a seed), and
    `constitution`, the user's own, if the judge has one.

    Output: verdicts.jsonl, a row for every two policies and prompt. seed, set, place (the prompt's,
    counted in its set), prompt, category, ours, theirs; verdict 1, 0 or -1; preference: the
    probability that `ours` answered better, mean of both orders, within the judge's `clamp`;
    num_unparsed, of both orders' answers. The summary says what was asked, and what it cost.
    """
    games = list(_games(config, stage))
    questions = {question: None for _, question, _ in games if question is not None}
    comparisons = [Comparison(*question) for question in questions]
    judged = judge_pairs(config, stage, comparisons, pair_measures)
    answers = dict(zip(questions, judged, strict=True))
    rows = [
        _row(game, None if question is None else answers[question], sign)
        for game, question, sign in games
    ]
    stage.write_rows("verdicts.jsonl", rows)
    stage.write_summary(
        {
            "name": config.name,
            "num_verdicts": len(rows),
            "num_asked": len(judged),
            **pair_measures(judged),
            **usage_totals(judged),
        }
    )


def _games(config: JudgeAnswersConfig, stage: Stage) -> Iterator[tuple[Row, Question | None, int]]:
    """Every two policies on every prompt: the row's first fields, the question, which is None for
    equal answers, and 1, or -1 where the question has the answers in the other order.

    Raises ValueError where policies of a seed answered different prompts, or nothing is left.
    """
    known: set[Question] = set()
    for seed, policies in stage.roles_by_seed().items():
        names = sorted(policies, key=lambda name: (name != SFT, name))
        answered = {name: _wanted(config, policies[name]) for name in names}
        _check(config, seed, answered)
        for ours, theirs in combinations(names, 2):
            for (group, place), answer in answered[ours].items():
                other = answered[theirs][group, place]
                game = {
                    "seed": seed,
                    "set": group,
                    "place": place,
                    "prompt": answer["prompt"],
                    "category": answer.get("category"),
                    "ours": ours,
                    "theirs": theirs,
                }
                question = (answer["prompt"], answer["response"], other["response"])
                swapped = (answer["prompt"], other["response"], answer["response"])
                if question == swapped:
                    yield game, None, 1
                elif swapped in known:
                    yield game, swapped, -1
                else:
                    known.add(question)
                    yield game, question, 1


def _check(
    config: JudgeAnswersConfig, seed: int, answered: Mapping[str, Mapping[Place, Row]]
) -> None:
    """Raise ValueError as described in `_games`."""
    first, *others = answered
    prompts = {
        name: [(place, row["prompt"]) for place, row in rows.items()]
        for name, rows in answered.items()
    }
    for other in others:
        if prompts[other] != prompts[first]:
            raise ValueError(
                f"{first} and {other} of seed {seed} answered different prompts and cannot be "
                "compared"
            )
    if not prompts[first] or not others:
        raise ValueError(
            f"the judge {config.name} has nothing to compare: seed {seed} has the policies "
            f"{', '.join(answered)}, and answers to {len(prompts[first])} prompts of the sets "
            f"{config.sets or 'there are'} and the categories {config.categories or 'there are'}"
        )


def _wanted(config: JudgeAnswersConfig, folder: Path) -> dict[Place, Row]:
    """The answers of a policy that are judged, by set and place in the set."""
    by_set: dict[str, list[Row]] = {}
    for row in read_rows(folder / "responses.jsonl"):
        by_set.setdefault(row["set"], []).append(row)
    usual = [name for name in by_set if name != PROMOTION_SET]
    sets = usual if config.sets is None else config.sets
    wanted: dict[Place, Row] = {}
    for name in sets:
        rows = [
            (place, row)
            for place, row in enumerate(by_set.get(name, []))
            if config.categories is None or row.get("category") in config.categories
        ]
        count = counts.num_taken(len(rows), config.max_prompts)
        wanted |= {(name, place): row for place, row in rows[:count]}
    return wanted


def _row(game: Row, answer: Row | None, sign: int) -> Row:
    """A row of the output; a tie if the judge was not asked."""
    if answer is None:
        return {**game, "verdict": 0, "preference": 0.5, "num_unparsed": 0}
    preference = answer["preference"] if sign > 0 else 1 - answer["preference"]
    return {
        **game,
        "verdict": sign * answer["verdict"],
        "preference": preference,
        "num_unparsed": answer["num_unparsed"],
    }
