"""Base models of many architectures train through, or are refused before the start and say why.

Folders are tiny and of random weights; `tests/tools/supported_models.py` declares them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.flows.command import trimtab
from tests.models.conftest import run_stage
from tests.tools.supported_models import (
    REFUSED,
    TRAINED,
    Refused,
    table,
    with_table,
    write_base,
    write_config,
    write_tokenizer,
)
from trimtab.flows.cli.cli import main
from trimtab.flows.config.config import RunConfig
from trimtab.flows.config.recipes import recipe_named
from trimtab.models.config.reward import TrunkCacheConfig
from trimtab.models.config.training import LoraConfig
from trimtab.models.nets.counted import main as counted

PAGE = Path(__file__).parents[2] / "docs/reference/supported-models.md"
CASES = [(each.kind, name) for each in TRAINED for name in each.variants]
ROWS = [
    {
        "prompt": [{"role": "user", "content": f"Tell me about number {n}, please."}],
        "chosen": [{"role": "assistant", "content": f"It is {n}, an even one or an odd one."}],
        "rejected": [{"role": "assistant", "content": f"No {n}."}],
    }
    for n in range(40)
]


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return recipe_named("hh-smollm2")


def _write_rows(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    return folder


def _preferences(config: RunConfig, base: Path, folder: Path) -> Path:
    changes = {"sources": ("pairs.jsonl",), "categories": (), "tokenizer": str(base)}
    changes |= {"validation_share": 0.2, "test_share": 0.2}
    given = config.preferences.model_copy(update=changes)
    return run_stage(
        "preferences", given, folder / "preferences", source_0=_write_rows(folder / "raw")
    )


def _with(section: Any, **train: Any) -> Any:
    changes = {"num_epochs": 1, "checkpoint_every": 1000, **train}
    return section.model_copy(update={"train": section.train.model_copy(update=changes)})


def _sft(config: RunConfig, base: Path, **train: Any) -> Any:
    model = config.sft.model.model_copy(update={"base": str(base)})
    return _with(config.sft, **train).model_copy(update={"model": model})


@pytest.mark.slow
@pytest.mark.parametrize("has_template", [True, False], ids=["template", "no template"])
@pytest.mark.parametrize(("kind", "variant"), CASES)
def test_an_architecture_trains_through(
    config: RunConfig, tmp_path: Path, kind: str, variant: str, has_template: bool
) -> None:
    """From the upper layer's training to PPO; all layers, and adapters, where rows are HH text."""
    changes = next(each for each in TRAINED if each.kind == kind).variants[variant]
    base = tmp_path / "base"
    write_base(base, kind, changes, has_template=has_template)
    assert counted(base / "config.json")["untrainable"] is None
    data = _preferences(config, base, tmp_path)
    train: dict[str, Any] = {"trainable_layers": 1}
    if not has_template:
        train = {"trainable_layers": None, "lora": LoraConfig(rank=2)}
    sft = run_stage("sft", _sft(config, base, **train), tmp_path / "sft", data=data)
    inputs = {"policy": sft, "preferences": data}
    if has_template:
        cached = TrunkCacheConfig(trainable_layers=1)
        inputs["trunk"] = run_stage("trunk_cache", cached, tmp_path / "trunk", **inputs)
    scorers = {
        name: run_stage(name, _with(getattr(config, name), **train), tmp_path / name, **inputs)
        for name in ("reward_model", "advantage_model")
    }
    dpo = _with(config.dpo, **train)
    run_stage("dpo", dpo, tmp_path / "dpo", reference=sft, **inputs)
    few = {"num_steps": 2, "critic_pretrain_steps": 1, "rollout_batch": 8, "train_batch": 4}
    ppo = config.ppo.model_copy(update={**few, "max_new_tokens": 16, **train})
    policies = {"policy": sft, "reference": sft, "data": data}
    found = run_stage("ppo_max", ppo, tmp_path / "ppo", scorer=scorers["reward_model"], **policies)
    assert json.loads((found / "summary.json").read_text())
    assert list((found / "model").glob("*.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize("refused", REFUSED, ids=[each.kind for each in REFUSED])
def test_an_architecture_is_refused_by_the_plan_and_the_stage_alike(
    config: RunConfig, tmp_path: Path, refused: Refused
) -> None:
    base = tmp_path / "base"
    if refused.needs_pass:
        write_base(base, refused.kind, refused.changes, has_template=True)
    else:  # no weights: it is refused before they are looked for
        write_config(base, refused.kind, refused.changes)
    said = counted(base / "config.json")["untrainable"]
    assert refused.reason in said and "\n" not in said
    data = tmp_path / "data"
    data.mkdir()
    (data / "demonstrations.jsonl").write_text('{"prompt": "a", "response": "b"}\n')
    with pytest.raises(ValueError, match=re.escape(refused.reason)) as error:
        run_stage("sft", _sft(config, base, trainable_layers=1), tmp_path / "sft", data=data)
    assert refused.needs_pass or str(error.value) == f"{base}: {said}"


def _without_end(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"eos_token": None, "pad_token": None}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "change", "message"),
    [
        (
            {"vocab_size": 100},
            write_tokenizer,
            "its tokenizer has 258 tokens, the model's embedding 100",
        ),
        ({}, _without_end, "its tokenizer has no end token"),
    ],
)
def test_a_tokenizer_that_the_model_cannot_read_is_refused_by_both(
    config: RunConfig, tmp_path: Path, changes: dict[str, Any], change: Any, message: str
) -> None:
    """Where it was found in the first batch before: an index out of range."""
    base = tmp_path / "base"
    write_base(base, "llama", changes, has_template=True)
    change(base)
    said = counted(base / "config.json")["untrainable"]
    assert said.startswith(message)
    with pytest.raises(ValueError, match=re.escape(message)):
        run_stage("sft", _sft(config, base), tmp_path / "sft", data=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "opt", "llama"])
def test_rows_beyond_the_context_are_cut_to_it(
    config: RunConfig, tmp_path: Path, kind: str
) -> None:
    """Learned positions end there; what is beyond rotary ones was never trained."""
    base, context = tmp_path / "base", {"max_position_embeddings": 64}
    changes = next(iter(next(each for each in TRAINED if each.kind == kind).variants.values()))
    changes = changes | ({"n_positions": 64} if kind == "gpt2" else context)
    write_base(base, kind, changes, has_template=True)
    data = _preferences(config, base, tmp_path)
    output = run_stage("sft", _sft(config, base, trainable_layers=1), tmp_path / "sft", data=data)
    assert (output / "model/config.json").is_file()


def test_the_page_has_the_table() -> None:
    page = PAGE.read_text("utf-8")
    assert table() in page
    assert with_table(page) == page, f"python -m tests.tools.supported_models {PAGE}"


@pytest.mark.slow
def test_whole_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command of the page: one architecture trains, another is refused before the start."""
    variants = next(each for each in TRAINED if each.kind == "opt").variants
    write_base(tmp_path / "opt", "opt", variants["norm first"], has_template=False)
    write_config(tmp_path / "bloom", "bloom", {"n_layer": 2, "n_head": 4})
    raw = _write_rows(tmp_path / "raw") / "pairs.jsonl"
    command = ["run", "hh-smollm2", "--flow", "reward", f'preferences.sources=["{raw}"]']
    command += ["preferences.categories=[]", "embedding_models=[]", "ensemble.size=2"]
    for base, message in (("bloom", "BloomModel does not use"), ("opt", "at most the 2 layers")):
        for more in ([], ["--dry-run"]):
            capsys.readouterr()
            assert main([*command, f"sft.model.base={tmp_path / base}", *more]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith("trimtab: ") and message in line
    layers = re.findall(r"(\S+trainable_layers) = 6", line)
    assert len(layers) > 5
    output = trimtab(
        tmp_path / "home",
        *command,
        f"sft.model.base={tmp_path / 'opt'}",
        *(f"{name}=1" for name in layers),
        "--name",
        "mine",
    )
    assert (tmp_path / "home/reports/mine/report.html").is_file(), output
