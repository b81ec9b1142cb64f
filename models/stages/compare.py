"""Stage `compare`: one page about several ways to optimise a policy, over one or more seeds."""

from __future__ import annotations

import json
from dataclasses import asdict

from trimtab.models.config.reporting import CompareConfig
from trimtab.models.reporting.compare.methods import answer_of, methods_of
from trimtab.models.reporting.compare.page import chart_against_sft, frontier, methods_table, render
from trimtab.models.reporting.compare.win_matrix import WinMatrix
from trimtab.models.training.stage import Stage


def run(config: CompareConfig, stage: Stage) -> None:
    """Inputs: `win_matrix`; by `<seed>.<role>` the policies and what they learned from.

    Output: report.html (self-contained), scorecard.json, methods.md (the table), plots/.
    """
    text = (stage.inputs["win_matrix"] / "win_matrix.json").read_text(encoding="utf-8")
    matrix = WinMatrix.from_json(json.loads(text))
    methods = methods_of(matrix, config, stage.inputs)
    answer, judge = answer_of(methods, matrix), matrix.judges[0]
    charts = {
        "against_sft": chart_against_sft(methods, judge),
        "frontier": frontier(methods, judge),
    }
    seconds = sum({entry.key: entry.seconds for entry in config.lineage}.values())
    card = {
        "recipe": config.recipe,
        "seeds": config.seeds,
        "answer": asdict(answer),
        "seconds": seconds,
        "methods": [asdict(method) for method in methods],
        "win_matrix": matrix.to_json(),
    }
    stage.write_json("scorecard.json", card)
    page = render(config, matrix, methods, answer, list(charts.values()), seconds)
    stage.write_text("report.html", page)
    stage.write_text("methods.md", methods_table(config, methods, judge))
    stage.write_plots((name, chart.svg) for name, chart in charts.items())
    numbers: dict[str, float] = {}
    for method in methods:
        figures = {**method.means, "rating": method.rated.rating}
        if method.against_sft is not None:
            figures["net"] = method.against_sft.net
        numbers |= {f"{method.name}_{name}": figure.value for name, figure in figures.items()}
    stage.write_summary({"answer": answer.sentence, **numbers})
