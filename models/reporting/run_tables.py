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

# Of a policy's budget, what most do without.
EXTRAS = {
    "samples_per_answer": "samples an answer",
    "judge_tokens": "judge's tokens",
    "judge_cost": "judge's cost",
}


def comparison(
    names: Sequence[str],
    cards: Sequence[Card],
    summaries: Sequence[Summary],
    settings: Sequence[Summary],
) -> str:
    """The whole page of tables; what only some runs have is averaged over those.

    settings: of each run by path, empty where a report of an earlier Trimtab does not have them.
    Runs that differ in the seed alone are averaged; where other settings differ, these are shown
    and every figure stands once for each of them.
    """
    groups: dict[str, list[int]] = {}
    for index, known in enumerate(settings):
        groups.setdefault(_drop_seed(known) or str(cards[index].get("recipe")), []).append(index)
    columns = {", ".join(names[i] for i in places): places for places in groups.values()}
    is_one = len(groups) == 1
    tables = {"Claims": claims_table, "Scorers": scorers_table, "Policies": policies_table}
    made = {
        "Settings that differ": None if is_one else settings_table(columns, settings),
        **{
            head: table(cards) if is_one else _group_by_settings(columns, cards, table)
            for head, table in tables.items()
        },
        "Every number": numbers_table(names, summaries)
        if is_one
        else _numbers_by_settings(columns, summaries),
    }
    return "\n\n".join(f"## {head}\n\n{markdown(*rows)}" for head, rows in made.items() if rows)


def _drop_seed(settings: Summary) -> str:
    kept = {name: value for name, value in settings.items() if name != "seed"}
    return json.dumps(kept, sort_keys=True) if kept else ""


def settings_table(columns: Mapping[str, Sequence[int]], settings: Sequence[Summary]) -> Table:
    """A row a setting that is not the same in all columns; columns: runs by their places."""
    own = [settings[places[0]] for places in columns.values()]
    paths = dict.fromkeys(path for each in own for path in each if path != "seed")
    missing = object()
    rows = [
        [path, *(json.dumps(each[path]) if path in each else "" for each in own)]
        for path in paths
        if len({json.dumps(each[path]) if path in each else missing for each in own if each}) > 1
    ]
    if not all(own):
        unknown = ["(report of an earlier Trimtab)", *("" if each else "unknown" for each in own)]
        rows.append(unknown)
    return ["setting", *columns], rows


def _group_by_settings(
    columns: Mapping[str, Sequence[int]],
    cards: Sequence[Card],
    table: Callable[[Sequence[Card]], Table],
) -> Table:
    """The rows of a table for each column's runs, those of one name below each other."""
    tables = {runs: table([cards[i] for i in places]) for runs, places in columns.items()}
    heads, _ = next(iter(tables.values()))
    rows = [[first, runs, *rest] for runs, (_, made) in tables.items() for first, *rest in made]
    order = list(dict.fromkeys(row[0] for row in rows))
    rows.sort(key=lambda row: order.index(row[0]))
    return [heads[0], "of", *heads[1:]], rows


def _numbers_by_settings(
    columns: Mapping[str, Sequence[int]], summaries: Sequence[Summary]
) -> Table:
    """A row a number that all runs have, a column for runs of the same settings."""
    rows = []
    for key in [key for key in summaries[0] if all(key in each for each in summaries)]:
        cells = []
        for places in columns.values():
            values = [summaries[place][key] for place in places]
            mean, spread = _numbers(values) if _are_numbers(values) else ["", ""]
            one = _shown(values[0]) if len(values) == 1 else f"{mean} ± {spread}"
            cells.append(one if mean or len(values) == 1 else _counted(map(str, values)))
        rows.append([key, *cells])
    return ["measure", *columns], rows


def claims_table(cards: Sequence[Card]) -> Table:
    """A row a claim: how often it stands how, and what was measured for it."""
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for card in cards:
        for claim in card["claims"]:
            by_name.setdefault(claim["name"], []).append(claim)
    rows = []
    for claims in by_name.values():
        measured = {
            name: [claim["measured"].get(name) for claim in claims] for name in _keys(claims)
        }
        figures = "; ".join(f"{name} {_mean_over_runs(found)}" for name, found in measured.items())
        rows.append([claims[0]["statement"], _counted(c["status"] for c in claims), figures])
    return ["claim", "runs", "measured"], rows


def scorers_table(cards: Sequence[Card]) -> Table:
    """A row a scorer: accuracy, calibration error and spread between categories."""
    rows = [
        [name, *(_mean_over_runs([s.get(key) for s in found]) for key in SCORER_FIGURES)]
        for name, found in _grouped(cards, lambda card: card["scorers"]).items()
    ]
    return ["scorer", *SCORER_FIGURES.values()], rows


def policies_table(cards: Sequence[Card]) -> Table:
    """A row a policy: gold (or the held-out score), win / tie / lose against SFT, KL,
    length, budget.
    """
    policies = _grouped(cards, lambda card: {p["name"]: p for p in card["policies"]})
    rows = []
    for name, found in policies.items():
        answers = [policy["sets"].get("main", {}) for policy in found]
        judged = [one.get("gold") or one.get("judge_score") for one in answers]
        outcomes = [_outcome_over_runs(found, place) for place in ("main", "forget", "held_out")]
        tail = [_mean_over_runs([one.get(key) for one in answers], 2) for key in ("kl", "length")]
        taken = [_mean_count(found, key) for key in ("num_sampled", "num_updates")]
        taken += [_mean_extra(found, key) for key in EXTRAS]
        rows.append([policy_name(name), _mean_over_runs(judged), *outcomes, *tail, *taken])
    sets = [f"win / tie / lose, {SETS[place]}" for place in ("main", "forget", "held_out")]
    heads = ["policy", "score, main prompts", *sets, "KL, nats", "length, tokens"]
    return [*heads, "responses sampled", "updates", *EXTRAS.values()], rows


def _mean_count(policies: Sequence[Mapping[str, Any]], key: str) -> str:
    """Mean over runs of a count of a policy's budget; nothing where no run knows it."""
    budgets = [policy.get("budget") for policy in policies]
    counts = [budget[key] for budget in budgets if budget]
    return f"{statistics.fmean(counts):,.0f}" if counts else ""


def _mean_extra(policies: Sequence[Mapping[str, Any]], key: str) -> str:
    """The same of what most policies do without; nothing for these, and where a card is older."""
    amounts = [policy["budget"].get(key) or 0 for policy in policies if policy.get("budget")]
    mean = statistics.fmean(amounts or [0])
    if mean <= (1 if key == "samples_per_answer" else 0):
        return ""
    return f"{mean:.4g}" if key == "judge_cost" else f"{mean:,.0f}"


def _outcome_over_runs(policies: Sequence[Mapping[str, Any]], place: str) -> str:
    """Mean shares against SFT, and the spread of wins minus losses over runs."""
    found = [policy["against_sft"].get(place, {}) for policy in policies]
    judged = [one.get("gold") or one.get("judge_score") for one in found]
    verdicts = [one for one in judged if one]
    if not verdicts:
        return ""
    shares = " / ".join(
        f"{statistics.fmean(one[key]['value'] for one in verdicts):.3f}"
        for key in ("win", "tie", "lose")
    )
    return f"{shares}; net {_mean_over_runs([one['net'] for one in verdicts])}"


def numbers_table(names: Sequence[str], summaries: Sequence[Summary]) -> Table:
    """One row a number that all runs have: mean, standard deviation, each run's value.

    Words (claims held or not) are counted instead.
    """
    common = [key for key in summaries[0] if all(key in summary for summary in summaries)]
    rows = []
    for key in common:
        values = [summary[key] for summary in summaries]
        middle = _numbers(values) if _are_numbers(values) else [_counted(map(str, values)), ""]
        rows.append([key, *middle, *map(_shown, values)])
    return ["measure", "mean", "std", *names], rows


def _grouped(
    cards: Iterable[Card], parts: Callable[[Card], Mapping[str, Any]]
) -> dict[str, list[Mapping[str, Any]]]:
    """By name, the parts of that name of all runs that have it."""
    result: dict[str, list[Mapping[str, Any]]] = {}
    for card in cards:
        for name, part in parts(card).items():
            result.setdefault(name, []).append(part)
    return result


def _keys(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for claim in claims for name in claim["measured"]))


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


def _are_numbers(values: Sequence[object]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _numbers(values: Sequence[object]) -> list[str]:
    numbers = [float(str(value)) for value in values]
    spread = f"{statistics.stdev(numbers):.3f}" if len(numbers) > 1 else ""
    return [f"{statistics.fmean(numbers):.3f}", spread]


def _counted(words: Iterable[str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in Counter(words).most_common())


def _shown(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value).replace("|", "/")
