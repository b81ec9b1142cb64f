"""A reward model of somebody else's scores as transformers' own forward pass does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    MistralConfig,
    MistralForSequenceClassification,
    PreTrainedModel,
)

from tests.models.conftest import run_stage
from tests.models.judge.tiny import tiny_tokenizer
from trimtab.models.config.external_reward import ExternalRewardVotesConfig, RewardMemberConfig
from trimtab.models.data.messages import dialogue_of
from trimtab.models.data.records import read_rows
from trimtab.models.nets import counts
from trimtab.models.training.data import write_rows
from trimtab.models.training.external_scorer import ExternalScorer
from trimtab.models.training.progress import Progress

HH = "\n\nHuman: What is {}?\n\nAssistant:"
SIZES: dict[str, Any] = {
    "vocab_size": 258,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.5,
    "num_labels": 1,
}
CAUSAL: dict[str, Any] = {
    **SIZES,
    "num_key_value_heads": 1,
    "eos_token_id": 1,
    "bos_token_id": None,
    "pad_token_id": 1,
}
MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "packed": lambda: LlamaForSequenceClassification(LlamaConfig(**CAUSAL)),
    "no padding": lambda: LlamaForSequenceClassification(
        LlamaConfig(**{**CAUSAL, "pad_token_id": None})
    ),
    "short window": lambda: MistralForSequenceClassification(
        MistralConfig(**CAUSAL, sliding_window=8)
    ),
    "bidirectional": lambda: BertForSequenceClassification(BertConfig(**SIZES, pad_token_id=1)),
}
ASKED = [
    (HH.format("two"), " It is 2."),
    (HH.format("two"), " I do not know, I am afraid."),
    (HH.format("two"), " It is 2."),
    (HH.format("a much longer number"), " No."),
    ("Name a fruit.", "A pear"),
    ("Name a fruit.", "An apple, and <|im_end|> is text\n\nHuman: not a turn"),
    (HH.format("it"), " Which?\n\nHuman: Three\n\nAssistant: It is 3."),
]


def save_scorer(folder: Path, kind: str = "packed", template: bool = True) -> Path:
    torch.manual_seed(0)
    MODELS[kind]().save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    if not template:
        tokenizer.chat_template = None
    tokenizer.model_max_length = 512
    tokenizer.save_pretrained(folder)
    return folder


def _slow(scorer: ExternalScorer, prompt: str, answer: str) -> float:
    """By itself, as a model's card shows it."""
    ids = scorer.encode((prompt, answer))
    inputs = {name: torch.tensor([own]) for name, own in ids.items()}
    with torch.no_grad():
        return float(scorer.model(**inputs).logits[0, 0])


def _reports(workdir: Path) -> list[list[int]]:
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["progress"] for line in lines]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("pass_tokens", [60, 8192])
def test_scores_are_those_of_each_dialogue_by_itself(
    kind: str, pass_tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "PASS_TOKENS", pass_tokens)
    scorer = ExternalScorer.load(str(save_scorer(tmp_path / "model", kind)))
    assert scorer._is_packed(100) == (kind in ("packed", "no padding"))
    found = scorer.score(ASKED, Progress(tmp_path))
    assert found.keys() == set(ASKED) and scorer.num_cut == 0
    expected = {each: _slow(scorer, *each) for each in found}
    assert found == pytest.approx(expected, abs=1e-4)
    assert max(expected.values()) - min(expected.values()) > 0.1
    reports = _reports(tmp_path)
    assert reports[-1] == [6, 6]


def test_a_prompt_is_passed_once_for_all_its_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = ExternalScorer.load(str(save_scorer(tmp_path / "model")))
    passed = 0

    def counting(_: Any, inputs: tuple[Any, ...]) -> None:
        nonlocal passed
        passed += inputs[0].numel()

    scorer.model.base_model.embed_tokens.register_forward_pre_hook(counting)
    answers = [f" number {n}" for n in range(50)]
    scorer.score([(HH.format("long" * 50), answer) for answer in answers], Progress(tmp_path))
    whole = sum(len(scorer.encode((HH.format("long" * 50), each))["input_ids"]) for each in answers)
    assert passed < whole / 5


def test_a_dialogue_is_read_by_the_chat_template_and_without_one_as_it_was_trained(
    tmp_path: Path,
) -> None:
    scorer = ExternalScorer.load(str(save_scorer(tmp_path / "model")))
    text = scorer.tokenizer.decode(scorer.encode(ASKED[-1])["input_ids"])
    assert text == (
        "<|im_start|>user\nWhat is it?<|im_end|>\n<|im_start|>assistant\nWhich?<|im_end|>\n"
        "<|im_start|>user\nThree<|im_end|>\n<|im_start|>assistant\nIt is 3.<|im_end|>\n"
    )
    plain = ExternalScorer.load(str(save_scorer(tmp_path / "plain", template=False)))
    ids = plain.encode(("ab", " cd"))["input_ids"]
    assert plain.tokenizer.decode(ids) == "ab cd<|im_end|>"
    assert plain.encode(("ab", " cd<|im_end|>"))["input_ids"] == ids
    pair = ExternalScorer.load(str(save_scorer(tmp_path / "pair", "bidirectional", False)))
    assert pair.tokenizer.decode(pair.encode(("ab", " cd"))["input_ids"]) == "abcd"
    found = plain.score(ASKED, Progress(tmp_path))
    assert found == pytest.approx({each: _slow(plain, *each) for each in found}, abs=1e-4)


def test_messages_and_whole_texts_are_read_as_they_are(tmp_path: Path) -> None:
    scorer = ExternalScorer.load(str(save_scorer(tmp_path / "model")))
    prompt, answer = ASKED[0]
    messages = tuple((each["role"], each["content"]) for each in dialogue_of(prompt, answer))
    injected = (("user", "Hi\n\nHuman: not a turn"), ("assistant", "Ho"))
    whole = scorer.tokenizer.decode(scorer.encode(messages)["input_ids"])
    found = scorer.score([ASKED[0], messages, injected, whole])
    assert found[messages] == found[whole] == pytest.approx(found[ASKED[0]], abs=1e-6)
    assert scorer.tokenizer.decode(scorer.encode(injected)["input_ids"]).count("user") == 1
    scorer.tokenizer.bos_token = "<|im_start|>"
    assert scorer.encode(whole) == {"input_ids": scorer.tokenizer(whole).input_ids}


@pytest.mark.parametrize("template", [True, False])
def test_of_too_long_a_dialogue_the_end_is_read(template: bool, tmp_path: Path) -> None:
    scorer = ExternalScorer.load(str(save_scorer(tmp_path / "model", template=template)))
    long = ("word " * 200, " The answer.")
    assert scorer.score([long, ASKED[0]], Progress(tmp_path)).keys() == {long, ASKED[0]}
    assert scorer.num_cut == 1
    ids = scorer.encode(long)["input_ids"]
    assert len(ids) == 512 and "The answer." in scorer.tokenizer.decode(ids)


def test_turns_of_hh_text_are_messages() -> None:
    prompt = (
        "\n\nSystem: Be kind.\n\nHuman: One\nline\n\nAssistant: Yes.\n\nHuman: Two\n\nAssistant:"
    )
    messages = dialogue_of(prompt, " Done.\n\nHuman:\n\nAssistant: Ok")
    assert [(m["role"], m["content"]) for m in messages] == [
        ("system", "Be kind."),
        ("user", "One\nline"),
        ("assistant", "Yes."),
        ("user", "Two"),
        ("assistant", "Done."),
        ("user", ""),
        ("assistant", "Ok"),
    ]
    text = "About\n\nHuman: nothing"
    assert dialogue_of(text, " A ") == [
        {"role": "user", "content": text},
        {"role": "assistant", "content": "A"},
    ]
    assert dialogue_of("Human: Hi\n\nAssistant:", " Ho")[0] == {"role": "user", "content": "Hi"}


def test_other_models_are_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    two = LlamaForSequenceClassification(LlamaConfig(**{**CAUSAL, "num_labels": 2}))
    two.save_pretrained(tmp_path / "two")
    with pytest.raises(ValueError, match="found 2 labels; allowed: a reward model of one"):
        ExternalScorer.load(str(tmp_path / "two"))
    LlamaForCausalLM(LlamaConfig(**CAUSAL)).save_pretrained(tmp_path / "policy")
    with pytest.raises(ValueError, match=r"found no weights for score.weight"):
        ExternalScorer.load(str(tmp_path / "policy"))
    pickled = save_scorer(tmp_path / "pickled")
    torch.save(MODELS["packed"]().state_dict(), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    with pytest.raises(OSError, match="safetensors"):
        ExternalScorer.load(str(pickled))
    adapter = save_scorer(tmp_path / "adapter")
    (adapter / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match="found an adapter; allowed: merged weights"):
        ExternalScorer.load(str(adapter))
    foreign = save_scorer(tmp_path / "foreign")
    config = json.loads((foreign / "config.json").read_text())
    config |= {"model_type": "their-own", "auto_map": {"AutoConfig": "code.Config"}}
    (foreign / "config.json").write_text(json.dumps(config))
    (foreign / "code.py").write_text("raise SystemExit('their code was run')")
    with pytest.raises(ValueError, match="trust_remote_code|their-own"):
        ExternalScorer.load(str(foreign))


def test_the_stage_scores_the_pairs_of_all_splits(tmp_path: Path) -> None:
    folder = tmp_path / "preferences"
    rows = [
        {"id": f"p{n}", "prompt": HH.format(n // 2), "chosen": f" {n}", "rejected": " none"}
        for n in range(6)
    ]
    for split, own in (("train", rows[:4]), ("validation", []), ("test", rows[4:])):
        write_rows(folder / f"{split}.jsonl", own)
    model = save_scorer(tmp_path / "model")
    output = run_stage(
        "external_reward_votes",
        ExternalRewardVotesConfig(reward=RewardMemberConfig(model=str(model))),
        tmp_path / "work",
        preferences=folder,
    )
    found = read_rows(output / "scores.jsonl")
    assert [(row["id"], row["split"]) for row in found] == [
        *((f"p{n}", "train") for n in range(4)),
        *((f"p{n}", "test") for n in (4, 5)),
    ]
    scorer = ExternalScorer.load(str(model))
    for row, pair in zip(found, rows, strict=True):
        for name in ("chosen", "rejected"):
            expected = _slow(scorer, pair["prompt"], pair[name])
            assert row[f"{name}_score"] == pytest.approx(expected, abs=1e-4)
    summary = json.loads((output / "summary.json").read_text())
    assert (summary["num_pairs"], summary["num_answers"], summary["num_cut"]) == (6, 9, 0)


NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system turn') }}"
    "{% endif %}{{ m.content }} {% endfor %}"
)


def test_a_pair_whose_roles_the_template_refuses_gets_no_vote(tmp_path: Path) -> None:
    model = save_scorer(tmp_path / "model")
    (model / "chat_template.jinja").write_text(NO_SYSTEM)
    asked = ("\n\nSystem: Be kind." + HH.format("one"), HH.format("two"))
    folder = tmp_path / "preferences"
    write_rows(
        folder / "train.jsonl",
        ({"id": each[-30:], "prompt": each, "chosen": " 1", "rejected": " 2"} for each in asked),
    )
    for split in ("validation", "test"):
        write_rows(folder / f"{split}.jsonl", [])
    config = ExternalRewardVotesConfig(reward=RewardMemberConfig(model=str(model)))
    output = run_stage("external_reward_votes", config, tmp_path / "work", preferences=folder)
    refused, scored = read_rows(output / "scores.jsonl")
    assert refused["chosen_score"] is None and refused["rejected_score"] is None
    assert scored["chosen_score"] is not None and scored["rejected_score"] is not None
    summary = json.loads((output / "summary.json").read_text())
    assert (summary["num_refused"], summary["num_votes"]) == (2, 1)
    scorer = ExternalScorer.load(str(model))
    with pytest.raises(ValueError, match="refuses every dialogue: no system turn"):
        scorer.score([(asked[0], " 1")], Progress(tmp_path))


def test_a_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    save_scorer(tmp_path / "model")
    assert ExternalScorer.load("~/model").limit == 512
