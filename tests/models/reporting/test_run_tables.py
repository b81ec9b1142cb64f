"""The tables over runs, by hand."""

from __future__ import annotations

from trimtab.models.reporting.run_tables import (
    claims_table,
    markdown,
    numbers_table,
    policies_table,
    scorers_table,
)


def test_means_spread_words_and_only_what_all_runs_have() -> None:
    table = numbers_table(
        ["a", "b", "c"],
        [
            {"accuracy": 0.5, "claim": "held", "only_here": 1},
            {"accuracy": 0.7, "claim": "failed"},
            {"accuracy": 0.6, "claim": "held"},
        ],
    )
    # Mean .6; deviations -.1, .1, 0: variance .02 / 2, std .1.
    assert markdown(*table).splitlines() == [
        "| measure | mean | std | a | b | c |",
        "| --- | --- | --- | --- | --- | --- |",
        "| accuracy | 0.600 | 0.100 | 0.500 | 0.700 | 0.600 |",
        "| claim | 2 held, 1 failed |  | held | failed | held |",
    ]


def test_a_single_run_has_no_spread() -> None:
    assert "| 3.000 |  | 3 |" in markdown(*numbers_table(["a"], [{"count": 3}]))


def _estimate(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 1, "high": value + 1}


NO_EXTRAS = {"samples_per_answer": 1, "judge_tokens": 0, "judge_cost": 0.0}


def _policy(name: str, net: float) -> dict[str, object]:
    shares = {"win": _estimate(0.5), "tie": _estimate(0.25), "lose": _estimate(0.25)}
    return {
        "name": name,
        "sets": {"main": {"gold": _estimate(0.5), "kl": _estimate(2), "length": _estimate(7)}},
        "against_sft": {"main": {"gold": {**shares, "net": _estimate(net)}}},
        "budget": {"num_sampled": round(10_000 * net), "num_updates": 70, **NO_EXTRAS},
    }


def test_claims_are_counted_and_what_was_measured_is_averaged() -> None:
    claim = {"name": "a", "statement": "It helps", "status": "holds"}
    cards = [
        {"claims": [{**claim, "measured": {"gain": _estimate(1.0)}}]},
        {"claims": [{**claim, "status": "fails", "measured": {"gain": _estimate(3.0)}}]},
        {"claims": []},
    ]
    # Mean 2, deviations -1 and 1: standard deviation sqrt(2).
    row = "| It helps | 1 holds, 1 fails | gain 2.000 ± 1.414 |"
    assert markdown(*claims_table(cards)).splitlines()[-1] == row
    assert markdown(*claims_table(cards[:1])).endswith("| gain 1.000 [0.000, 2.000] |")


def test_policies_show_shares_and_the_spread_of_the_net() -> None:
    cards = [{"policies": [_policy("full", net)]} for net in (0.1, 0.3)]
    shown = markdown(*policies_table(cards)).splitlines()[-1]
    assert "| 0.500 / 0.250 / 0.250; net 0.200 ± 0.141 |  |  | 2.00 ± 0.00 | 7.00" in shown
    assert shown.endswith("| 2,000 | 70 |  |  |  |")
    without = _policy("sft", 0.1) | {"budget": None}
    assert markdown(*policies_table([{"policies": [without]}])).endswith("|  |  |  |  |  |")
    extra = {"judge_tokens": 3000, "judge_cost": 0.25, "samples_per_answer": 8}
    rated = _policy("rlaif_direct", 0.1) | {"budget": {"num_sampled": 4, "num_updates": 2} | extra}
    cards = [{"policies": [rated]}, {"policies": [rated]}]
    assert markdown(*policies_table(cards)).endswith("| 4 | 2 | 8 | 3,000 | 0.25 |")


def test_a_scorer_without_gold_leaves_those_cells_empty() -> None:
    scorer = {"label_accuracy": _estimate(0.75), "clean_accuracy": None}
    shown = markdown(*scorers_table([{"scorers": {"baseline": scorer}}])).splitlines()[-1]
    assert shown.startswith("| baseline |  | 0.750 [-0.250, 1.750] |  |")
