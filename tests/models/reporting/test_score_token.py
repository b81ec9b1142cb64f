"""Exported scorers give in other people's code the scores that they have in Trimtab."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    pipeline,
)

from tests.models.judge.tiny import tiny_tokenizer
from tests.tools.supported_models import TRAINED, write_base
from trimtab.infra.tracking.model_folder import SCORER, make_model_folder
from trimtab.models.nets.loading import load_scorer, load_tokenizer, new_scorer, save_model
from trimtab.models.reporting.export import (
    ExportedScorer,
    export_scorer,
    name_for_transformers_4,
)
from trimtab.models.reporting.model_card import Exported, model_card
from trimtab.models.reporting.score_token import MARK, end_texts
from trimtab.models.training.external_scorer import Dialogue, ExternalScorer
from trimtab.models.training.progress import Progress
from trimtab.models.training.reward_function import RewardModel
from trimtab.models.training.scoring import score_answers

# What users say, and answers.
DIALOGUES = {
    "world": [("sort : b a", "a b"), ("greet : bob", "hello bob and a good day")] * 2,
    "text": [
        ("What is two and two?", "It is 4."),
        ("Name a fruit.\n\nA sweet one", "Pears <are> sweet,\n\nand so are apples >"),
        ("é?", "Ein Übel\n"),
    ],
}
ROPE = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
SIZES: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16}


class Saved(NamedTuple):
    """A scorer as trained, its export, and rows of (messages, prompt's text, answer's text)."""

    model: Path
    exported: Path
    rows: list[tuple[list[dict[str, str]], str, str]]

    @property
    def texts(self) -> list[str]:
        return [prompt + answer for _, prompt, answer in self.rows]

    def expected(self) -> list[float]:
        """Of each text the head's first column at an end token behind it, by transformers alone."""
        tokenizer = AutoTokenizer.from_pretrained(self.model)
        model = AutoModelForSequenceClassification.from_pretrained(self.model).eval()
        found = []
        for text in self.texts:
            ids = [*tokenizer(text, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
            with torch.no_grad():
                states = model.base_model(torch.tensor([ids])).last_hidden_state
                found.append(float(model.score(states)[0, -1, 0]))
        return found


def _saved(folder: Path, model: Path, kind: str, write: Callable[[str], str], mark: str) -> Saved:
    shutil.copytree(model, folder / "exported")
    export_scorer(folder / "exported")
    rows = [
        (
            [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}],
            write(asked),
            f"{mark}{answer}",
        )
        for asked, answer in DIALOGUES[kind]
    ]
    return Saved(model, folder / "exported", rows)


def _byte_level(special: list[str], **settings: Any) -> PreTrainedTokenizerFast:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {text: index for index, text in enumerate([*special, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **settings)


def _llama_2() -> PreTrainedTokenizerFast:
    """Blanks are letters, with one in front of every piece of text: no ending text is found."""
    letters = sorted({*"▁ <>.,?!\n:", *map(chr, range(48, 123)), *"éÜ"})
    vocab = {text: index for index, text in enumerate(["<unk>", "<s>", "</s>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def _scorer(folder: Path, policy: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> Path:
    save_model(policy, tokenizer, folder / "policy")
    save_model(new_scorer(folder / "policy", 0), tokenizer, folder / "model")
    return folder / "model"


def _qwen3(folder: Path) -> Saved:
    tokenizer, sizes = tiny_tokenizer(), {**SIZES, "head_dim": 8, "num_key_value_heads": 1}
    ends = {"eos_token_id": 1, "pad_token_id": 1, "bos_token_id": None}
    config = Qwen3Config(vocab_size=258, intermediate_size=32, **sizes, **ends)
    model = _scorer(folder, Qwen3ForCausalLM(config), tokenizer)
    template = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    return _saved(folder, model, "text", template.format, "")


def _gpt2(folder: Path) -> Saved:
    """No template, no special token but the end."""
    tokenizer = _byte_level(["<|endoftext|>"], eos_token="<|endoftext|>")
    config = GPT2Config(vocab_size=257, n_layer=2, n_head=2, n_embd=16, bos_token_id=0)
    config.eos_token_id, config.pad_token_id = 0, None
    model = _scorer(folder, GPT2LMHeadModel(config), tokenizer)
    return _saved(folder, model, "text", "\n\nHuman: {}\n\nAssistant:".format, " ")


def _old_llama(folder: Path) -> Saved:
    tokenizer, sizes = _llama_2(), {**SIZES, "intermediate_size": 32}
    config = LlamaConfig(vocab_size=len(tokenizer), **sizes, eos_token_id=2, pad_token_id=None)
    model = _scorer(folder, LlamaForCausalLM(config), tokenizer)
    return _saved(folder, model, "text", "\n\nHuman: {}\n\nAssistant:".format, " ")


def _qwen2(folder: Path) -> Saved:
    """Its tokenizer is built anew by transformers, whatever tokenizer.json says of a normalizer."""
    tokenizer, sizes = tiny_tokenizer(), {**SIZES, "num_key_value_heads": 1}
    ends = {"eos_token_id": 1, "pad_token_id": 1, "bos_token_id": None}
    config = Qwen2Config(vocab_size=260, intermediate_size=32, **sizes, **ends)
    Qwen2ForCausalLM(config).save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    model = _scorer(
        folder, Qwen2ForCausalLM(config), AutoTokenizer.from_pretrained(folder / "base")
    )
    template = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    return _saved(folder, model, "text", template.format, "")


def _long_positions(folder: Path) -> Saved:
    """Positions turned by a base and a scaling that are not the usual ones."""
    tokenizer, sizes = tiny_tokenizer(), {**SIZES, "num_key_value_heads": 1}
    ends = {"eos_token_id": 1, "pad_token_id": 1, "bos_token_id": None}
    config = LlamaConfig(
        vocab_size=258, intermediate_size=32, **sizes, **ends, rope_parameters=ROPE
    )
    model = _scorer(folder, LlamaForCausalLM(config), tokenizer)
    template = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    return _saved(folder, model, "text", template.format, "")


BASES = {
    "qwen3": _qwen3,
    "qwen2": _qwen2,
    "gpt2": _gpt2,
    "llama_2": _old_llama,
    "long_positions": _long_positions,
}


@pytest.fixture(params=["reward_model", "advantage_model", *BASES])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Saved:
    torch.manual_seed(0)
    if request.param in BASES:
        return BASES[request.param](tmp_path)
    model = request.getfixturevalue(request.param) / "model"
    return _saved(tmp_path, model, "world", "<user> {} <assistant>".format, "")


def _is_always_ended(saved: Saved) -> bool:
    mark = json.loads((saved.exported / "config.json").read_text())[MARK]
    assert mark["score_token"] == load_tokenizer(saved.model).eos_token
    return bool(mark["is_always_appended"])


@pytest.mark.slow
def test_everybody_reads_the_same_score(saved: Saved) -> None:
    expected = pytest.approx(saved.expected(), abs=1e-5)
    tokenizer = AutoTokenizer.from_pretrained(saved.exported)
    model = AutoModelForSequenceClassification.from_pretrained(saved.exported).eval()
    assert tokenizer.pad_token_id == model.config.pad_token_id != tokenizer.eos_token_id

    def scores(tokens: Any) -> list[float]:
        with torch.no_grad():
            found: list[float] = model(**tokens).logits[:, 0].tolist()
        return found

    # transformers counts GPT-2's positions from the padding on.
    sides = ("right",) if model.config.model_type == "gpt2" else ("left", "right")
    for side in sides:
        tokenizer.padding_side = side
        assert scores(tokenizer(saved.texts, padding=True, return_tensors="pt")) == expected
        many = scores(tokenizer(saved.texts * 16, padding=True, return_tensors="pt"))
        assert many[: len(saved.texts)] == expected
        dialogues = [messages for messages, _, _ in saved.rows]
        tokens = tokenizer.apply_chat_template(
            dialogues, padding=True, return_dict=True, return_tensors="pt"
        )
        assert scores(tokens) == expected
    alone = [scores(tokenizer(text, return_tensors="pt"))[0] for text in saved.texts]
    assert alone == expected
    classify = pipeline("text-classification", model=str(saved.exported))
    assert [found["score"] for found in classify(saved.texts)] == expected
    if _is_always_ended(saved):
        ended = [f"{text}{tokenizer.eos_token}" for text in saved.texts]
        assert [found["score"] for found in classify(ended, batch_size=2)] == expected
        plain = tokenizer(saved.texts, padding=True, add_special_tokens=False, return_tensors="pt")
        assert scores(plain) == expected
        pairs = [{"text": prompt, "text_pair": answer} for _, prompt, answer in saved.rows]
        assert [classify(pair)["score"] for pair in pairs] == expected


@pytest.mark.slow
def test_trimtab_reads_the_same_score_of_what_it_exported(saved: Saved, tmp_path: Path) -> None:
    """And of what an earlier version did, by its card; of messages that are HH-RLHF text, too."""
    scores = saved.expected()
    expected = pytest.approx(dict(zip(saved.texts, scores, strict=True)), abs=1e-5)

    def scored_by(folder: Path, asked: list[tuple[str, str]]) -> dict[str, float]:
        found = ExternalScorer.load(str(folder)).score(asked, Progress(tmp_path))
        return {f"{prompt}{answer}": score for (prompt, answer), score in found.items()}

    asked = [(prompt, answer) for _, prompt, answer in saved.rows]
    assert scored_by(saved.exported, asked) == expected
    if "expected_reward" not in (saved.model / "config.json").read_text():
        tokenizer, model = load_tokenizer(saved.model), load_scorer(saved.model).eval()
        rows = [{"prompt": prompt} for prompt, _ in asked]
        unexported = score_answers(model, tokenizer, rows, [[answer] for _, answer in asked])[:, 0]
        assert unexported.tolist() == pytest.approx(scores, abs=1e-5)
        earlier = shutil.copytree(saved.model, tmp_path / "earlier")
        (earlier / "README.md").write_text('---\ntags: ["rlhf", "reward-model", "trimtab"]\n---\n')
        assert scored_by(earlier, asked) == expected
    if "<|im_start|>" in saved.texts[0]:  # whose prompts were messages
        dialogues = [
            (f"\n\nHuman: {first['content']}\n\nAssistant:", f" {last['content']}")
            for (first, last), _, _ in saved.rows[:2]  # the third ends in a line break, which goes
        ]
        found = scored_by(saved.exported, dialogues)
        assert [*found.values()] == pytest.approx(scores[:2], abs=1e-5)


def test_a_model_of_messages_reads_a_plain_prompt_as_one(saved: Saved, tmp_path: Path) -> None:
    """One of text, and one that does not say what it learned from, reads text as it stands."""
    told = [(first["content"], last["content"]) for (first, last), _, _ in saved.rows]
    # Words that templates write, too, in a prompt that none has written.
    plain = [*told, ("An ad for a personal Assistant: funny.", "\nassistant\n"), ("a </s> b", "c")]
    written = [(prompt, answer) for _, prompt, answer in saved.rows]
    messages = [(("user", asked), ("assistant", answer)) for asked, answer in plain]
    for prompts in ("messages", "text", "both", None):
        folder = tmp_path / str(prompts)
        shutil.copytree(saved.model, folder)
        export_scorer(folder, prompts=prompts)
        scorer = ExternalScorer.load(str(folder))
        tokens = [[scorer.encode(each) for each in asked] for asked in (messages, written, plain)]
        assert tokens[0][: len(written)] == tokens[1]
        assert [one == other for one, other in zip(tokens[0], tokens[2], strict=True)] == [
            prompts == "messages"
        ] * len(plain)


@pytest.mark.parametrize("saved", ["qwen3"], indirect=True)
def test_a_template_that_wants_a_system_s_turn_has_written_its_prompts(
    saved: Saved, tmp_path: Path
) -> None:
    shutil.copytree(saved.model, tmp_path / "saved")
    export_scorer(tmp_path / "saved", prompts="messages")
    expected = ExternalScorer.load(str(tmp_path / "saved")).encode(saved.rows[0][1:])
    scorer = ExternalScorer.load(str(tmp_path / "saved"))
    scorer.tokenizer.chat_template = (
        "{%- if messages[0].role != 'system' -%}{{ raise_exception('no system') }}{%- endif -%}"
    )
    assert scorer.encode(saved.rows[0][1:]) == expected


@pytest.mark.slow
def test_trimtab_reads_the_same_score_of_messages_and_whole_texts(saved: Saved) -> None:
    end = load_tokenizer(saved.model).eos_token
    asked: Sequence[Sequence[Dialogue]] = [
        [
            tuple((said["role"], said["content"]) for said in messages)
            for messages, _, _ in saved.rows
        ],
        saved.texts,
        [f"{text}{end}" for text in saved.texts],
    ]
    scorer = ExternalScorer.load(str(saved.exported))
    for dialogues in asked:
        found = scorer.score(dialogues)
        scores = [found[dialogue] for dialogue in dialogues]
        assert scores == pytest.approx(saved.expected(), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["GRPO", "RLOO"])
def test_trl_reads_the_same_score(saved: Saved, tmp_path: Path, policy: Path, kind: str) -> None:
    import trl
    from datasets import Dataset

    expected = pytest.approx(saved.expected(), abs=1e-5)
    trainer = getattr(trl, f"{kind}Trainer")(
        model=str(policy / "model"),
        reward_funcs=[str(saved.exported), RewardModel.load(saved.exported)],
        args=getattr(trl, f"{kind}Config")(
            output_dir=str(tmp_path / "trl"),
            use_cpu=True,
            bf16=False,
            report_to="none",
            num_generations=2,
            per_device_train_batch_size=2,
        ),
        train_dataset=Dataset.from_list([{"prompt": "a"}] * 2),
    )
    asked = [messages[:1] for messages, _, _ in saved.rows]
    answers = [messages[1:] for messages, _, _ in saved.rows]

    def rewards(prompts: list[Any], completions: list[Any]) -> list[float]:
        inputs = [{"prompt": prompt} for prompt in prompts]
        found = trainer._calculate_rewards(inputs, prompts, completions, [[0]] * len(prompts))
        scores: list[float] = found[:, 0].tolist()
        assert found[:, 1].tolist() == expected
        return scores

    assert rewards(asked, answers) == expected
    if _is_always_ended(saved):
        _, prompts, texts = map(list, zip(*saved.rows, strict=True))
        assert rewards(prompts, texts) == expected


@pytest.mark.slow
def test_mlflow_reads_the_same_score(saved: Saved, tmp_path: Path) -> None:
    import mlflow

    expected = pytest.approx(saved.expected(), abs=1e-5)
    made = tmp_path / "mlflow"
    made.mkdir()
    make_model_folder(shutil.copytree(saved.exported, tmp_path / "copy"), made, SCORER)
    found = mlflow.pyfunc.load_model(str(made)).predict(saved.texts)
    assert found["score"].tolist() == expected
    classify = mlflow.transformers.load_model(str(made))
    assert [each["score"] for each in classify(saved.texts)] == expected


# transformers names GPT-2's head of token classes otherwise.
@pytest.mark.slow
@pytest.mark.parametrize(
    "saved",
    ["reward_model", "advantage_model", *(base for base in BASES if base != "gpt2")],
    indirect=True,
)
def test_verl_reads_the_same_score(saved: Saved) -> None:
    """Which loads a model of token classes, and takes what it says of a dialogue's last token."""
    config = AutoConfig.from_pretrained(saved.exported, classifier_dropout=0.0)
    model = AutoModelForTokenClassification.from_pretrained(saved.exported, config=config).eval()
    tokenizer = AutoTokenizer.from_pretrained(saved.exported)
    for (messages, _, _), expected in zip(saved.rows, saved.expected(), strict=True):
        tokens = tokenizer.apply_chat_template([messages], return_dict=True, return_tensors="pt")
        with torch.no_grad():
            logits = model(**tokens).logits
        assert logits[0, -1].tolist() == pytest.approx([expected], abs=1e-5)


@pytest.mark.slow
def test_the_card_s_code_prints_the_score(saved: Saved, capsys: pytest.CaptureFixture[str]) -> None:
    mark = json.loads((saved.exported / "config.json").read_text())[MARK]
    entry: dict[str, Any] = {"role": "reward_model", "stage": "reward_model", "digest": "0"}
    entry |= {"versions": {}, "parents": {}}
    scorer = ExportedScorer(["reward"], False, mark)
    card = model_card(Exported("mine", "", {}, {}, entry, scorer=scorer))
    assert f"read at the end token `{mark['score_token']}`" in card
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    messages, prompt, response = saved.rows[0]
    code = code.replace("FOLDER", str(saved.exported))
    for said in messages:
        code = code.replace('"..."', json.dumps(said["content"]), 1)
    capsys.readouterr()
    exec(code, {"prompt": prompt, "response": response})
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert printed == [[pytest.approx(saved.expected()[0], abs=1e-5)]] * 2


def test_a_prompt_and_tokens_by_themselves_stay_as_they_are(tmp_path: Path) -> None:
    saved = _qwen3(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(saved.exported)
    _, prompt, _ = saved.rows[0]
    own = AutoTokenizer.from_pretrained(saved.model)
    for text in (prompt, "<|im_start|>", "<|im_end|>"):
        assert tokenizer(text).input_ids == own(text, add_special_tokens=False).input_ids
    assert tokenizer(f"{prompt}<|im_end|>").input_ids == own(f"{prompt}<|im_end|>").input_ids
    inside = "a<|im_end|>\n<|im_start|>b"
    assert tokenizer(inside).input_ids == [*own(inside).input_ids, 1]
    assert tokenizer("b" * 900, truncation=True, max_length=5).input_ids[-1] == 1
    again = tmp_path / "again"
    tokenizer.save_pretrained(again)
    assert AutoTokenizer.from_pretrained(again)("a").input_ids == own("a<|im_end|>").input_ids


def test_what_transformers_4_reads_is_there(tmp_path: Path) -> None:
    """By the names that its configurations and tokenizers had: `rope_parameters` it passes over."""
    folder = _long_positions(tmp_path).exported
    config = json.loads((folder / "config.json").read_text())
    scaling = {name: value for name, value in ROPE.items() if name != "rope_theta"}
    assert (config["rope_theta"], config["rope_scaling"]) == (100.0, scaling)
    assert config["torch_dtype"] == config["dtype"] == "float32"
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert settings["additional_special_tokens"] == ["<|im_start|>"]
    assert "extra_special_tokens" not in settings  # there a mapping
    # Without these a tokenizer gives token types, which GPT-2 adds to its embeddings.
    assert settings["model_input_names"] == ["input_ids", "attention_mask"]


def test_both_bases_of_positions_are_named(tmp_path: Path) -> None:
    base = next(each for each in TRAINED if each.kind == "gemma3_text")
    write_base(tmp_path, base.kind, base.variants["window"], has_template=True)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["rope_parameters"]["full_attention"]["rope_theta"] = 2e6
    config["rope_parameters"]["sliding_attention"]["rope_theta"] = 3e4
    path.write_text(json.dumps(config))
    name_for_transformers_4(tmp_path)
    config = json.loads(path.read_text())
    found = [config[name] for name in ("rope_theta", "rope_scaling", "rope_local_base_freq")]
    assert found == [2e6, None, 3e4]


@pytest.mark.parametrize("kind", ["phi", "gpt_neox"])
def test_the_share_of_a_head_that_positions_turn_is_named(tmp_path: Path, kind: str) -> None:
    base = next(each for each in TRAINED if each.kind == kind)
    write_base(tmp_path, kind, next(iter(base.variants.values())), has_template=True)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["rope_parameters"] |= {"partial_rotary_factor": 0.75, "rope_theta": 300.0}
    path.write_text(json.dumps(config))
    name_for_transformers_4(tmp_path)
    config = json.loads(path.read_text())
    names = {
        "phi": ("partial_rotary_factor", "rope_theta"),
        "gpt_neox": ("rotary_pct", "rotary_emb_base"),
    }
    assert [config[name] for name in names[kind]] == [0.75, 300.0]
    assert config["rope_scaling"] is None


@pytest.mark.slow
def test_the_tokenizer_of_every_supported_model_ends_texts(tmp_path: Path) -> None:
    for base in TRAINED:
        folder = tmp_path / base.kind
        write_base(
            folder / "base", base.kind, next(iter(base.variants.values())), has_template=True
        )
        shutil.copytree(folder / "base", folder / "exported")
        end_texts(folder / "exported")
        name_for_transformers_4(folder / "exported")
        before, after = (AutoTokenizer.from_pretrained(folder / n) for n in ("base", "exported"))
        ids = before("a b", add_special_tokens=False).input_ids
        assert after("a b").input_ids == [*ids, before.eos_token_id], base.kind


def test_numbered_tokens_are_few_patterns(tmp_path: Path) -> None:
    """A tokenizer that has thousands of them, as Gemma's, is loaded in time."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([f"<unused{number}>" for number in range(3000)], special_tokens=True)
    tokenizer.save_pretrained(tmp_path)
    assert end_texts(tmp_path)["is_always_appended"]
    ended = AutoTokenizer.from_pretrained(tmp_path)
    assert ended("<unused2999>").input_ids == tokenizer("<unused2999>").input_ids
    assert ended("a<unused7>").input_ids == [*tokenizer("a<unused7>").input_ids, 1]
    backend = json.loads((tmp_path / "tokenizer.json").read_text())
    assert len(backend["normalizer"]["pattern"]["Regex"]) < 500
