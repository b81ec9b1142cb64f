"""docs/reference/python.md: its examples run, one after another, and the API's pages are whole."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

import trimtab
from tests.flows.test_audit import _file
from tests.models.judge.tiny import save_tiny

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/python.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
# What the page says that a GPU trains: a tiny model has no six upper layers.
ALL_LAYERS = re.search(r'`(reward_model=\{"train": \{"trainable_layers": None.*?\}\})`', PAGE)
# Of a page for people, what a test without a hub and without a GPU has in its place.
BASES = re.compile(r"HuggingFaceTB/SmolLM2-135M(-Instruct)?")


@pytest.mark.slow
@pytest.mark.usefixtures("prefect")
def test_the_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path / ".trimtab"))
    _file(tmp_path)
    base = save_tiny(tmp_path / "base")
    assert ALL_LAYERS is not None and len(EXAMPLES) == 8
    names: dict[str, Any] = {}
    for example in EXAMPLES:
        code = BASES.sub(str(base), example)
        code = code.replace(f'pairs.jsonl", "{base}"', f'pairs.jsonl", "{base}", {ALL_LAYERS[1]}')
        exec(compile(code, "python.md", "exec"), names)
    said = capsys.readouterr().out
    assert "3 of 120 labels look wrong" in said
    assert len(names["wrong"]) == 3 and names["audit"].numbers["num_pairs"] == 100
    assert f"{names['trained'].accuracy}" in said and names["scores"].shape == (1,)
    result = names["result"]
    assert result.report.is_file() and result.verdict in result._repr_html_()
    written = json.loads((result.folder / "run.json").read_text())
    assert (written["name"], written["flow"], result.scorecard["seed"]) == ("mine", "reward", 1)
    assert written["settings"]["reward_model.train.num_epochs"] == 2
    assert names["folder"].is_dir() and 0 < float(names["loss"]) < 2
    logs = names["trainer"].state.log_history
    assert logs[-1]["train_loss"] > 0, json.dumps(logs)
    assert names["trainer"].args.loss_type == "advantage"


def site_hooks() -> Any:
    """docs/site_hooks.py, which is in no package."""
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs/site_hooks.py")
    assert spec is not None and spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    return hooks


def test_the_api_s_pages_have_every_name() -> None:
    hooks = site_hooks()
    api, formulas = hooks.api_page(), hooks.functional_page()
    for name in (*trimtab.__all__, "trl"):
        assert name in ("functional", "trl") or f"## trimtab.{name}\n" in api
    assert "\n### score\n" in api and "flip_below: float | None = None" in api
    assert "    **changes: Any,\n) -> AuditResult" in api and "\nself" not in api
    for name in trimtab.functional.__all__:
        assert f"\n### {name}\n" in formulas
    documented = set(re.findall(r"^### (\w+)$", formulas, re.MULTILINE))
    checks = {"require_shape", "require_mask", "require_floating", "refuse_other_choices"}
    assert documented - checks == set(trimtab.functional.__all__)
