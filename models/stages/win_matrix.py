"""Stage `win_matrix`: every two policies of one or more seeds, judged on what they answered.

Answers carry their scores, so that a hundred pairs of policies are arithmetic on one reading of
them: no stage a pair is needed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from trimtab.models.config.reporting import WinMatrixConfig
from trimtab.models.reporting.compare.answers import START, Outcomes, read_answers, read_verdicts
from trimtab.models.reporting.compare.win_matrix import MAIN, build_win_matrix
from trimtab.models.training.progress import write_json


def run(config: WinMatrixConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Inputs: `<seed>.<policy>` (evaluate artifacts), the policy `sft` of every seed among them,
    and `verdicts_<number>` (judge_answers artifacts of the same evaluations), if any.

    Output: win_matrix.json (see `trimtab.models.reporting.compare.win_matrix`).
    """
    evaluations: dict[int, dict[str, Path]] = defaultdict(dict)
    judged = {name: path for name, path in inputs.items() if name.startswith("verdicts_")}
    for name in inputs.keys() - judged.keys():
        seed, _, policy = name.partition(".")
        evaluations[int(seed)][policy] = inputs[name]
    seeds = dict(sorted(evaluations.items()))
    answers = read_answers(seeds)
    models: dict[str, dict[str, Any]] = {}
    verdicts: dict[str, list[Outcomes]] = defaultdict(list)
    for _, path in sorted(judged.items()):
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        models[summary["name"]] = summary
        found = read_verdicts(summary["name"], path / "verdicts.jsonl", answers, list(seeds))
        for place, outcomes in found.items():
            verdicts[place].append(outcomes)
    matrix = build_win_matrix(answers, config, verdicts, models)
    write_json(workdir / "output" / "win_matrix.json", matrix.to_json())
    against_sft = [d for d in matrix.duels if d.theirs == START and d.place == MAIN]
    write_json(
        workdir / "output" / "summary.json",
        {f"{duel.ours}_{duel.judge}_net": duel.net.value for duel in against_sft},
    )
