"""Stage `win_matrix`: every two policies of one or more seeds, judged on what they answered.

Answers carry their scores, so that a hundred pairs of policies are arithmetic on one reading of
them: no stage a pair is needed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from trimtab.models.config.reporting import WinMatrixConfig
from trimtab.models.reporting.compare.answers import SFT, Outcomes, read_answers, read_verdicts
from trimtab.models.reporting.compare.win_matrix import MAIN, build_win_matrix
from trimtab.models.training.stage import Stage


def run(config: WinMatrixConfig, stage: Stage) -> None:
    """Inputs: `<seed>.<policy>` (evaluate artifacts), the policy `sft` of every seed among them,
    and `verdicts_<number>` (judge_answers artifacts of the same evaluations), if any.

    Output: win_matrix.json (see `trimtab.models.reporting.compare.win_matrix`).
    """
    seeds = stage.roles_by_seed()
    answers = read_answers(seeds)
    models: dict[str, dict[str, Any]] = {}
    verdicts: dict[str, list[Outcomes]] = defaultdict(list)
    for path in stage.several("verdicts"):
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        models[summary["name"]] = summary
        judged = read_verdicts(summary["name"], path / "verdicts.jsonl", answers, list(seeds))
        for place, outcomes in judged.items():
            verdicts[place].append(outcomes)
    matrix = build_win_matrix(answers, config, verdicts, models)
    stage.write_json("win_matrix.json", matrix.to_json())
    against_sft = [d for d in matrix.duels if d.theirs == SFT and d.place == MAIN]
    stage.write_summary({f"{duel.ours}_{duel.judge}_net": duel.net.value for duel in against_sft})
