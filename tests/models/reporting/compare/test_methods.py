"""What is said of methods, and the page, from artifacts of two seeds written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.models.reporting.compare.conftest import Write
from trimtab.models.config.reporting import CompareConfig, LineageEntry, WinMatrixConfig
from trimtab.models.reporting.compare.methods import answer_of, methods_of
from trimtab.models.reporting.compare.page import methods_table
from trimtab.models.reporting.compare.win_matrix import WinMatrix
from trimtab.models.reporting.run.policies import Budget
from trimtab.models.stages import compare, win_matrix
from trimtab.models.statistics.measured import Spread
from trimtab.models.training.stage import Stage

SEEDS = (3, 7)
PROMPT = "<user> count the letter a in b a b a <assistant>"
ARMS = ("full", "dpo", "best_of_n", "vanilla")
# The best beats SFT always, DPO two times in three; vanilla PPO loses, the best of n does neither.
GOLDS = {
    "sft": [0.5] * 30,
    "full": [0.9] * 30,
    "dpo": [0.9, 0.8, 0.4] * 10,
    "best_of_n": [0.6, 0.4] * 15,
    "vanilla": [0.1] * 30,
}


def _entry(seed: int, role: str, stage: str, **parents: str) -> LineageEntry:
    found = {name: {"key": f"{seed}.{key}"} for name, key in parents.items()}
    name = f"{seed}.{role}"
    return LineageEntry(
        role=name, stage=stage, key=name, digest="", seconds=float(seed), parents=found
    )


def _ppo(seed: int) -> dict[str, Any]:
    """Four steps whose KL grows by a tenth of the seed."""
    metrics = {"score": 0.0, "perplexity": 2.0, "response_length": 5.0, "score_std": 1.0}
    return {
        "metrics.jsonl": [
            {"step": step, "time": 0.0, "metrics": {**metrics, "kl": seed * step / 10}}
            for step in range(1, 5)
        ],
        "rollouts.jsonl": [
            {"step": step, "prompt": PROMPT, "response": "right words", "score": 0.0}
            for step in range(1, 5)
        ],
        "summary.json": {
            "num_sampled": 100 * seed,
            "num_updates": 8,
            "num_trained_tokens": 4000,
            "judge_tokens": 1000 * seed,
            "judge_cost": seed / 10,
        },
    }


@pytest.fixture
def inputs(tmp_path: Path, write: Write) -> dict[str, Path]:
    """Artifacts of both seeds, and the win matrix of their evaluations."""
    evaluations = {}
    for seed in SEEDS:
        evaluations |= write(seed, GOLDS)
    stage = Stage(evaluations, tmp_path / "matrix")
    win_matrix.run(WinMatrixConfig(num_resamples=60), stage)
    found = {"win_matrix": tmp_path / "matrix" / "output"}
    best = {"main": {"k": [1, 2], "kl_bound": [0.0, 0.2], "score": [0, 1], "gold": [0.5, 0.6]}}
    for seed in SEEDS:
        roles: dict[str, dict[str, Any]] = {
            "preferences": {},
            "policy_full": _ppo(seed),
            "policy_dpo": {"summary.json": {"num_updates": 7, "num_trained_tokens": 900}},
            "eval_best_of_n": {"best_of_k.json": best},
        }
        for role, files in roles.items():
            folder = tmp_path / "in" / f"{seed}.{role}"
            folder.mkdir(parents=True)
            for name, content in files.items():
                rows = content if isinstance(content, list) else [content]
                (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
            found[f"{seed}.{role}"] = folder
    return found


CONFIG = CompareConfig(
    recipe="<b>smoke</b>",
    seeds=SEEDS,
    arms=ARMS,
    num_candidates=2,
    lineage=tuple(
        entry
        for seed in SEEDS
        for entry in (
            _entry(seed, "sft", "sft"),
            _entry(seed, "policy_full", "ppo_max", policy="sft"),
            _entry(seed, "policy_dpo", "dpo", policy="sft"),
        )
    ),
)


def _matrix(inputs: dict[str, Path]) -> WinMatrix:
    text = (inputs["win_matrix"] / "win_matrix.json").read_text()
    return WinMatrix.from_json(json.loads(text))


def test_methods_by_hand(inputs: dict[str, Path]) -> None:
    methods = methods_of(_matrix(inputs), CONFIG, inputs)
    # SFT beats DPO where that has .4, in ten of 30; the best of n wins five of these and ties five.
    assert [method.name for method in methods] == ["full", "dpo", "sft", "best_of_n", "vanilla"]
    full, dpo, sft, best, vanilla = methods
    # Means over seeds 3 and 7: 300 and 700 responses, 3 and 7 seconds.
    assert full.budget is not None
    assert (full.budget.num_sampled, full.budget.num_trained_tokens) == (500, 4000)
    assert full.budget.seconds == 5.0
    assert dpo.budget is not None
    assert (dpo.budget.num_sampled, dpo.budget.num_trained_tokens) == (0, 900)
    assert best.budget == Budget(samples_per_answer=2)
    assert sft.budget is vanilla.budget is None
    # A judge rated what seed 3 and 7 learned from: 3,000 and 7,000 tokens, .3 and .7.
    assert (full.budget.judge_tokens, full.budget.judge_cost) == (5000, pytest.approx(0.5))
    # KL is .5, 1, 1.5 and 2 in the mean of both seeds; smoothed over five steps, fewer at the ends.
    assert full.path is not None
    assert full.path[0] == pytest.approx([1.0, 1.25, 1.25, 1.5])
    assert best.path == ([0.0, 0.2], [0.5, 0.6])
    assert dpo.path is None
    assert sft.against_sft is None
    assert dpo.against_sft is not None
    assert dpo.against_sft.net.value == pytest.approx(1 / 3)
    assert dpo.forget is not None
    assert dpo.forget.tie.value == pytest.approx(1.0)


def test_the_answer_names_every_method_once(inputs: dict[str, Path]) -> None:
    matrix = _matrix(inputs)
    answer = answer_of(methods_of(matrix, CONFIG, inputs), matrix)
    assert answer.sentence == (
        "2 of 4 methods are clearly better than SFT by the gold scorer: Full method; DPO."
    )
    assert answer.details == [
        "Not clearly better or worse: Best of n answers of SFT.",
        "Clearly worse: Vanilla PPO.",
        "Highest rated is Full method; it clearly beats all others.",
    ]
    assert answer.status == "better"
    ipo = methods_of(matrix, CONFIG.model_copy(update={"dpo_loss": "ipo"}), inputs)
    assert [method.words for method in ipo if method.name == "dpo"] == ["IPO"]


def test_the_page_and_its_table(tmp_path: Path, inputs: dict[str, Path]) -> None:
    compare.run(CONFIG, Stage(inputs, tmp_path))
    output = tmp_path / "output"
    page = " ".join((output / "report.html").read_text().split())
    assert page.index("2 of 4 methods are clearly better") < page.index("All methods")
    assert "<b>smoke" not in page
    assert "samples 2 answers each time it is asked" in page
    assert "By the gold scorer" in page
    assert "The same by held-out reward models" in page
    table = (output / "methods.md").read_text().splitlines()
    dpo = next(line for line in table if line.startswith("| DPO"))
    # Two in three won, one lost; seeds alike: no spread.
    assert "| 67 / 0 / 33 | +33 [" in dpo
    assert dpo.endswith("| 0 | 900 | 5.0 |  |  |  |")
    of_cost = "| responses sampled | tokens trained | seconds | samples an answer | judge's tokens"
    assert of_cost in "\n".join(table)
    assert next(line for line in table if line.startswith("| Best")).endswith("| 2 |  |  |")
    assert next(line for line in table if line.startswith("| Full")).endswith("|  | 5,000 | 0.5 |")
    assert '<td class="n">5,000</td> <td class="n">0.5</td>' in page
    card = json.loads((output / "scorecard.json").read_text())
    assert card["methods"][0]["name"] == "full"
    assert card["seconds"] == 3 * (3 + 7)
    summary = json.loads((output / "summary.json").read_text())
    assert summary["full_net"] == pytest.approx(1.0)
    assert summary["vanilla_gold"] == pytest.approx(0.1)
    assert {path.name for path in (output / "plots").iterdir()} == {
        "against_sft.svg",
        "frontier.svg",
    }


def test_what_no_method_has_is_no_column(inputs: dict[str, Path]) -> None:
    methods = methods_of(_matrix(inputs), CONFIG, inputs)
    heads = [
        methods_table(CONFIG, [m for m in methods if m.name in names], "gold").splitlines()[2]
        for names in (("dpo", "sft"), ("dpo", "best_of_n"))
    ]
    assert heads[0].endswith("| tokens trained | seconds |")
    assert heads[1].endswith("| seconds | samples an answer |")


def test_one_seed_has_no_spread() -> None:
    assert Spread(0.5, 0.4, 0.6, [0.5]).std == 0.0
    # Divided by seeds - 1: (.1^2 + .1^2) / 1.
    assert Spread(0.5, 0.4, 0.6, [0.4, 0.6]).std == pytest.approx(0.02**0.5)
