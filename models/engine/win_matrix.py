"""Stage `win_matrix`: every two policies of one or more seeds, judged on what they answered.

Answers carry their scores, so that a hundred pairs of policies are arithmetic on one reading of
them: no stage a pair is needed.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from models.comparison.answers import START, read_answers
from models.comparison.config import WinMatrixConfig
from models.comparison.matrix import MAIN, judge_all
from models.engine.progress import write_json

CONFIG = WinMatrixConfig


def run(config: WinMatrixConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Inputs: `<seed>.<policy>` (evaluate artifacts), the policy `sft` of every seed among them.

    Output: win_matrix.json (see `models.comparison.matrix`).
    """
    evaluations: dict[int, dict[str, Path]] = defaultdict(dict)
    for name, path in inputs.items():
        seed, _, policy = name.partition(".")
        evaluations[int(seed)][policy] = path
    seeds = dict(sorted(evaluations.items()))
    matrix = judge_all(read_answers(seeds), config)
    write_json(workdir / "output" / "win_matrix.json", matrix.to_json())
    against_sft = [d for d in matrix.duels if d.theirs == START and d.place == MAIN]
    write_json(
        workdir / "output" / "summary.json",
        {f"{duel.ours}_{duel.judge}_net": duel.net.value for duel in against_sft},
    )
