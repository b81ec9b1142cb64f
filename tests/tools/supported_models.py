"""Which base models train here: what `tests/flows/test_supported_models.py` tries, and its table.

    python -m tests.tools.supported_models docs/reference/supported-models.md

puts the table into the page; the test fails where it is another one.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.models.judge.tiny import tiny_tokenizer

BEGIN, END = "<!-- supported models: begin -->", "<!-- supported models: end -->"
SIZES = {
    "vocab_size": 258,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 1,
    "bos_token_id": None,
    "eos_token_id": 1,
}
TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
WINDOW = {"sliding_window": 16}  # tokens; rows have some 60
MIXED = WINDOW | {"layer_types": ["sliding_attention", "full_attention"]}


@dataclass(frozen=True)
class Trained:
    """An architecture that trains: `model_type`, models of it, and what is tried of it by name."""

    kind: str
    models: str
    variants: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Refused:
    """One that does not, and what the message says.

    needs_pass: only a pass of rows shows it: the plan's on the meta device, the stage's first one.
    """

    kind: str
    models: str
    reason: str
    changes: dict[str, Any]
    needs_pass: bool = False


TRAINED = (
    Trained(
        "llama",
        "Llama 1 to 3, SmolLM2, TinyLlama",
        {
            "untied head": UNTIED,
            "tied head, biases": TIED | {"attention_bias": True, "mlp_bias": True},
        },
    ),
    Trained("mistral", "Mistral", {"no window": {"sliding_window": None}, "window": WINDOW}),
    Trained("mixtral", "Mixtral", {"experts": {"num_local_experts": 4}}),
    Trained(
        "qwen2",
        "Qwen2, Qwen2.5",
        {
            "tied head": TIED,
            "untied head, window": UNTIED | MIXED | {"use_sliding_window": True},
        },
    ),
    Trained("qwen3", "Qwen3", {"tied head": TIED, "untied head": UNTIED}),
    Trained("gemma", "Gemma 1", {"tied head": TIED}),
    Trained("gemma2", "Gemma 2", {"window, soft-capped scores": MIXED}),
    Trained("gemma3_text", "Gemma 3 of text (270M, 1B)", {"window": MIXED}),
    Trained("phi", "Phi-1, Phi-1.5, Phi-2", {"biases": {}}),
    Trained("phi3", "Phi-3, Phi-4", {"no window": {"sliding_window": None}, "window": WINDOW}),
    Trained("gpt2", "GPT-2", {"tied head": TIED, "untied head": UNTIED}),
    Trained(
        "gpt_neox",
        "Pythia, GPT-NeoX",
        {"parallel residual": {}, "sequential": {"use_parallel_residual": False}},
    ),
    Trained(
        "opt",
        "OPT",
        {
            "norm first": {"ffn_dim": 48, "word_embed_proj_dim": 32},
            "norm last, projected embedding (350M)": {
                "ffn_dim": 48,
                "word_embed_proj_dim": 16,
                "do_layer_norm_before": False,
            },
        },
    ),
    Trained("olmo2", "OLMo 2", {"untied head": UNTIED}),
    Trained("smollm3", "SmolLM3", {"tied head": TIED}),
    Trained("starcoder2", "StarCoder2", {"window, biases": WINDOW | {"use_bias": True}}),
)
_OWN_ATTENTION = "does not use transformers' attention functions (AttentionInterface)"
_NO_SCORER = "of which transformers has no AutoModelForSequenceClassification"
REFUSED = (
    Refused("bloom", "BLOOM (ALiBi)", _OWN_ATTENTION, {"n_layer": 2, "n_head": 4}),
    Refused("falcon", "Falcon, with or without ALiBi", _OWN_ATTENTION, {"alibi": True}),
    Refused("mpt", "MPT (ALiBi)", _OWN_ATTENTION, {"d_model": 32, "n_layers": 2, "n_heads": 4}),
    Refused("gptj", "GPT-J", _OWN_ATTENTION, {"rotary_dim": 4}),
    Refused("stablelm", "StableLM", _OWN_ATTENTION, {}),
    Refused("gemma3", "Gemma 3 with images (4B and more)", "a model of more than text", {}),
    Refused("granite", "Granite", _NO_SCORER, {}),
    Refused("cohere2", "Command R7B", _NO_SCORER, {}),
    Refused(
        "nemotron", "Nemotron", "hands no arguments of its own to attention functions", {}, True
    ),
    Refused("gpt_oss", "gpt-oss", "has attention sinks", {"num_local_experts": 2}),
    Refused(
        "mamba",
        "Mamba",
        "without attention heads (a state-space model)",
        {"num_attention_heads": None},
    ),
    Refused("t5", "T5", "an encoder-decoder", {}),
)


def config_of(kind: str, changes: dict[str, Any]) -> Any:
    """A tiny configuration of an architecture."""
    from transformers import AutoConfig

    names = set(AutoConfig.for_model(kind).to_dict()) | {"head_dim", "num_hidden_layers"}
    names -= {"head_dim"} if kind == "falcon" else set()
    sizes = {name: value for name, value in SIZES.items() if name in names}
    if kind == "gpt2":  # which calls them otherwise
        sizes |= {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
    return AutoConfig.for_model(kind, **{**sizes, **changes})


def write_base(folder: Path, kind: str, changes: dict[str, Any], *, has_template: bool) -> None:
    """A base model of random weights, with a tokenizer of one token a byte."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config_of(kind, changes)).save_pretrained(folder)
    write_tokenizer(folder, has_template=has_template)


def write_tokenizer(folder: Path, *, has_template: bool = True) -> None:
    """The tokenizer alone."""
    tokenizer = tiny_tokenizer()
    if not has_template:
        tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)


def write_config(folder: Path, kind: str, changes: dict[str, Any]) -> None:
    """A configuration and a tokenizer, without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"}
    sizes = {name: value for name, value in SIZES.items() if name in names}
    (folder / "config.json").write_text(json.dumps({"model_type": kind, **sizes, **changes}))
    write_tokenizer(folder)


def table() -> str:
    """The tables of the page, in Markdown."""
    lines = ["| `model_type` | for example | tried |", "|---|---|---|"]
    lines += [f"| `{e.kind}` | {e.models} | {'; '.join(e.variants)} |" for e in TRAINED]
    lines += ["", "Refused before anything is loaded:", ""]
    lines += ["| `model_type` | for example | the message says |", "|---|---|---|"]
    lines += [f"| `{e.kind}` | {e.models} | {e.reason} |" for e in REFUSED]
    return "\n".join(lines)


def with_table(page: str) -> str:
    """A page with the table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_table(path.read_text("utf-8")), "utf-8")
