"""Several runs side by side, in Markdown: claims, policies, scorers, then every number.

Runs that differ in the seed alone are averaged: over them a figure is its mean, plus or minus the
standard deviation (divided by runs - 1), which is how far one more seed may be expected to lie from
the mean. A figure of one run stands alone. Other settings that differ are shown, with their figures
beside each other.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from trimtab.models.reporting.kit.names import SETS, policy_name

Summary = Mapping[str, object]
# A run's scorecard.json.
Card = Mapping[str, Any]
Table = tuple[list[str], list[list[str]]]  # heads and rows

SCORER_FIGURES = {
    "clean_accuracy": "accuracy, right labels",
    "label_accuracy": "accuracy, annotators' labels",
    "label_ece_width": "ECE, annotators' labels",
    "clean_ece_width": "ECE, right labels",
    "category_mean_spread": "spread of category means",
    "spread_ratio": "the same over the spread within",
}

# Of a policy's budget: what most do without comes last, and is told where it is more than this.
BUDGET = {
    "num_sampled": ("responses sampled", -1),
    "num_updates": ("updates", -1),
    "samples_per_answer": ("samples an answer", 1),
    "judge_tokens": ("judge's tokens", 0),
    "judge_cost": ("judge's cost", 0),
}
PLACES = ("main", "forget", "held_out")


def comparison(
    names: Sequence[str],
    cards: Sequence[Card],
    summaries: Sequence[Summary],
    settings: Sequence[Summary],
) -> str:
    """The whole page of tables; what only some runs have is averaged over those.

    settings: of each run by path. Runs that differ in the seed alone are averaged; where other
    settings differ, these are shown and every figure stands once for each of them.
    """
    groups: dict[str, list[int]] = {}
    for index, changes in enumerate(settings):
        others = {name: value for name, value in changes.items() if name != "seed"}
        groups.setdefault(json.dumps(others, sort_keys=True), []).append(index)
    columns = {", ".join(names[i] for i in places): places for places in groups.values()}
    by_card = {"Claims": claims_table, "Scorers": scorers_table, "Policies": policies_table}
    if len(groups) == 1:
        tables = {head: table(cards) for head, table in by_card.items()}
        tables["Every number"] = numbers_table(names, summaries)
    else:
        tables = {"Settings that differ": settings_table(columns, settings)}
        tables |= {head: _group_by_settings(columns, cards, t) for head, t in by_card.items()}
        tables["Every number"] = _numbers_by_settings(columns, summaries)
    return "\n\n".join(f"## {head}\n\n{markdown(*table)}" for head, table in tables.items())


def settings_table(columns: Mapping[str, Sequence[int]], settings: Sequence[Summary]) -> Table:
    """A row a setting that is not the same in all columns; columns: runs by their places."""
    runs = [settings[places[0]] for places in columns.values()]
    paths = dict.fromkeys(path for run in runs for path in run if path != "seed")
    rows = [[path, *(json.dumps(r[path]) if path in r else "" for r in runs)] for path in paths]
    return ["setting", *columns], [row for row in rows if len(set(row[1:])) > 1]


def _group_by_settings(
    columns: Mapping[str, Sequence[int]],
    cards: Sequence[Card],
    table: Callable[[Sequence[Card]], Table],
) -> Table:
    """The rows of a table for each column's runs, those of one name below each other."""
    tables = {runs: table([cards[i] for i in places]) for runs, places in columns.items()}
    heads, _ = next(iter(tables.values()))
    rows = [[first, runs, *rest] for runs, (_, part) in tables.items() for first, *rest in part]
    order = list(dict.fromkeys(row[0] for row in rows))
    rows.sort(key=lambda row: order.index(row[0]))
    return [heads[0], "of", *heads[1:]], rows


def _numbers_by_settings(
    columns: Mapping[str, Sequence[int]], summaries: Sequence[Summary]
) -> Table:
    """A row a number that all runs have, a column for runs of the same settings."""
    rows = []
    for key in _common(summaries):
        groups = [[summaries[place][key] for place in places] for places in columns.values()]
        cells = [" ± ".join(filter(None, _mean_and_spread(group))) for group in groups]
        single = [_shown(group[0]) if len(group) == 1 else "" for group in groups]
        rows.append([key, *(value or cell for value, cell in zip(single, cells, strict=True))])
    return ["measure", *columns], rows


def numbers_table(names: Sequence[str], summaries: Sequence[Summary]) -> Table:
    """One row a number that all runs have: mean, standard deviation, each run's value.

    Words (claims held or not) are counted instead.
    """
    rows = []
    for key in _common(summaries):
        values = [summary[key] for summary in summaries]
        rows.append([key, *_mean_and_spread(values), *map(_shown, values)])
    return ["measure", "mean", "std", *names], rows


def claims_table(cards: Sequence[Card]) -> Table:
    """A row a claim: how often it stands how, and what was measured for it."""
    rows = []
    for claims in _grouped({c["name"]: c for c in card["claims"]} for card in cards).values():
        figures = [
            f"{name} {_mean_over_runs([claim['measured'].get(name) for claim in claims])}"
            for name in dict.fromkeys(name for claim in claims for name in claim["measured"])
        ]
        stands = _counted(claim["status"] for claim in claims)
        rows.append([claims[0]["statement"], stands, "; ".join(figures)])
    return ["claim", "runs", "measured"], rows


def scorers_table(cards: Sequence[Card]) -> Table:
    """A row a scorer: accuracy, calibration error and spread between categories."""
    rows = [
        [name, *(_mean_over_runs([s.get(key) for s in scorers]) for key in SCORER_FIGURES)]
        for name, scorers in _grouped(card["scorers"] for card in cards).items()
    ]
    return ["scorer", *SCORER_FIGURES.values()], rows


def policies_table(cards: Sequence[Card]) -> Table:
    """A row a policy: gold (or the held-out score), win / tie / lose against SFT, KL,
    length, budget.
    """
    by_name = _grouped({p["name"]: p for p in card["policies"]} for card in cards)
    rows = []
    for name, policies in by_name.items():
        answers = [policy["sets"].get("main", {}) for policy in policies]
        score = _mean_over_runs([_judged(measures) for measures in answers])
        outcomes = [_outcome_over_runs(policies, place) for place in PLACES]
        tail = [_mean_over_runs([a.get(key) for a in answers], 2) for key in ("kl", "length")]
        budget = [_mean_budget(policies, key) for key in BUDGET]
        label = policies[0].get("label", policy_name(name))
        rows.append([label, score, *outcomes, *tail, *budget])
    sets = [f"win / tie / lose, {SETS[place]}" for place in PLACES]
    heads = ["policy", "score, main prompts", *sets, "KL, nats", "length, tokens"]
    return [*heads, *(words for words, _ in BUDGET.values())], rows


def _judged(measures: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What is by gold, else by the held-out reward models."""
    return measures.get("gold") or measures.get("judge_score")


def _mean_budget(policies: Sequence[Mapping[str, Any]], key: str) -> str:
    """Mean over runs; nothing where no run knows it, or it is not worth telling."""
    amounts = [policy["budget"][key] for policy in policies if policy["budget"]]
    if not amounts or (mean := statistics.fmean(amounts)) <= BUDGET[key][1]:
        return ""
    return f"{mean:.4g}" if key == "judge_cost" else f"{mean:,.0f}"


def _outcome_over_runs(policies: Sequence[Mapping[str, Any]], place: str) -> str:
    """Mean shares against SFT, and the spread of wins minus losses over runs."""
    judged = [_judged(policy["against_sft"].get(place, {})) for policy in policies]
    verdicts = [verdict for verdict in judged if verdict]
    if not verdicts:
        return ""
    shares = " / ".join(
        f"{statistics.fmean(verdict[key]['value'] for verdict in verdicts):.3f}"
        for key in ("win", "tie", "lose")
    )
    return f"{shares}; net {_mean_over_runs([verdict['net'] for verdict in verdicts])}"


def _common(summaries: Sequence[Summary]) -> list[str]:
    return [key for key in summaries[0] if all(key in summary for summary in summaries)]


def _grouped(parts: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """By name what the runs that have it say of it."""
    result: dict[str, list[Mapping[str, Any]]] = {}
    for by_name in parts:
        for name, part in by_name.items():
            result.setdefault(name, []).append(part)
    return result


def _mean_over_runs(estimates: Sequence[Mapping[str, Any] | None], digits: int = 3) -> str:
    """Mean and spread over runs; one run's own interval where there is but one."""
    known = [estimate for estimate in estimates if estimate is not None]
    values = [estimate["value"] for estimate in known]
    if not values:
        return ""
    mean = f"{statistics.fmean(values):.{digits}f}"
    if len(values) > 1:
        return f"{mean} ± {statistics.stdev(values):.{digits}f}"
    return f"{mean} [{known[0]['low']:.{digits}f}, {known[0]['high']:.{digits}f}]"


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _mean_and_spread(values: Sequence[object]) -> tuple[str, str]:
    """Mean and standard deviation of numbers; of words how often each of them stands."""
    numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(values):
        return _counted(map(str, values)), ""
    spread = f"{statistics.stdev(numbers):.3f}" if len(numbers) > 1 else ""
    return f"{statistics.fmean(numbers):.3f}", spread


def _counted(words: Iterable[str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in Counter(words).most_common())


def _shown(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value).replace("|", "/")
