"""Reading what methods gain for their distance from SFT, each at several strengths.

As figure 2 of [DPO, arXiv 2305.18290]. A setting is a point: on the main prompts the mean KL to SFT
and the mean gold score over SFT's (of people's data that of the held-out reward models). Every KL
is measured alike, on answers that the policy itself has sampled, but that of best of n: what it
chooses has no likelihood, and the KL is an upper bound, so that it is drawn and not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from models.reporting.kit.artifacts import Artifacts, Row
from models.reporting.kit.names import policy_name
from models.studies.constants import swept
from models.studies.equal_kl import Line, highest, lead_of
from models.studies.reading import Plot, Reading

# What is varied of each arm.
CONSTANTS = {
    "full": "KL coefficient",
    "ppo_max_am": "KL coefficient",
    "rejection_sampling": "K",
    "rest": "last threshold",
    "dpo": "beta",
    "cpl": "alpha",
    "best_of_n": "n",
}
NAMES = {arm: policy_name(arm).removesuffix(" (round 1)") for arm in CONSTANTS}
NAMES["best_of_n"] += " (KL: upper bound)"
START, DPO, BOUND = policy_name("sft"), NAMES["dpo"], NAMES["best_of_n"]
KL, LENGTH = "KL, nats", "length, tokens"
MEASURES = {"gold": "gold", "judge_score": "held-out score"}
UNITS = {"gold": "0 to 1", "judge_score": "no unit"}


def frontier(artifacts: Artifacts) -> Reading:
    """A row a setting; whether DPO gains more than each other method at equal KL."""
    start = _by_set(artifacts, "eval_sft")
    measure = next(key for key in MEASURES if key in start["main"][0])
    gain = f"{MEASURES[measure]} over SFT"
    table: dict[str, dict[str, float]] = {}
    lines: dict[str, Line] = {START: ([0.0], [0.0])}
    for arm, constant in CONSTANTS.items():
        rows = []
        for value, role in swept(artifacts, f"eval_{arm}_").items():
            found = _by_set(artifacts, role)
            gained = {
                place: _mean(found[place], measure) - _mean(start[place], measure)
                for place in ("main", "forget")
                if place in start
            }
            row = {gain: gained["main"], KL: _mean(found["main"], "kl")}
            row |= {f"{gain}, forget set": gained["forget"]} if "forget" in gained else {}
            rows.append(row | {LENGTH: _mean(found["main"], "length")})
            recipe = " (recipe)" if role.endswith("_recipe") else ""
            table[f"{NAMES[arm]}, {constant} {value:g}{recipe}"] = rows[-1]
        lines[NAMES[arm]] = ([row[KL] for row in rows], [row[gain] for row in rows])
    leads = {name: lead_of(lines[DPO], line) for name, line in _measured(lines).items()}
    return Reading(
        table,
        {
            f"DPO gains more than {name} at equal KL": lead is not None and lead > 0
            for name, lead in leads.items()
            if name != DPO
        },
        [
            Plot(
                "What is gained for the distance from SFT",
                "KL to SFT (nats per answer), main test prompts",
                f"mean {gain} ({UNITS[measure]}), main test prompts",
                lines,
                kind="paths",
                note="Higher and further to the left is better. A point a setting, in their order.",
            )
        ],
    )


def gains_most(readings: Sequence[Reading]) -> str:
    """Which method has the highest gain at equal KL, over seeds."""
    gain = next(iter(next(iter(readings[0].table.values()))))
    return highest([_measured(reading.plots[0].series) for reading in readings], gain)


def _measured(lines: dict[str, Line]) -> dict[str, Line]:
    """The methods whose KL is measured, and no bound."""
    return {name: line for name, line in lines.items() if name not in (START, BOUND)}


def _by_set(artifacts: Artifacts, role: str) -> dict[str, list[Row]]:
    """The answers of an evaluation by set of prompts."""
    found: dict[str, list[Row]] = {}
    for row in artifacts.rows(role, "responses.jsonl"):
        found.setdefault(row["set"], []).append(row)
    return found


def _mean(rows: Sequence[Row], measure: str) -> float:
    return fmean(row[measure] for row in rows)
