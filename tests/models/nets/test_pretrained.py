"""No code that a model's folder names is run, and what it attends by is never taken from it."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import modeling_utils

from tests.models.judge.tiny import save_tiny, tiny_tokenizer
from tests.test_layout import PACKAGES, ROOT
from trimtab.models.nets.loading import (
    load_base_policy,
    load_critic,
    load_policy,
    load_scorer,
    load_tokenizer,
    new_scorer,
    save_model,
)
from trimtab.models.nets.pretrained import load_config, load_sentence_encoder
from trimtab.models.training.external_scorer import ExternalScorer

LOADERS: dict[str, Callable[[Path], Any]] = {
    "base": lambda folder: load_base_policy(str(folder)),
    "policy": load_policy,
    "new scorer": lambda folder: new_scorer(folder, 0),
    "scorer": load_scorer,
    "critic": load_critic,
    "somebody's scorer": lambda folder: ExternalScorer.load(str(folder)),
    "sentence encoder": lambda folder: load_sentence_encoder(str(folder), "cpu"),
    "configuration": load_config,
}
HOSTILE: dict[str, dict[str, Any]] = {
    "attention": {"attn_implementation": "someone/kernel"},
    "attention with a version": {"attn_implementation": "someone/kernel@v1:layer"},
    "paged attention": {"_attn_implementation": "paged|someone/kernel"},
    "as it is kept inside": {"_attn_implementation_internal": "someone/kernel"},
    "of a part": {"attn_implementation": {"": "sdpa", "text_config": "someone/kernel"}},
    "in a part": {"text_config": {"attn_implementation": "someone/kernel"}},
    "experts": {"experts_implementation": "someone/kernel"},
    "kernels": {"use_kernels": True},
    "a configuration of kernels": {"kernel_config": {"RMSNorm": "someone/kernel"}},
    "quantised": {"quantization_config": {"quant_method": "mxfp4"}},
    "classes": {"model_type": "theirs", "auto_map": {"AutoConfig": "code.Config"}},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A scorer, whose trunk all other kinds load, too."""
    save_tiny(tmp_path / "policy")
    save_model(new_scorer(tmp_path / "policy", 0), tiny_tokenizer(), tmp_path / "scorer")
    return tmp_path / "scorer"


def _change(folder: Path, changes: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What would be fetched from the hub where the package `kernels` is installed."""
    found: list[str] = []
    monkeypatch.setattr(modeling_utils, "is_kernels_available", lambda: True)
    monkeypatch.setattr(
        modeling_utils, "lazy_import_flash_attention", lambda name, **_: found.append(name)
    )
    return found


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
def test_a_folder_that_names_code_is_refused(
    loader: Callable[[Path], Any], hostile: dict[str, Any], folder: Path, fetched: list[str]
) -> None:
    (folder / "code.py").write_text("raise SystemExit('their code was run')")
    with pytest.raises(ValueError, match=r"found \w+.*allowed"):
        loader(_change(folder, hostile))
    assert fetched == []


@pytest.mark.parametrize("name", [each for each in LOADERS if each != "configuration"])
def test_attention_is_not_taken_from_a_folder(
    name: str, folder: Path, fetched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers makes a kernel of the hub of flash attention that is not installed."""
    loaded = LOADERS[name](_change(folder, {"attn_implementation": "flash_attention_2"}))
    model = getattr(loaded, "model", loaded)
    model = next(each for each in model.modules() if hasattr(each, "config"))
    assert model.config._attn_implementation == "sdpa"
    assert fetched == []


@pytest.mark.parametrize("loader", [*LOADERS, "tokenizer"])
def test_a_model_that_is_not_here_is_named_where_the_hub_is_not_reached(
    monkeypatch: pytest.MonkeyPatch, loader: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(OSError, match="^someone/absent: "):
        (LOADERS | {"tokenizer": load_tokenizer})[loader](Path("someone/absent"))


def test_nothing_is_loaded_beside_these_functions() -> None:
    """Nor built: of all code outside the tests."""
    calls = []
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if path == ROOT / "models/nets/pretrained.py":
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                name = getattr(node, "attr", None) or getattr(node, "id", None)
                if name in ("from_pretrained", "from_config", "CrossEncoder"):
                    calls.append(f"{path.relative_to(ROOT)}:{node.lineno} {name}")
                if isinstance(node, ast.ImportFrom) and node.module == "transformers":
                    calls += [f"{path}: pipeline" for each in node.names if each.name == "pipeline"]
                is_encoder = isinstance(node, ast.Call) and "SentenceTransformer" in (
                    getattr(node.func, "id", ""),
                    getattr(node.func, "attr", ""),
                )
                if is_encoder and node.args:  # of a name; a new one is of `modules`
                    calls.append(f"{path.relative_to(ROOT)}:{node.lineno} SentenceTransformer")
    assert calls == []
