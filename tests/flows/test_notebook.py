"""docs/tutorials/from-file-to-grpo.ipynb: it runs, and what is committed is what it does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.flows.test_python_page import ALL_LAYERS, site_hooks
from tests.models.judge.tiny import save_tiny

ROOT = Path(__file__).parents[2]
PATH = ROOT / "docs/tutorials/from-file-to-grpo.ipynb"
CELLS = json.loads(PATH.read_text("utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]
COUNTS = r"\d+ (?:of \d+ )?labels (?:are wrong|look wrong)|\d+ look wrong, and \d+ of these are"


def _committed(cell: dict[str, Any]) -> str:
    """Everything that a cell shows, as text."""
    shown = []
    for output in cell["outputs"]:
        data = output.get("data", {})
        shown += output.get("text", data.get("text/html", data.get("text/plain", [])))
    return "".join(shown)


def test_it_is_committed_as_it_ran() -> None:
    """Once, from the first cell to the last, without an error."""
    assert [cell["execution_count"] for cell in CODE] == list(range(1, len(CODE) + 1))
    kinds = {output["output_type"] for cell in CODE for output in cell["outputs"]}
    assert kinds == {"stream", "execute_result", "display_data"}
    assert str(ROOT) not in PATH.read_text("utf-8")


def test_the_site_has_its_texts_code_and_outputs() -> None:
    """HTML without an empty line and whole, or Markdown would end it, or go on with it."""
    page = site_hooks().notebook_page(PATH)
    for cell in CELLS:
        assert "".join(cell["source"]) in page
    assert page.count("```python\n") == len(CODE) and 'src="data:image/png;base64,' in page
    tables = re.findall(r"^<div>$.*?^</div>$", page, re.DOTALL | re.MULTILINE)
    assert len(tables) >= 4 and not any("\n\n" in table for table in tables)
    assert page.count("<p>") == page.count("</p>")
    assert page.endswith("[The notebook](from-file-to-grpo.ipynb), to run it.")


@pytest.mark.slow
@pytest.mark.usefixtures("prefect")
def test_its_cells_run_and_count_what_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a tiny model, on which the audit does not depend."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path / ".trimtab"))
    monkeypatch.setenv("MPLBACKEND", "agg")
    base = save_tiny(tmp_path / "base")
    assert ALL_LAYERS is not None
    names: dict[str, Any] = {}
    for cell in CODE:
        code = "".join(cell["source"])
        code = code.replace(
            'train_reward("pairs.jsonl"', f'train_reward("pairs.jsonl", "{base}", {ALL_LAYERS[1]}'
        )
        exec(compile(code, "notebook", "exec"), names)
    counts = re.findall(COUNTS, capsys.readouterr().out + names["audit"].summary)
    assert sorted(counts) == sorted(re.findall(COUNTS, "".join(map(_committed, CODE[:3]))))
    assert len(counts) == 3
    # Pairs are split by their prompts, which each model writes by its own template.
    assert names["trained"].num_trained_pairs == 230
    assert [step["step"] for step in names["trainer"].state.log_history[:3]] == [1, 2, 3]
    assert all(step["reward_std"] > 0 for step in names["trainer"].state.log_history[:3])
