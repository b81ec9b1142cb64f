"""Stage `preferences`: read people's comparisons, check them, split them by prompt."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from models.config import PreferencesConfig
from models.engine.data import HELD_OUT, write_rows
from models.engine.progress import write_json
from models.nets.packaged import load_base_tokenizer
from models.preferences import (
    BadRow,
    Demonstration,
    PreferenceReport,
    Shaping,
    Source,
    chat_renderer,
    load_demonstrations,
    load_preferences,
    split_pairs,
    write_quarantine,
)
from models.preferences.planted import plant_flips, truth_of
from models.prompts import opening_of
from models.records import PreferencePair

CONFIG = PreferencesConfig


def run(config: PreferencesConfig, inputs: dict[str, Path], workdir: Path) -> None:
    """Inputs: `source_<i>` and `demonstrations_<i>` for all sources that are files or folders.

    Output: train, validation and test pairs; demonstrations (those given, else chosen answers of
    the training pairs), policy_prompts, eval/main (test prompts) and eval/validation;
    quarantine.jsonl; where labels were turned round on purpose, truth.jsonl.
    """
    output = workdir / "output"
    output.mkdir(parents=True, exist_ok=True)
    tokenizer = load_base_tokenizer(config.tokenizer) if config.tokenizer else None
    pairs, bad_rows, report = _load(config, inputs, tokenizer)
    shown, bad_demonstrations = _demonstrations(config, inputs, tokenizer)
    write_quarantine(output / "quarantine.jsonl", bad_rows + bad_demonstrations)
    # In random order, as stages that need only some prompts take the first.
    count = len(pairs) if config.max_pairs is None else min(config.max_pairs, len(pairs))
    pairs = random.Random(f"subset/{config.seed}").sample(pairs, count)
    splits = split_pairs(
        pairs,
        {
            "train": 1 - config.validation_share - config.test_share,
            "validation": config.validation_share,
            "test": config.test_share,
        },
        seed=config.seed,
        split_by=config.split_by,
    )
    if config.flip_share > 0:
        splits["train"] = _planted(config, splits, output)
    _write_splits(splits, config.num_eval_prompts, output)
    learned = _write_demonstrations(shown, splits, output)
    counts = {
        "num_demonstrations": learned,
        "num_demonstrations_quarantined": len(bad_demonstrations),
        "num_demonstrations_held_out": len(shown) - learned,
    }
    write_json(
        output / "summary.json",
        {
            "num_rows": report.total.rows_read,
            "num_quarantined": len(bad_rows),
            "num_pairs": len(pairs),
            **{f"num_{name}": len(rows) for name, rows in splits.items()},
            "share_chosen_longer": report.share_chosen_longer,
            **(counts if config.demonstrations else {}),
        },
    )


def _planted(
    config: PreferencesConfig, splits: dict[str, list[PreferencePair]], output: Path
) -> list[PreferencePair]:
    """The training pairs with some labels turned round; truth.jsonl says which."""
    rng = random.Random(f"flips/{config.seed}")
    turned = splits | {"train": plant_flips(splits["train"], config.flip_share, rng)}
    write_rows(
        output / "truth.jsonl",
        (
            truth_of(before, after, split)
            for split, pairs in splits.items()
            for before, after in zip(pairs, turned[split], strict=True)
        ),
    )
    return turned["train"]


def _load(
    config: PreferencesConfig, inputs: dict[str, Path], tokenizer: PreTrainedTokenizerBase | None
) -> tuple[list[PreferencePair], list[BadRow], PreferenceReport]:
    """Read all sources, with the tokenizer's chat template and token counts where one is named."""
    return load_preferences(
        _sources(config, inputs),
        on_bad_rows=config.on_bad_rows,
        on_ties=config.on_ties,
        max_characters=config.max_characters,
        render=chat_renderer(tokenizer) if tokenizer is not None else None,
        count_tokens=None if tokenizer is None else lambda text: len(tokenizer(text)["input_ids"]),
        max_tokens=None if tokenizer is None else config.max_tokens,
    )


def _demonstrations(
    config: PreferencesConfig, inputs: dict[str, Path], tokenizer: PreTrainedTokenizerBase | None
) -> tuple[list[Demonstration], list[BadRow]]:
    """Read the sources of demonstrations; nothing where there are none."""
    if not config.demonstrations:
        return [], []
    if tokenizer is None:
        raise ValueError(
            "preferences.tokenizer must be given with preferences.demonstrations, found none: its "
            "end token ends their texts"
        )
    shaping = Shaping(
        end=str(tokenizer.eos_token),
        render=chat_renderer(tokenizer),
        render_whole=chat_renderer(tokenizer, is_whole=True),
        max_characters=config.max_characters,
        count_tokens=lambda text: len(tokenizer(text)["input_ids"]),
        max_tokens=config.max_tokens,
    )
    sources = [
        _source(name, inputs.get(f"demonstrations_{index}"))
        for index, name in enumerate(config.demonstrations)
    ]
    return load_demonstrations(sources, shaping, config.on_bad_rows)


def _write_demonstrations(
    shown: Sequence[Demonstration], splits: dict[str, list[PreferencePair]], output: Path
) -> int:
    """What SFT learns, and how many of those that were shown: of no prompt that is held out."""
    held_out = {opening_of(pair.prompt) for name in HELD_OUT for pair in splits[name]}
    learned = [each for each in shown if opening_of(each.asked) not in held_out]
    if shown and not learned:
        raise ValueError(
            f"preferences.demonstrations: all {len(shown)} are of prompts that pairs of "
            f"{' and '.join(HELD_OUT)} have: give others"
        )
    chosen = (
        {"prompt": pair.prompt, "response": pair.chosen, "category": pair.category}
        for pair in splits["train"]
    )
    rows = (each.to_json() for each in learned) if shown else chosen
    write_rows(output / "demonstrations.jsonl", rows)
    return len(learned)


def _write_splits(
    splits: dict[str, list[PreferencePair]], num_eval_prompts: int, output: Path
) -> None:
    """Write the pairs, and the prompts that other stages take from them."""
    for name, rows in splits.items():
        write_rows(output / f"{name}.jsonl", (pair.to_json() for pair in rows))
    write_rows(output / "policy_prompts.jsonl", _prompts(splits["train"]))
    for split, name in (("test", "main"), ("validation", "validation")):
        prompts = _prompts(splits[split])[:num_eval_prompts]
        write_rows(output / "eval" / f"{name}.jsonl", prompts)


def _sources(config: PreferencesConfig, inputs: dict[str, Path]) -> list[Source]:
    """Sources with their categories."""
    if config.categories and len(config.categories) != len(config.sources):
        raise ValueError(
            f"preferences.categories has {len(config.categories)} entries for "
            f"{len(config.sources)} sources; give one each, or none"
        )
    return [
        _source(
            name,
            inputs.get(f"source_{index}"),
            config.categories[index] if config.categories else None,
        )
        for index, name in enumerate(config.sources)
    ]


def _source(name: str, folder: Path | None, category: str | None = None) -> Source:
    """A source; a file is named as the user named it, wherever it lies now."""
    if folder is None:
        return Source(name, category=category)
    label = name.rstrip("/").rpartition("/")[2]
    return Source(str(folder / label), category=category, name=label)


def _prompts(pairs: Sequence[PreferencePair]) -> list[dict[str, Any]]:
    """Each prompt once, with its category."""
    return list(
        {pair.prompt: {"prompt": pair.prompt, "category": pair.category} for pair in pairs}.values()
    )
