"""The table over runs, by hand."""

from __future__ import annotations

from models.report.compare import table


def test_means_spread_words_and_only_what_all_runs_have() -> None:
    text = table(
        ["a", "b", "c"],
        [
            {"accuracy": 0.5, "claim": "held", "only_here": 1},
            {"accuracy": 0.7, "claim": "failed"},
            {"accuracy": 0.6, "claim": "held"},
        ],
    )
    # Mean .6; deviations -.1, .1, 0: variance .02 / 2, std .1.
    assert text.splitlines() == [
        "| measure | mean | std | a | b | c |",
        "|---|---|---|---|---|---|",
        "| accuracy | 0.600 | 0.100 | 0.500 | 0.700 | 0.600 |",
        "| claim | 2 held, 1 failed |  | held | failed | held |",
    ]


def test_a_single_run_has_no_spread() -> None:
    assert "| 3.000 |  | 3 |" in table(["a"], [{"count": 3}])
