"""What SFT learns of TRL's shapes, token by token, and its loss, are those of TRL's SFTTrainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from tests.models.conftest import run_stage
from trimtab.models.config.data import PreferencesConfig
from trimtab.models.data.records import read_rows
from trimtab.models.nets.loading import load_tokenizer
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.training.data import encode_demonstrations, encode_dialogues
from trimtab.models.training.imitation import imitation_loss

ENDS, STARTS = "<|im_end|>", "<|im_start|>"
CHAT_ML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _turns(*contents: str) -> list[dict[str, str]]:
    """A user's turn, an answer, and so on."""
    roles = ("user", "assistant") * len(contents)
    return [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]


def _answer(content: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": content}]


SYSTEM = [{"role": "system", "content": "you add numbers"}]
SHAPES: dict[str, list[dict[str, Any]]] = {
    "completion": [
        {"prompt": "how many are two and two?", "completion": " four, I think"},
        # Tokens reach across where the prompt ends in a space or the middle of a word.
        {"prompt": "how many are three and two? ", "completion": "four numb"},
        {"prompt": "I add two num", "completion": f"bers and think{ENDS}"},
    ],
    "message completion": [
        {"prompt": SYSTEM + _turns("two and two?"), "completion": _answer("four")},
        {
            "prompt": _turns("two and two?", "four", "and three?"),
            "completion": [*_answer("seven"), *_turns("sure?", "yes")],
        },
    ],
    "messages": [
        {"messages": SYSTEM + _turns("two and two?", "four")},
        {"messages": _turns("how many?", "of what?", "numbers", "three")},
    ],
    "text": [{"text": "two and two are four"}, {"text": f"numbers add up{ENDS}"}],
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE tokenizer with a chat template, beside a Llama of two layers."""
    folder = tmp_path_factory.mktemp("base")
    trained = ByteLevelBPETokenizer()
    texts = [f"{text} " for text in json.dumps(SHAPES).split("\\n")] * 20
    special = ["<pad>", STARTS, ENDS]
    trained.train_from_iterator(texts, vocab_size=400, min_frequency=2, special_tokens=special)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=trained._tokenizer,
        eos_token=ENDS,
        pad_token="<pad>",
        additional_special_tokens=[STARTS],
        chat_template=CHAT_ML,
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.2,  # so that tokens are far from equally likely
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def _ours(
    tmp_path: Path, base: Path, rows: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase
) -> list[Candidates]:
    """What the stage `preferences` makes of the rows, as SFT reads it."""
    pairs = [{"prompt": f"p{n}", "chosen": " yes", "rejected": " no"} for n in range(20)]
    for name, written in (("pairs", pairs), ("shown", rows)):
        (tmp_path / name).mkdir()
        lines = "".join(f"{json.dumps(row)}\n" for row in written)
        (tmp_path / name / f"{name}.jsonl").write_text(lines)
    config = PreferencesConfig(
        sources=("pairs.jsonl",),
        demonstrations=("shown.jsonl",),
        tokenizer=str(base),
        validation_share=0.3,
        test_share=0.3,
    )
    inputs = {"source_0": tmp_path / "pairs", "demonstrations_0": tmp_path / "shown"}
    output = run_stage("preferences", config, tmp_path / "work", **inputs)
    assert len(read_rows(output / "demonstrations.jsonl")) == len(rows)
    return encode_dialogues(output / "demonstrations.jsonl", tokenizer, 256)


def _theirs(
    tmp_path: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[dict[str, Any]],
) -> Any:
    from datasets import Dataset  # which take seconds to load: not where tests are collected
    from trl import SFTConfig, SFTTrainer

    return SFTTrainer(
        model,
        SFTConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=len(rows),
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            report_to="none",
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_tokens_loss_and_gradients_are_trls(tmp_path: Path, base: Path, shape: str) -> None:
    tokenizer, model = load_tokenizer(base), LlamaForCausalLM.from_pretrained(base).eval()
    ours = _ours(tmp_path, base, SHAPES[shape], tokenizer)
    loss, _ = imitation_loss(model)(pack(ours), torch.arange(len(ours)))
    loss.backward()
    gradients = {name: value.grad.clone() for name, value in model.named_parameters()}
    model.zero_grad()

    trainer = _theirs(tmp_path, model, tokenizer, SHAPES[shape])
    for row, theirs in zip(ours, trainer.train_dataset, strict=True):
        assert [*row.prompt, *row.responses[0]] == theirs["input_ids"]
        learned = [label != -100 for label in theirs["labels"]]
        # Nothing predicts the first token, labelled or not.
        assert [False] * len(row.prompt) + [True] * len(row.responses[0]) == [False, *learned[1:]]
    (batch,) = trainer.get_train_dataloader()
    expected = trainer.compute_loss(trainer.model.eval(), batch)
    expected.backward()
    assert expected.item() > 1
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    for name, value in model.named_parameters():
        torch.testing.assert_close(gradients[name], value.grad, rtol=1e-5, atol=2e-6, msg=name)


def test_a_token_that_reaches_across_is_learned(tmp_path: Path, base: Path) -> None:
    """The two cases above differ from prompt and completion tokenised apart, or show nothing."""
    tokenizer = load_tokenizer(base)
    for row, found in zip(
        SHAPES["completion"][1:],
        _ours(tmp_path, base, SHAPES["completion"][1:], tokenizer),
        strict=True,
    ):
        alone = tokenizer(row["prompt"])["input_ids"]
        assert alone[: len(found.prompt)] == found.prompt
        assert len(found.prompt) < len(alone)


def test_demonstrations_of_both_kinds_keep_their_order(base: Path) -> None:
    """As where Constitutional AI mixes demonstrations with revisions."""
    tokenizer = load_tokenizer(base)
    rows = [{"prompt": "two", "response": " and two"}, {"prompt": "", "text": "two numbers"}]
    (answer, text) = encode_demonstrations(rows, tokenizer)
    assert encode_demonstrations(rows[::-1], tokenizer) == [text, answer]
    assert answer.responses[0][-1] == tokenizer.eos_token_id
    assert [*text.prompt, *text.responses[0]] == tokenizer("two numbers")["input_ids"]
