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

from trimtab.models.reporting.kit.artifacts import Artifacts, ReportInputError
from trimtab.models.studies.measures import answers, share_right, validation_gap
from trimtab.models.studies.registry import READERS, Reader, exhibits_of
from trimtab.models.studies.results import Plot, SeedResult, titled

NLL, ACCURACY = "negative log-likelihood, nats", "accuracy"
NET, KL = "wins minus losses", "KL, nats"
SPREAD = "spread of answers, after / before"
# What two values may differ by and still count as equal: about a standard error of each measure.
EQUAL = {NLL: 0.01, NET: 0.04}


def measure_scorer(artifacts: Artifacts, role: str) -> dict[str, float]:
    """How likely a scorer finds the annotators' labels of the validation pairs; of MetaRM also how
    far it has spread the scores of answers to one prompt."""
    gap = validation_gap(artifacts, role)
    measured = {NLL: float(-F.logsigmoid(gap).mean()), ACCURACY: share_right(gap)}
    spreads = artifacts.rows(role, "spreads.jsonl")
    if spreads:
        before, after = (fmean(row[name] for row in spreads) for name in ("before", "after"))
        measured[SPREAD] = after / before
    return measured


def measure_policy(artifacts: Artifacts, role: str) -> dict[str, float]:
    """How a policy does against SFT on the validation prompts."""
    name = role.removeprefix("policy_")
    document = artifacts.document(f"judge_{name}", "judgement.json")
    verdict = document.get("validation_annotators") or document.get("validation_judge_score")
    if verdict is None:
        raise ReportInputError(f"judge_{name} judged no validation prompts")
    return {NET: verdict["net"], KL: answers(artifacts, name, "validation")["KL, nats"]}


def swept(artifacts: Artifacts, prefix: str) -> dict[float, str]:
    """The roles of a prefix by the value behind it, in order of the values."""
    roles = [role for role in artifacts.inputs if role.startswith(prefix)]
    values = {float(role.removeprefix(prefix).removesuffix("_recipe")): role for role in roles}
    return {value: values[value] for value in sorted(values)}


def read_sweep(constant: str, artifacts: Artifacts) -> SeedResult:
    """Scorers or policies by the value of a constant, `-` in its name as in an exhibit's."""
    name = constant.replace("-", "_")
    scorers, policies = (swept(artifacts, f"{kind}_{name}_") for kind in ("scorer", "policy"))
    values, decisive = (scorers, NLL) if scorers else (policies, NET)
    recipes = [value for value, role in values.items() if role.endswith("_recipe")]
    if len(recipes) != 1:
        raise ReportInputError(f"one value of {name} must be the recipe's, found {recipes}")
    (recipe,) = recipes
    measure = measure_scorer if scorers else measure_policy
    rows = {value: measure(artifacts, role) for value, role in values.items()}
    sign = -1.0 if decisive == NLL else 1.0
    best = max(sign * row[decisive] for row in rows.values())
    words = constant.replace("-", " ")
    return SeedResult(
        table={f"{v:g}{' (recipe)' if v == recipe else ''}": row for v, row in rows.items()},
        checks={
            f"the recipe's value is within {EQUAL[decisive]} of the best": best
            - sign * rows[recipe][decisive]
            < EQUAL[decisive]
        },
        plots=[
            Plot(
                f"{titled(column.partition(',')[0])} by {words}",
                f"{words} (the recipe has {recipe:g})",
                f"{column}\n(validation)",
                {
                    "validation": (
                        [float(index) for index in range(len(rows))],
                        [row[column] for row in rows.values()],
                    )
                },
                ticks=tuple(f"{value:g}" for value in rows),
            )
            for column in rows[recipe]
        ],
    )


for declared in exhibits_of("constants", "all"):
    READERS[declared.slug] = Reader(partial(read_sweep, declared.name))
