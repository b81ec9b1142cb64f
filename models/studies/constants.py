"""Reading sweeps of constants that the papers do not publish, on validation data only.

A swept value's role is `<kind>_<constant>_<value>`, with `_recipe` behind the recipe's own. Scorers
are compared by the likelihood of the annotators' labels of the validation pairs, policies by wins
minus losses against SFT on the validation prompts, as annotators (in the synthetic world) or
held-out reward models judge them. Gold takes no part.
"""

from __future__ import annotations

from functools import partial
from statistics import fmean

import torch.nn.functional as F

from trimtab.models.reporting.kit.artifacts import ReportInputError
from trimtab.models.reporting.kit.names import capitalised
from trimtab.models.studies.measures import KL, SeedRun, share_right
from trimtab.models.studies.registry import READERS, Reader
from trimtab.models.studies.results import Plot, SeedResult, line_at
from trimtab.models.studies.variants import CONSTANTS

NLL, ACCURACY = "negative log-likelihood, nats", "accuracy"
NET = "wins minus losses"
SPREAD = "spread of answers, after / before"
# What two values may differ by and still count as equal: about a standard error of each measure.
EQUAL = {NLL: 0.01, NET: 0.04}


def measure_scorer(run: SeedRun, role: str) -> dict[str, float]:
    """How likely a scorer finds the annotators' labels of the validation pairs; of MetaRM also how
    far it has spread the scores of answers to one prompt."""
    gap = run.validation_gap(role)
    measured = {NLL: float(-F.logsigmoid(gap).mean()), ACCURACY: share_right(gap)}
    if spreads := run.rows(role, "spreads.jsonl"):
        before, after = (fmean(row[name] for row in spreads) for name in ("before", "after"))
        measured[SPREAD] = after / before
    return measured


def measure_policy(run: SeedRun, role: str) -> dict[str, float]:
    """How a policy does against SFT on the validation prompts."""
    name = role.removeprefix("policy_")
    return {NET: run.validated(f"judge_{name}"), KL: run.answers(name, "validation")[KL]}


def read_sweep(constant: str, run: SeedRun) -> SeedResult:
    """Scorers or policies by the value of a constant, `-` in its name as in an exhibit's."""
    name, words = constant.replace("-", "_"), constant.replace("-", " ")
    scorers = run.swept(f"scorer_{name}_")
    values = scorers or run.swept(f"policy_{name}_")
    recipes = [value for value, role in values.items() if role.endswith("_recipe")]
    if len(recipes) != 1:
        raise ReportInputError(f"one value of {name} must be the recipe's, found {recipes}")
    (recipe,) = recipes
    measure, decisive, sign = (measure_scorer, NLL, -1.0) if scorers else (measure_policy, NET, 1.0)
    rows = {value: measure(run, role) for value, role in values.items()}
    worse = max(sign * row[decisive] for row in rows.values()) - sign * rows[recipe][decisive]
    return SeedResult(
        {f"{v:g}{' (recipe)' if v == recipe else ''}": row for v, row in rows.items()},
        {f"the recipe's value is within {EQUAL[decisive]} of the best": worse < EQUAL[decisive]},
        [
            Plot(
                f"{capitalised(column.partition(',')[0])} by {words}",
                f"{words} (the recipe has {recipe:g})",
                f"{column}\n(validation)",
                {"validation": line_at(range(len(rows)), rows.values(), column)},
                ticks=tuple(f"{value:g}" for value in rows),
            )
            for column in rows[recipe]
        ],
    )


READERS |= {f"constants-{name}": Reader(partial(read_sweep, name)) for name in CONSTANTS}
