"""Reading sweeps of constants that the papers do not publish, on validation data only.

A swept value's role is `<kind>_<constant>_<value>`, with `_recipe` behind the recipe's own. Scorers
are compared by the likelihood of the annotators' labels of the validation pairs, policies by wins
minus losses against SFT on the validation prompts, as annotators (in the synthetic world) or
held-out reward models judge them. Gold takes no part.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

import torch
import torch.nn.functional as F

from trimtab.models.reporting.kit.artifacts import Artifacts, ReportInputError
from trimtab.models.studies.measures import answers
from trimtab.models.studies.registry import exhibit
from trimtab.models.studies.results import Plot, SeedResult, titled

NLL, ACCURACY = "negative log-likelihood, nats", "accuracy"
NET, KL = "wins minus losses", "KL, nats"
SPREAD = "spread of answers, after / before"
# What two values may differ by and still count as equal: about a standard error of each measure.
EQUAL = {NLL: 0.01, NET: 0.04}
CLAIM = "The recipe's value is as good as any, on validation data"
UNPUBLISHED = "not published"
Measure = Callable[[Artifacts, str], dict[str, float]]


def measure_scorer(artifacts: Artifacts, role: str) -> dict[str, float]:
    """How likely a scorer finds the annotators' labels of the validation pairs."""
    rows = artifacts.scores(role, "validation").values()
    gap = torch.tensor(
        [row["chosen_score"] - row["rejected_score"] for row in rows], dtype=torch.float64
    )
    return {NLL: float(-F.logsigmoid(gap).mean()), ACCURACY: float((gap > 0).double().mean())}


def measure_meta_rm(artifacts: Artifacts, role: str) -> dict[str, float]:
    """The same, and how far it has spread the scores of answers to one prompt."""
    rows = artifacts.rows(role, "spreads.jsonl")
    before, after = (fmean(row[name] for row in rows) for name in ("before", "after"))
    return {**measure_scorer(artifacts, role), SPREAD: after / before}


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


def _read_sweep(
    constant: str, kind: str, measure: Measure, decisive: str, artifacts: Artifacts
) -> SeedResult:
    """A row a value; whether the recipe's is as good as any."""
    values = swept(artifacts, f"{kind}_{constant}_")
    recipes = [value for value, role in values.items() if role.endswith("_recipe")]
    if len(recipes) != 1:
        raise ReportInputError(f"one value of {constant} must be the recipe's, found {recipes}")
    (recipe,) = recipes
    found = {value: measure(artifacts, role) for value, role in values.items()}
    sign = -1.0 if decisive == NLL else 1.0
    best = max(sign * row[decisive] for row in found.values())
    return SeedResult(
        table={f"{v:g}{' (recipe)' * (v == recipe)}": row for v, row in found.items()},
        checks={
            f"the recipe's value is within {EQUAL[decisive]} of the best": best
            - sign * found[recipe][decisive]
            < EQUAL[decisive]
        },
        plots=[
            Plot(
                f"{titled(column.partition(',')[0])} by {constant.replace('_', ' ')}",
                f"{constant.replace('_', ' ')} (the recipe has {recipe:g})",
                f"{column}\n(validation)",
                {
                    "validation": (
                        [float(index) for index in range(len(found))],
                        [row[column] for row in found.values()],
                    )
                },
                ticks=tuple(f"{value:g}" for value in found),
            )
            for column in next(iter(found.values()))
        ],
    )


@exhibit(
    "constants",
    "smoothing",
    shows="alpha of label smoothing, on the recipe's treatment of labels",
    claim=CLAIM,
    printed=UNPUBLISHED,
)
def smoothing(artifacts: Artifacts) -> SeedResult:
    """Reward models by the smoothing of their labels."""
    return _read_sweep("smoothing", "scorer", measure_scorer, NLL, artifacts)


@exhibit(
    "constants",
    "margin-clip",
    shows="The largest adaptive margin, at a margin of the strength itself",
    claim=CLAIM,
    printed=UNPUBLISHED,
)
def margin_clip(artifacts: Artifacts) -> SeedResult:
    """Reward models by the largest margin."""
    return _read_sweep("margin_clip", "scorer", measure_scorer, NLL, artifacts)


@exhibit(
    "constants", "temperature", shows="tau of SimCSE on pairs", claim=CLAIM, printed=UNPUBLISHED
)
def temperature(artifacts: Artifacts) -> SeedResult:
    """Contrastive reward models by temperature."""
    return _read_sweep("temperature", "scorer", measure_scorer, NLL, artifacts)


@exhibit(
    "constants",
    "num-policies",
    shows="N of the Advantage Model's equation 8",
    claim=CLAIM,
    printed=UNPUBLISHED,
)
def num_policies(artifacts: Artifacts) -> SeedResult:
    """Advantage Models by N."""
    return _read_sweep("num_policies", "scorer", measure_scorer, NLL, artifacts)


@exhibit(
    "constants",
    "num-clusters",
    shows="c, the clusters of selective rehearsal, as many examples in all",
    claim=CLAIM,
    printed=UNPUBLISHED,
)
def num_clusters(artifacts: Artifacts) -> SeedResult:
    """Policies by the number of clusters rehearsed."""
    return _read_sweep("num_clusters", "policy", measure_policy, NET, artifacts)


@exhibit(
    "constants",
    "per-cluster",
    shows="k, the examples kept of each cluster",
    claim=CLAIM,
    printed=UNPUBLISHED,
)
def per_cluster(artifacts: Artifacts) -> SeedResult:
    """Policies by the examples rehearsed of each cluster."""
    return _read_sweep("per_cluster", "policy", measure_policy, NET, artifacts)


@exhibit(
    "constants",
    "meta-step",
    shows="eta, the step of MetaRM's ascent",
    claim=CLAIM,
    printed=UNPUBLISHED,
)
def meta_step(artifacts: Artifacts) -> SeedResult:
    """MetaRM by the step of its ascent."""
    return _read_sweep("meta_step", "scorer", measure_meta_rm, NLL, artifacts)
