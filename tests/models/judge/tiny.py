"""A tiny chat model: random weights, one token per byte, a template with control tokens."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

START, END = "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Ids 0 and 1 are the control tokens, the rest single bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {text: index for index, text in enumerate([START, END, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        additional_special_tokens=[START],
        chat_template=TEMPLATE,
    )


def tiny_model(context: int = 6000) -> LlamaForCausalLM:
    """Weights so large that its probabilities are far from even."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=258,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=context,
        pad_token_id=1,
        eos_token_id=1,
        bos_token_id=None,
        initializer_range=0.5,
    )
    return LlamaForCausalLM(config).eval()


def save_tiny(folder: Path) -> Path:
    """The same as a `save_pretrained` folder."""
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def save_tiny_neox(folder: Path) -> Path:
    """A folder with a model of another family and of three layers, that reads bytes too."""
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        vocab_size=258,
        hidden_size=24,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        pad_token_id=1,
        eos_token_id=1,
        bos_token_id=None,
    )
    GPTNeoXForCausalLM(config).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
