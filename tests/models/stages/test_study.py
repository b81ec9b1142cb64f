"""A study's page and finding, from artifacts of two seeds written by hand."""

from __future__ import annotations

import json
from pathlib import Path

from trimtab.models.config.reporting import StudyConfig
from trimtab.models.stages.study import run
from trimtab.models.training.stage import Stage


def _artifacts(folder: Path, seed: int) -> dict[str, Path]:
    """Twenty held-out pairs of rising strength, the weakest `seed` of them labelled wrong."""
    strength = [
        {"id": f"e{n}", "split": "test", "strength_mean": n - 5.0, "strength_std": 1.0}
        for n in range(20)
    ]
    gold = {True: (0.0, 1.0), False: (1.0, 0.0)}
    truth = [
        {
            "id": f"e{n}",
            "kind": "clear",
            "is_wrong": n < seed,
            "gold_chosen": gold[n < seed][0],
            "gold_rejected": gold[n < seed][1],
        }
        for n in range(20)
    ]
    roles = {"strength": {"strength.jsonl": strength}, "preferences": {"truth.jsonl": truth}}
    for role, files in roles.items():
        (folder / f"{seed}" / role).mkdir(parents=True)
        for name, rows in files.items():
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / f"{seed}" / role / name).write_text(text)
    return {f"{seed}.{role}": folder / f"{seed}" / role for role in roles}


def test_seeds_become_one_page(tmp_path: Path) -> None:
    config = StudyConfig(paper="part-2", exhibit="figure-3", scale="<b>smoke</b>", seeds=(2, 4))
    inputs = _artifacts(tmp_path / "in", 2) | _artifacts(tmp_path / "in", 4)
    run(config, Stage(inputs, tmp_path))
    output = tmp_path / "output"
    card = json.loads((output / "scorecard.json").read_text())
    # Tenths are pairs: of seed 2 the first is all wrong, of seed 4 the first two are.
    weakest = card["table"]["agreement with gold"]["weakest tenth"]
    assert weakest == {"mean": 0.0, "std": 0.0, "values": [0.0, 0.0]}
    # Ranks of (0, 1, ..., 1) and (0, 0, 1, ..., 1) with the tenths: .522 and .696, below .8.
    assert list(card["checks"].values()) == [[False, False], [True, True], [True, True]]
    assert card["status"] == "in part"
    summary = json.loads((output / "summary.json").read_text())
    assert summary["status"] == "in part"
    assert summary["agreement with gold/weakest tenth"] == 0.0
    page = (output / "report.html").read_text()
    assert "In part: The stronger the preference" in page
    assert "0 of 2" in page
    assert "<b>smoke" not in page
    (chart,) = (output / "plots").iterdir()
    assert chart.name == "part-2-figure-3_1.svg"
    assert chart.read_bytes().startswith(b"<?xml")
