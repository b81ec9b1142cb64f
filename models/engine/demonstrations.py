"""Demonstrations that stage `preferences` hands to SFT: those given, else chosen answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from models.config.data import PreferencesConfig
from models.engine.data import HELD_OUT, write_rows
from models.preferences import (
    BadRow,
    Demonstration,
    Shaping,
    Source,
    chat_renderer,
    load_demonstrations,
)
from models.prompts import opening_of
from models.records import PreferencePair


def read_demonstrations(
    config: PreferencesConfig, sources: list[Source], tokenizer: PreTrainedTokenizerBase | None
) -> tuple[list[Demonstration], list[BadRow]]:
    """Those of all sources, none without any; raises ValueError without a tokenizer."""
    if not sources:
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
    return load_demonstrations(sources, shaping, config.on_bad_rows)


def write_demonstrations(
    shown: Sequence[Demonstration], splits: dict[str, list[PreferencePair]], output: Path
) -> tuple[int, int]:
    """What SFT learns: those that were shown, but of no prompt that is held out; else chosen
    answers. Returns how many of those shown are learned and held out; raises ValueError if none of
    them is left.
    """
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
    return len(learned), len(shown) - len(learned)
