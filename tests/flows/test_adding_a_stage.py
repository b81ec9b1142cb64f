"""docs/adding-a-stage.md, followed to the letter in a copy of the code: the stage runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "adding-a-stage.md"
FOLDERS = ("trimtab", "flows", "tasks", "models", "infra")


def _blocks() -> list[str]:
    """The page's Python blocks, in its order."""
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def _insert(path: Path, block: str, before: str | None = None) -> None:
    """Put a block above the line that begins with `before`; without one, at the end."""
    text = path.read_text()
    at = len(text) if before is None else re.search(f"^{re.escape(before)}", text, re.M).start()  # type: ignore[union-attr]
    path.write_text(f"{text[:at]}\n{block}\n\n{text[at:]}")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A copy of the code with the page's edits."""
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True)  # compiled modules, too
    config, spec, trainer, call, imports = _blocks()
    _insert(tmp_path / "models/config/data.py", config)
    _insert(tmp_path / "models/specs.py", spec, before="SPECS: Final")
    (tmp_path / "models/stages/length_bias.py").write_text(trainer)
    labels = tmp_path / "flows/pipeline/labels.py"
    _insert(labels, textwrap.indent(call, "    "), before="def relabel_and_audit")
    _insert(labels, imports, before="from trimtab.models.config")
    return tmp_path


def _run(code: Path, *arguments: str) -> str:
    return _trimtab(code, "run", "smoke", "--flow", "label-audit", *arguments)


def _trimtab(code: Path, *arguments: str) -> str:
    env = {
        **os.environ,
        "PYTHONPATH": str(code),
        "TRIMTAB_HOME": str(code / "home"),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "trimtab", *arguments],
        cwd=code, env=env, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow
def test_the_plan_has_the_stage(code: Path) -> None:
    assert re.search(r"length_bias", _run(code, "--dry-run"))


@pytest.mark.slow
def test_the_stage_runs_is_found_the_next_time_and_runs_by_hand(code: Path, finished: Path) -> None:
    shutil.copytree(finished / "store", code / "home/store")
    assert "length_bias" not in os.listdir(code / "home/store/artifacts")
    _run(code)
    (summary,) = code.glob("home/store/artifacts/length_bias/*/*/summary.json")
    shares = json.loads(summary.read_text())
    assert shares.keys() == {"train_share", "validation_share", "test_share"}
    assert all(0 < share < 1 for share in shares.values())
    (pairs,) = code.glob("home/store/artifacts/comparisons/*/*/test.jsonl")
    rows = [json.loads(line) for line in pairs.read_text().splitlines()]
    longer = sum(len(row["chosen"]) > len(row["rejected"]) for row in rows)
    shorter = sum(len(row["chosen"]) < len(row["rejected"]) for row in rows)
    assert shares["test_share"] == longer / (longer + shorter)
    assert "stages before the report were found in the store" in _run(code)
    assert len(list(code.glob("home/store/artifacts/length_bias/*"))) == 1
    (block,) = re.findall(r"^```json\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    job = json.loads(block)
    job |= {"inputs": {"preferences": str(pairs.parent)}, "workdir": str(code / "by-hand")}
    job["config"]["min_difference"] = 0
    (code / "job.json").write_text(json.dumps(job))
    assert "stage length_bias on the CPU" in _trimtab(code, "stage", "job.json")
    assert json.loads((code / "by-hand/output/summary.json").read_text()) == shares
