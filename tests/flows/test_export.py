"""`trimtab export`: models and pairs of a finished run, with a card."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from trimtab.flows.cli.cli import main
from trimtab.flows.config.names import name_run
from trimtab.flows.config.overrides import apply_changes
from trimtab.flows.config.recipes import recipe_named
from trimtab.infra.reports import write_run
from trimtab.infra.store.store import open_store
from trimtab.models.config.reward import RewardModelConfig
from trimtab.models.reporting.export import form_of_prompts

ESTIMATE = {"value": 0.61, "low": 0.55, "high": 0.67, "count": 300}
FIGURES = ("label_accuracy", "clean_accuracy", "label_ece_width", "votes_ece_mass")
LABELS = {"0": "reward", "1": "expected_reward"}
# Of the validation pairs 1, 2, 3 and 6: mean 3, variance (4 + 1 + 0 + 9) / 4.
SCORES = [
    {"id": "1", "split": "validation", "chosen_score": 1.0, "rejected_score": 2.0},
    {"id": "2", "split": "test", "chosen_score": 100.0, "rejected_score": 0.0},
    {"id": "3", "split": "validation", "chosen_score": 3.0, "rejected_score": None},
    {"id": "4", "split": "validation", "chosen_score": None, "rejected_score": 6.0},
]


def _tokenizer() -> str:
    words = Tokenizer(WordLevel({"a": 0, "b": 1, "<eos>": 2, "<unk>": 3}, unk_token="<unk>"))
    words.add_special_tokens(["<eos>", "<unk>"])
    return str(words.to_str())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a run named `mine`, with a report and a store."""
    home = tmp_path / "home"
    monkeypatch.setenv("TRIMTAB_HOME", str(home))
    monkeypatch.delenv("TRIMTAB_STORE", raising=False)
    store, entries = open_store(str(home / "store")), []

    def publish(role: str, stage: str, files: dict[str, Any]) -> None:
        output = tmp_path / "outputs" / role
        for name, content in files.items():
            (output / name).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, dict):
                save_file(content, output / name)
            else:
                (output / name).write_text(content)
        manifest = store.publish(stage, f"key-{role}", output)
        entry = {"role": role, "stage": stage, "key": manifest.key, "digest": manifest.digest}
        entries.append({**entry, "versions": {"code": "c" * 40}, "parents": {}})

    def model(labels: dict[str, str]) -> dict[str, Any]:
        config = {"id2label": labels, "eos_token_id": 2, "pad_token_id": 2, "vocab_size": 4}
        return {
            "model/config.json": json.dumps(config),
            "model/tokenizer.json": _tokenizer(),
            "model/tokenizer_config.json": json.dumps({"eos_token": "<eos>"}),
            "model/model.safetensors": {
                "score.weight": np.arange(2 * len(labels), dtype=np.float32).reshape(-1, 2)
            },
            "summary.json": "{}",
            "scores.jsonl": "".join(json.dumps(row) + "\n" for row in SCORES),
        }

    pair = {"id": "1", "prompt": "p", "chosen": "a", "rejected": "b", "category": "x"}
    rows = {f"{split}.jsonl": json.dumps(pair) + "\n" for split in ("train", "validation", "test")}
    publish("preferences", "comparisons", rows)
    flipped = {**pair, "is_flipped": True, "label": 1.0, "weight": 1.0}
    publish("relabelled", "relabel", {"train.jsonl": json.dumps(flipped) + "\n"})
    for role in ("member_0", "member_1", "reward_model"):
        publish(role, "reward_model", model({"0": "reward"}))
    publish("advantage_model", "advantage_model", model(LABELS))
    weights = {"model/model.safetensors": {"a": np.ones(1)}}
    publish("policy_full", "ppo_max", {**model({}), **weights, "x.jsonl": ""})
    config = apply_changes(recipe_named("smoke"), {"seed": 3, "ppo": {"kl_coef": 0.3}})
    name = name_run(config, "rlhf", "mine")
    write_run(home / "reports/mine", {**name.about, "made": {"command": name.command}})
    scorer = {"role": "advantage_model", **dict.fromkeys(FIGURES, ESTIMATE)}
    scorer["categories"] = {"x": {"accuracy": ESTIMATE}}
    card = {
        "verdict": {"policy": "full", "sentence": "", "details": []},
        "lineage": entries,
        "data": {"num_pairs": 300},
        "relabelling": {"num_pairs": 200, "num_flipped": 20, "share_smoothed": 0.5},
        "scorers": {"advantage_model": scorer},
        "policies": [{"name": "full", "against_sft": {"main": {"gold": {"net": ESTIMATE}}}}],
    }
    (home / "reports/mine/scorecard.json").write_text(json.dumps(card))
    return home


def _export(role: str, to: Path, *more: str) -> tuple[dict[str, Any], str]:
    """Metadata and text of the card."""
    assert main(["export", "mine", role, "--to", str(to), *more]) == 0
    _, metadata, text = (to / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(metadata), text


def test_an_advantage_model_has_one_label_and_a_card(home: Path, tmp_path: Path) -> None:
    to = tmp_path / "out/am"
    metadata, text = _export("advantage_model", to)
    assert metadata["pipeline_tag"] == "text-classification"
    assert load_file(to / "model.safetensors")["score.weight"].tolist() == [[0.0, 1.0]]
    config = json.loads((to / "config.json").read_text())
    assert (config["id2label"], config["pad_token_id"]) == ({"0": "reward"}, 3)
    assert json.loads((to / "tokenizer_config.json").read_text())["pad_token"] == "<unk>"
    assert "| Agreement with the labels of the test pairs | 0.610 | [0.550, 0.670] | 300 |" in text
    assert "| Agreement with labels, x | 0.610 |" in text
    assert "of 200 training labels 20 were flipped" in text and "50.0 % smoothed" in text
    assert "trimtab run smoke --name mine seed=3 ppo.kl_coef=0.3\n" in text
    assert sorted(path.name for path in to.parent.iterdir()) == ["am"]


@pytest.mark.parametrize(
    ("mask", "of_files", "of_folders"), [(0o22, 0o644, 0o755), (0o7, 0o660, 0o770)]
)
@pytest.mark.parametrize("role", ["reward_model", "advantage_model", "ensemble", "policy", "pairs"])
def test_what_is_exported_has_the_modes_of_the_umask(
    home: Path, tmp_path: Path, role: str, mask: int, of_files: int, of_folders: int
) -> None:
    """Files of the store are read-only, and those that safetensors writes are the owner's alone."""
    before = os.umask(mask)
    try:
        assert main(["export", "mine", role, "--to", str(tmp_path / "out")]) == 0
    finally:
        os.umask(before)
    for path in (tmp_path / "out", *(tmp_path / "out").rglob("*")):
        assert path.stat().st_mode & 0o777 == (of_folders if path.is_dir() else of_files), path


def test_a_folder_that_cannot_be_written_is_one_line(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["export", "mine", "policy", "--to", str(tmp_path / "file/below")]) == 1
    assert "was not written" in capsys.readouterr().err
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)  # an empty folder, by a dot
    assert main(["export", "mine", "policy", "--to", "."]) == 0
    assert (here / "README.md").is_file()


def test_policy_ensemble_and_pairs(home: Path, tmp_path: Path) -> None:
    metadata, text = _export("policy", tmp_path / "policy")
    assert metadata["pipeline_tag"] == "text-generation"
    assert "Wins minus losses against SFT, the main test prompts, by the gold scorer | 0.61" in text
    assert not (tmp_path / "policy/x.jsonl").exists()
    (tmp_path / "ensemble").mkdir()  # a folder that is empty may be there
    assert main(["export", "mine", "ensemble", "--to", str(tmp_path / "ensemble")]) == 0
    for number in range(2):
        card = (tmp_path / f"ensemble/member_{number}/README.md").read_text()
        assert "A reward model" in card and "flipped" not in card
    metadata, text = _export("pairs", tmp_path / "pairs")
    assert "preference" in metadata["tags"] and "library_name" not in metadata
    rows = {
        split: json.loads((tmp_path / f"pairs/{split}.jsonl").read_text())
        for split in ("train", "validation", "test")
    }
    assert [rows[split]["chosen"] for split in rows] == ["b", "a", "a"]


def test_reward_models_say_what_they_scored_on_known_answers(home: Path, tmp_path: Path) -> None:
    """By which members are told apart from their scales; an Advantage Model's are of r - e."""
    assert main(["export", "mine", "ensemble", "--to", str(tmp_path / "members")]) == 0
    card = json.loads((home / "reports/mine/scorecard.json").read_text())
    (pairs,) = (each["digest"] for each in card["lineage"] if each["role"] == "preferences")
    for number in range(2):
        folder = tmp_path / "members" / f"member_{number}"
        known = json.loads((folder / "config.json").read_text())["trimtab"]["known_answers"]
        assert known == {"mean": 3.0, "std": 3.5**0.5, "count": 4, "preferences": pairs}
    _export("advantage_model", tmp_path / "am")
    mark = json.loads((tmp_path / "am/config.json").read_text())["trimtab"]
    assert "known_answers" not in mark and mark["prompts"] == "text"


def test_the_form_of_prompts_is_that_of_the_pairs_that_were_trained_on(tmp_path: Path) -> None:
    text = {"prompt": "a", "category": "typed"}
    messages = {"prompt": "a", "messages": {"prompt": []}, "category": "chat"}
    for rows, form in (([text], "text"), ([messages], "messages"), ([text, messages], "both")):
        path = tmp_path / "train.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert form_of_prompts(path, RewardModelConfig()) == form
    assert form_of_prompts(path, RewardModelConfig(categories=("chat",))) == "messages"
    assert form_of_prompts(path, RewardModelConfig(without_categories=("chat",))) == "text"


def test_base_model_and_licence_are_named(home: Path, tmp_path: Path) -> None:
    path = home / "reports/mine/run.json"
    about = json.loads(path.read_text())
    for base, expected in {
        "smollm2-135m-instruct": ("HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0"),
        "someone/model": ("someone/model", None),
        "/folder/model": (None, None),
    }.items():
        about["settings"]["sft.model.base"] = base
        path.write_text(json.dumps(about))
        metadata, text = _export("policy", tmp_path / base.replace("/", "_"))
        assert (metadata.get("base_model"), metadata.get("license")) == expected
        assert ("licence holds" in text) == (expected[1] is None)
    about["settings"]["scorer_base.model.base"] = "smollm2-135m-instruct"  # of scorers alone
    path.write_text(json.dumps(about))
    for role, named in (("policy", None), ("reward_model", "HuggingFaceTB/SmolLM2-135M-Instruct")):
        assert _export(role, tmp_path / f"other_{role}")[0].get("base_model") == named


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["min", "policy"], "unknown run 'min' (did you mean 'mine'?); known: mine"),
        (["mine", "polcy"], "unknown role 'polcy' (did you mean 'policy'?)"),
        (["mine", "preferences"], "unknown role 'preferences'"),
    ],
)
def test_mistakes_name_what_there_is(
    home: Path,
    tmp_path: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["export", *arguments, "--to", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_with_files_is_kept_and_a_missing_artifact_leaves_nothing(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    assert main(["export", "mine", "policy", "--to", str(full)]) == 2
    assert "which is not empty" in capsys.readouterr().err
    assert [path.name for path in full.iterdir()] == ["mine.txt"]
    open_store(str(home / "store")).delete("ppo_max", "key-policy_full")
    assert main(["export", "mine", "policy", "--to", str(tmp_path / "out/new")]) == 1
    assert "run the same command again" in capsys.readouterr().err
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("way", ["private", "public", "fails"])
def test_a_push_is_private_and_its_failure_is_a_line(
    home: Path,
    tmp_path: Path,
    way: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls: list[dict[str, Any]] = []

    def upload(**given: Any) -> None:
        if way == "fails":
            raise RuntimeError("no way to the Hub")  # some library's own
        calls.append(given)

    api = SimpleNamespace(
        create_repo=lambda name, **given: calls.append({"name": name, **given}),
        upload_folder=upload,
        repo_info=lambda *_, **__: SimpleNamespace(private=way != "public"),
    )
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: api)
    to = tmp_path / "pairs"
    arguments = ["export", "mine", "pairs", "--to", str(to), "--push", "me/pairs"]
    assert main(arguments) == int(way != "private")
    assert calls[0] == {
        "name": "me/pairs",
        "repo_type": "dataset",
        "exist_ok": True,
        "private": True,
    }
    said = capsys.readouterr().err
    if way == "fails":
        assert "is written, but me/pairs was not: no way" in said and "hf upload" in said
    elif way == "public":
        assert "is public, and was not touched" in said and len(calls) == 1
    else:
        assert calls[1] == {"folder_path": str(to), "repo_id": "me/pairs", "repo_type": "dataset"}
    assert (to / "README.md").is_file()
