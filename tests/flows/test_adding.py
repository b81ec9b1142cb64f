"""docs/adding.md, followed to the letter in a copy of the code: what it adds runs."""

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
PAGE = ROOT / "docs" / "adding.md"
FOLDERS = ("trimtab", "flows", "tasks", "models", "infra")


# The page's edits in its order: the file, the text above which the block goes (None: at the end),
# and the spaces before it.
EDITS = (
    ("models/config/data.py", None, 0),
    ("models/specs.py", "SPECS: Final", 0),
    ("models/stages/length_bias.py", None, 0),
    ("flows/pipeline/labels.py", "def relabel_and_audit", 4),
    ("flows/pipeline/labels.py", "from trimtab.models.config", 0),
    ("models/config/training.py", "    train: TrainConfig = TrainConfig(learning_rate=2e-3", 4),
    ("models/config/arms.py", '    "dpo"', 4),
    ("models/data/presets.py", "    NATIVE,", 4),
    ("models/studies/part_one.py", None, 0),
)


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code with all edits of the page."""
    return _followed(tmp_path_factory.mktemp("code"), len(EDITS))


@pytest.fixture
def with_stage(tmp_path: Path) -> Path:
    """A copy with the stage alone: what others change would be computed anew."""
    return _followed(tmp_path, 5)


def _followed(copy: Path, num_edits: int) -> Path:
    """A copy of the code with the page's first edits."""
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True)  # compiled modules, too
    sections = re.split(r"^```python\n", PAGE.read_text(), flags=re.MULTILINE)
    edits = list(zip(EDITS, sections[:-1], sections[1:], strict=True))
    for (name, above, indent), said, rest in edits[:num_edits]:
        assert f"`{name}`" in said.rpartition("```")[2]
        path = copy / name
        text = path.read_text() if path.exists() else ""
        at = len(text) if above is None else re.search(f"^{re.escape(above)}", text, re.M).start()  # type: ignore[union-attr]
        block = textwrap.indent(rest.partition("```")[0], " " * indent)
        if block.lstrip().startswith("Preset("):  # an element of a tuple
            block = f"{block.rstrip()},\n"
        path.write_text(f"{text[:at]}{block}\n{text[at:]}")
    return copy


def _run(code: Path, *arguments: str) -> str:
    return _trimtab(code, "run", "smoke", "--flow", "label-audit", *arguments)


def _python(code: Path, script: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(code)}
    return subprocess.check_output([sys.executable, "-c", script], cwd=code, env=env, text=True)


def _trimtab(code: Path, *arguments: str, status: int = 0) -> str:
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
    assert done.returncode == status, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


@pytest.mark.slow
def test_a_setting_is_printed_checked_and_reaches_its_stage(code: Path) -> None:
    given = _trimtab(code, "run", "smoke", "sft.label_smoothing=0.1", "--print-config")
    assert json.loads(given)["sft"]["label_smoothing"] == 0.1
    refused = _trimtab(code, "run", "smoke", "sft.label_smoothing=0.7", status=2)
    assert "sft.label_smoothing" in refused and "0.7" in refused and "0.5" in refused


@pytest.mark.slow
def test_an_arm_is_planned_and_named(code: Path) -> None:
    arms = 'arms=["full","ppo_max_one_member"]'
    plan = _trimtab(code, "run", "smoke", "--flow", "policy", arms, "--dry-run")
    assert "length_bias" in plan
    assert "policy_ppo_max_one_member" in plan and "judge_ppo_max_one_member" in plan
    name = "from trimtab.models.reporting.kit.names import policy_name as name"
    name += "; print(name('ppo_max_one_member'))"
    assert _python(code, name) == "PPO-max, one reward model\n"


@pytest.mark.slow
def test_a_file_of_the_format_is_read(code: Path, tmp_path: Path) -> None:
    row = {"question": "Which is larger?", "reply_1": "Two.", "reply_2": "Five.", "better": 2}
    file = tmp_path / "replies.jsonl"
    file.write_text("".join(json.dumps(row | {"question": f"{n}?"}) + "\n" for n in range(5)))
    said = _trimtab(code, "look", str(file))
    assert "two-replies" in said and "Five." in said


@pytest.mark.slow
def test_an_exhibit_is_offered_with_its_arms(code: Path) -> None:
    assert " length" in _trimtab(code, "study", "part-1", "no-such", status=2)
    read = """
from trimtab.models.studies import part_one, registry
(exhibit,) = [each for each in registry.EXHIBITS if each.slug == "part-1-length"]
print(exhibit.shows, registry.READERS[exhibit.slug].read is part_one.length, exhibit.arms)
"""
    assert _python(code, read) == (
        "Vanilla PPO: length of the responses by step True vanilla_ppo\n"
    )


@pytest.mark.slow
def test_the_stage_runs_is_found_the_next_time_and_runs_by_hand(
    with_stage: Path, finished: Path
) -> None:
    shutil.copytree(finished / "store", with_stage / "home/store")
    assert "length_bias" not in os.listdir(with_stage / "home/store/artifacts")
    _run(with_stage)
    (summary,) = with_stage.glob("home/store/artifacts/length_bias/*/*/summary.json")
    shares = json.loads(summary.read_text())
    assert shares.keys() == {"train_share", "validation_share", "test_share"}
    assert all(0 < share < 1 for share in shares.values())
    (pairs,) = with_stage.glob("home/store/artifacts/comparisons/*/*/test.jsonl")
    rows = [json.loads(line) for line in pairs.read_text().splitlines()]
    longer = sum(len(row["chosen"]) > len(row["rejected"]) for row in rows)
    shorter = sum(len(row["chosen"]) < len(row["rejected"]) for row in rows)
    assert shares["test_share"] == longer / (longer + shorter)
    assert "stages before the report were found in the store" in _run(with_stage)
    assert len(list(with_stage.glob("home/store/artifacts/length_bias/*"))) == 1
    (block,) = re.findall(r"^```json\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    job = json.loads(block)
    job |= {"inputs": {"preferences": str(pairs.parent)}, "workdir": str(with_stage / "by-hand")}
    job["config"]["min_difference"] = 0
    (with_stage / "job.json").write_text(json.dumps(job))
    assert "stage length_bias on the CPU" in _trimtab(with_stage, "stage", "job.json")
    assert json.loads((with_stage / "by-hand/output/summary.json").read_text()) == shares
