"""Loading what transformers saved, without running code that comes with it.

A config.json can name code: classes of its own (`auto_map`), kernels of the hub for attention or
experts, quantised weights whose kernels are the hub's. transformers refuses some of these only
where a package is missing. Here they are refused before anything is loaded, wherever they stand in
the file, and what a model attends by is never taken from it. All loading goes through this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from typing import Any

from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

# None: transformers' own choice for the class, whatever the configuration says.
NO_CODE: dict[str, Any] = {
    "attn_implementation": None,
    "experts_implementation": None,
    "trust_remote_code": False,
    "use_kernels": False,
}
IMPLEMENTATIONS = ("attn_implementation", "experts_implementation")
NO_CODE_OF_NEW = {name: NO_CODE[name] for name in ("attn_implementation", "trust_remote_code")}
# Keys by which a configuration asks for kernels.
KERNELS = ("use_kernels", "kernel_config", "quantization_config", "compression_config")


def load_pretrained(kind: Any, name: str | PathLike[str], **settings: Any) -> Any:
    """`kind.from_pretrained` of a folder or hub id; kind: a class of AutoModelFor...

    Raises ValueError as `refuse_code`.
    """
    if "gguf_file" not in settings:  # which has no configuration but sizes
        refuse_code(name)
    return kind.from_pretrained(name, **NO_CODE, **settings)


def build_from_config(kind: Any, config: PreTrainedConfig, **settings: Any) -> Any:
    """`kind.from_config`: a model with new weights. Raises ValueError as `refuse_code`."""
    if (reason := _code_in(config.to_dict())) is not None:
        raise ValueError(f"{config.model_type}: {reason}")
    return kind.from_config(config, **NO_CODE_OF_NEW, **settings)


def load_config(name: str | PathLike[str], **settings: Any) -> PreTrainedConfig:
    """The configuration of a folder or hub id. Raises ValueError as `refuse_code`."""
    refuse_code(name)
    config: PreTrainedConfig = AutoConfig.from_pretrained(name, trust_remote_code=False, **settings)
    return config


def load_tokenizer_of(name: str | PathLike[str], **settings: Any) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or hub id."""
    with _named(name):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            name, trust_remote_code=False, **settings
        )
    return tokenizer


def load_sentence_encoder(name: str, device: str) -> Any:
    """A SentenceTransformer of a folder or hub id. Raises ValueError as `refuse_code`."""
    from sentence_transformers import SentenceTransformer

    refuse_code(name)
    model_settings = {key: NO_CODE[key] for key in IMPLEMENTATIONS}
    return SentenceTransformer(
        name, device=device, trust_remote_code=False, model_kwargs=model_settings
    )


def refuse_code(name: str | PathLike[str]) -> None:
    """Raise ValueError where the config.json of a folder or hub id names code."""
    if (reason := code_named_by(name)) is not None:
        raise ValueError(f"{name}: {reason}")


def code_named_by(name: str | PathLike[str]) -> str | None:
    """The code that the config.json of a folder or hub id names, and what is allowed; else None."""
    with _named(name):
        fields, _ = PreTrainedConfig.get_config_dict(name)
    return _code_in(fields if isinstance(fields, dict) else {})


@contextmanager
def _named(name: str | PathLike[str]) -> Iterator[None]:
    """Where the hub cannot be reached, transformers does not say for which model it was asked."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{name}: {error}") from error


def _code_in(fields: Mapping[str, Any]) -> str | None:
    kind = fields.get("model_type")
    if "auto_map" in fields and kind not in CONFIG_MAPPING:
        return (
            f"found model_type {kind!r} with code of its own (auto_map), which is not run; "
            "allowed: an architecture that transformers has"
        )
    for key, value in _settings(fields):
        if key.endswith(IMPLEMENTATIONS) and "/" in str(value):
            return (
                f"found {key} {value!r}, a kernel of the hub, which is code; allowed: one of "
                "transformers' own, or none"
            )
        if key in KERNELS and value:
            return (
                f"found {key} in config.json, by which kernels of the hub, which are code, can be "
                "asked for; allowed: weights that are not quantised, without it"
            )
    return None


def _settings(fields: Any) -> Iterator[tuple[str, Any]]:
    """All keys with their values, of mappings inside too; `*_internal` as without it."""
    if isinstance(fields, Mapping):
        for key, value in fields.items():
            yield str(key).removesuffix("_internal"), value
            yield from _settings(value)
    elif isinstance(fields, list):
        for field in fields:
            yield from _settings(field)
