"""Stage `preferences`: read people's comparisons, check them, split them by prompt."""

from __future__ import annotations

import dataclasses
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from trimtab.models.config.base import last_part
from trimtab.models.config.data import PreferencesConfig
from trimtab.models.data.demonstrations import Demonstration, Shaping, load_demonstrations
from trimtab.models.data.loading import TokenLimit, load_preferences
from trimtab.models.data.messages import Render, chat_renderer
from trimtab.models.data.problems import BadRow, write_quarantine
from trimtab.models.data.prompts import first_turn
from trimtab.models.data.readers import Source
from trimtab.models.data.records import PreferencePair
from trimtab.models.data.row_account import PreferenceReport, RowAccount
from trimtab.models.data.row_fields import RowFields
from trimtab.models.data.splits import plant_flips, split_pairs, truth_of
from trimtab.models.data.written_prompts import SETS, load_written, written_like
from trimtab.models.nets import counts
from trimtab.models.nets.loading import load_tokenizer
from trimtab.models.statistics.annotators import consensus, label_probabilities, opinions_of
from trimtab.models.training.data import HELD_OUT
from trimtab.models.training.stage import Row, Stage


def run(config: PreferencesConfig, stage: Stage) -> None:
    """Inputs: `source_<i>` and `demonstrations_<i>` for all sources that are files or folders.

    Output: train, validation and test pairs; demonstrations (those given, else chosen answers of
    the training pairs), policy_prompts, eval/main (test prompts), eval/validation and, where they
    are wanted, eval/helpful and eval/harmless (prompts of our own, written as those of the pairs);
    fields (of the rows of each split's pairs, what the pairs do not hold: `RowFields.write`);
    quarantine.jsonl (every refused row with its file, line and reasons); rows.json (where every row
    went: a `trimtab.models.data.row_account.RowAccount`); where flips were planted
    truth.jsonl. With `annotator_labels` training pairs have a `label`, where it is not 1.
    """
    stage.output.mkdir(parents=True, exist_ok=True)
    tokenizer = load_tokenizer(config.tokenizer) if config.tokenizer else None
    render = chat_renderer(tokenizer) if tokenizer is not None else None
    with tempfile.TemporaryFile(dir=stage.workdir) as scratch:
        fields = RowFields(scratch, config.prompt_columns)
        good, bad_rows, report = _load(config, stage, tokenizer, render, fields)
        # In random order, as stages that need only some prompts take the first.
        count = counts.num_taken(len(good), config.max_pairs)
        pairs = random.Random(f"subset/{config.seed}").sample(good, count)
        pairs = fields.columns.added_to(pairs, report)
        shares = counts.split_shares(config)
        splits = split_pairs(pairs, shares, seed=config.seed, split_by=config.split_by)
        fields.write(stage.output / "fields", splits, report.row_of)
    sources = [
        _source(name, stage.inputs.get(f"demonstrations_{index}"))
        for index, name in enumerate(config.demonstrations)
    ]
    shown, bad_demonstrations = read_demonstrations(config, sources, tokenizer)
    write_quarantine(stage.output / "quarantine.jsonl", bad_rows + bad_demonstrations)
    if config.flip_share > 0:
        splits["train"] = _plant_flips(config, splits, stage)
    labels = _annotator_labels(splits) if config.annotator_labels else {}
    _write_splits(splits, labels, config.num_eval_prompts, stage)
    if config.written_prompts:
        _write_own_prompts([pair.prompt for pair in splits["test"]], render, stage)
    learned, held_out = write_demonstrations(shown, splits, stage)
    demonstrations = {
        "read": len(shown) + len(bad_demonstrations),
        "learned": learned,
        "held_out": held_out,
        "quarantined": len(bad_demonstrations),
    }
    account = report.account(
        good, pairs, config.max_pairs, demonstrations if config.demonstrations else {}
    )
    stage.write_json("rows.json", dataclasses.asdict(account))
    stage.write_summary(_summary(account, report, splits))


def _summary(
    account: RowAccount, report: PreferenceReport, splits: dict[str, list[PreferencePair]]
) -> dict[str, Any]:
    """The account's numbers, flat, and as sentences for a log."""
    rows = account.rows
    names = {
        "learned": "num_demonstrations",
        "held_out": "num_demonstrations_held_out",
        "quarantined": "num_demonstrations_quarantined",
    }
    return {
        "num_rows": rows.read,
        "num_rows_used": rows.used,
        "num_quarantined": rows.quarantined,
        **{f"num_quarantined_{why}": n for why, n in account.quarantined_by_reason.items()},
        "num_ties_dropped": rows.ties_dropped,
        "num_over_limit": rows.over_limit,
        "num_unpaired": rows.unpaired,
        "num_pairs": account.pairs_used,
        "num_repeated": account.repeated,
        "num_contradicting": account.contradicting,
        "num_against_votes": account.against_votes,
        "num_against_scores": account.against_scores,
        **{f"num_{name}": len(pairs) for name, pairs in splits.items()},
        "share_chosen_longer": report.share_chosen_longer,
        **{names[name]: count for name, count in account.demonstrations.items() if name in names},
        "account": "; ".join([account.sentence(), *account.details()]),
        "warnings": " ".join(account.warnings()) or None,
    }


def _plant_flips(
    config: PreferencesConfig, splits: dict[str, list[PreferencePair]], stage: Stage
) -> list[PreferencePair]:
    """The training pairs with planted flips; truth.jsonl says which."""
    rng = random.Random(f"flips/{config.seed}")
    flipped = splits | {"train": plant_flips(splits["train"], config.flip_share, rng)}
    stage.write_rows(
        "truth.jsonl",
        (
            truth_of(before, after, split)
            for split, pairs in splits.items()
            for before, after in zip(pairs, flipped[split], strict=True)
        ),
    )
    return flipped["train"]


def _annotator_labels(splits: dict[str, list[PreferencePair]]) -> dict[str, float]:
    """By id, how likely the label of a pair with votes of several annotators is right."""
    rows = (pair.to_json() for pairs in splits.values() for pair in pairs if pair.opinions)
    opinions = opinions_of(rows)
    labels = {} if opinions is None else label_probabilities(opinions, consensus(opinions))
    if not labels:
        raise ValueError(
            "preferences.annotator_labels is true, but no pair has votes of several annotators "
            "whose names are known; leave it out, or name the column: "
            'preferences.columns={"annotator": "..."}'
        )
    return labels


def _load(
    config: PreferencesConfig,
    stage: Stage,
    tokenizer: PreTrainedTokenizerBase | None,
    render: Render | None,
    fields: RowFields,
) -> tuple[list[PreferencePair], list[BadRow], PreferenceReport]:
    """Read all sources, with the tokenizer's chat template and token counts where there is one."""
    limit = None
    if tokenizer is not None:
        limit = TokenLimit(config.max_tokens, lambda text: len(tokenizer(text)["input_ids"]))
    return load_preferences(
        _sources(config, stage),
        on_bad_rows=config.on_bad_rows,
        on_ties=config.on_ties,
        max_characters=config.max_characters,
        render=render,
        max_tokens=limit,
        fields=fields,
    )


def _write_splits(
    splits: dict[str, list[PreferencePair]],
    labels: dict[str, float],
    num_eval_prompts: int,
    stage: Stage,
) -> None:
    """Write the pairs, and the prompts that other stages take from them.

    labels: of training pairs, by id, where they are not 1.
    """
    for name, pairs in splits.items():
        rows = (pair.to_json() for pair in pairs)
        if name == "train":
            rows = (
                row | ({"label": labels[row["id"]]} if row["id"] in labels else {}) for row in rows
            )
        stage.write_rows(f"{name}.jsonl", rows)
    stage.write_rows("policy_prompts.jsonl", _prompts(splits["train"]))
    for split, name in (("test", "main"), ("validation", "validation")):
        prompts = _prompts(splits[split])
        taken = counts.num_taken(len(prompts), num_eval_prompts)
        stage.write_rows(f"eval/{name}.jsonl", prompts[:taken])


def _write_own_prompts(prompts: Sequence[str], render: Render | None, stage: Stage) -> None:
    """Trimtab's own evaluation prompts, in the format of `prompts`."""
    write_as = written_like(prompts, render)
    for name in SETS:
        rows = []
        for text in load_written(name):
            messages = [{"role": "user", "content": text}]
            row: Row = {"prompt": write_as(messages), "category": name}
            # Where a chat template wrote the prompts, a reward from outside has another.
            rows.append(row if render is None else {**row, "messages": messages})
        stage.write_rows(f"eval/{name}.jsonl", rows)


def _sources(config: PreferencesConfig, stage: Stage) -> list[Source]:
    """Sources with their categories, format and columns."""
    if config.categories and len(config.categories) != len(config.sources):
        raise ValueError(
            f"preferences.categories has {len(config.categories)} entries for "
            f"{len(config.sources)} sources; give one each, or none"
        )
    return [
        dataclasses.replace(
            _source(name, stage.inputs.get(f"source_{index}")),
            category=config.categories[index] if config.categories else None,
            format=config.format,
            columns=config.columns,
        )
        for index, name in enumerate(config.sources)
    ]


def _source(name: str, folder: Path | None) -> Source:
    """A source. A file keeps the name that the user gave it; `folder` holds its copy."""
    if folder is None:
        return Source(name)
    label = last_part(name)
    return Source(str(folder / label), name=label)


def _prompts(pairs: Sequence[PreferencePair]) -> list[Row]:
    """Each prompt once, with its category and columns and, where it came as messages, those."""
    rows: dict[str, Row] = {}
    for pair in pairs:
        rows[pair.prompt] = {"prompt": pair.prompt, "category": pair.category, **pair.columns_entry}
        if pair.messages is not None:
            rows[pair.prompt]["messages"] = pair.messages.prompt
    return list(rows.values())


def read_demonstrations(
    config: PreferencesConfig, sources: list[Source], tokenizer: PreTrainedTokenizerBase | None
) -> tuple[list[Demonstration], list[BadRow]]:
    """The demonstrations of all sources, if any; raises ValueError without a tokenizer."""
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
    shown: Sequence[Demonstration], splits: dict[str, list[PreferencePair]], stage: Stage
) -> tuple[int, int]:
    """Write what SFT learns: given demonstrations, without held-out prompts, or chosen answers.

    Returns how many demonstrations are learned and held out; raises ValueError if none is left.
    """
    held_out = {first_turn(pair.prompt) for name in HELD_OUT for pair in splits[name]}
    learned = [text for text in shown if first_turn(text.opening) not in held_out]
    if shown and not learned:
        raise ValueError(
            f"preferences.demonstrations: all {len(shown)} are of prompts that pairs of "
            f"{' and '.join(HELD_OUT)} have: give others"
        )
    chosen = (
        {
            "prompt": pair.prompt,
            "response": pair.chosen,
            "category": pair.category,
            **pair.columns_entry,
        }
        for pair in splits["train"]
    )
    rows = (text.to_json() for text in learned) if shown else chosen
    stage.write_rows("demonstrations.jsonl", rows)
    return len(learned), len(shown) - len(learned)
