"""How much data a run has: examples of each kind, and the most tokens a row can hold."""

from __future__ import annotations

import functools
import math
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from trimtab.models.config.base import PolicyPrompts
from trimtab.models.config.data import ComparisonsConfig, PreferencesConfig, WorldConfig
from trimtab.models.data.files import SourceError
from trimtab.models.data.readers import Source, read_source
from trimtab.models.data.row_reader import ColumnsError, RowReader
from trimtab.models.data.written_prompts import SETS, load_written
from trimtab.models.estimates.shapes import PlanError
from trimtab.models.nets import counts
from trimtab.models.synthetic.demonstrations import MAX_ADDED
from trimtab.models.synthetic.prompt_sets import family_sizes, prompt_sets
from trimtab.models.synthetic.tasks import FAMILIES, draw_prompt, family_of, request_of

# Prompts drawn of each family to learn how long they get: enough to meet the longest.
NUM_DRAWN = 200
# Where sources cannot be counted: the training split of Anthropic's HH-RLHF.
ASSUMED_PAIRS = 160_800


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """Counts of examples, and the most tokens of any row (end tokens included)."""

    demonstrations: int
    distinct_demonstrations: int = 0
    """Demonstrations of different prompts."""
    pair_prompts: int = 0
    """Prompts that the world's comparisons answer."""
    pairs: int
    train_pairs: int
    """What splitting gives on average."""
    train_rankings: int
    """Prompts (and groups) of the training pairs; one k-wise row each."""
    max_responses: int = 2
    """Most responses to one prompt."""
    policy_prompts: int
    held_out_prompts: int = 0
    """Prompts of the world's held-out family, to adapt to."""
    eval_prompts: int = 0
    """Evaluation prompts of all `eval_sets` sets, validation included."""
    eval_sets: int = 0
    prompt_tokens: int
    dialogue_tokens: int
    """Of a prompt and one response."""
    pair_tokens: int
    """Of a prompt and both responses in one packed row."""
    assumptions: tuple[str, ...] = ()
    """Where the numbers come from, a sentence each."""

    @property
    def held_out_pairs(self) -> int:
        """Pairs of validation and test."""
        return self.pairs - self.train_pairs

    def prompts_of(self, which: PolicyPrompts) -> int:
        """Prompts that a policy is trained on."""
        return self.policy_prompts if which == "policy" else self.held_out_prompts

    def scaled(self, share: float) -> Amounts:
        """With that share of the training pairs, and as many held out."""
        train = round(share * self.train_pairs)
        return replace(
            self,
            pairs=self.held_out_pairs + train,
            train_pairs=train,
            train_rankings=min(train, self.train_rankings),
        )


def amounts_of_world(
    world: WorldConfig, comparisons: ComparisonsConfig, max_length: int
) -> Amounts:
    """What the synthetic world draws; max_length: tokens at which SFT cuts a dialogue."""
    sizes = family_sizes(world)
    # Only the sizes count: None stands for every prompt.
    sets = prompt_sets(sizes, *([None] * sum(family) for family in sizes))
    evaluated = [len(rows) for name, rows in sets.items() if name.startswith("eval/")]
    prompts = counts.num_taken(len(sets["pair_prompts"]), comparisons.num_prompts)
    pairs_per_prompt = min(comparisons.pairs_per_prompt, math.comb(comparisons.num_responses, 2))
    pairs = prompts * pairs_per_prompt
    train_share = counts.split_shares(comparisons)["train"]
    prompt, demonstration = _longest_rows()
    return Amounts(
        demonstrations=len(sets["demonstrations"]),
        pair_prompts=prompts,
        pairs=pairs,
        train_pairs=round(pairs * train_share),
        train_rankings=round(prompts * train_share),
        max_responses=min(comparisons.num_responses, 2 * pairs_per_prompt),
        policy_prompts=len(sets["policy_prompts"]),
        held_out_prompts=len(sets["held_out_prompts"]),
        distinct_demonstrations=sizes.main[0] + sum(sizes.expert[1:3]) + sizes.held_out[1],
        eval_prompts=sum(evaluated),
        eval_sets=len(evaluated),
        prompt_tokens=prompt,
        dialogue_tokens=min(demonstration, max_length),
        pair_tokens=prompt + 2 * (comparisons.max_new_tokens + 1),
        assumptions=(
            f"rows: counted from `world`. Every one of {prompts:,} prompts is taken to give "
            f"{'a pair' if pairs_per_prompt == 1 else f'{pairs_per_prompt} pairs'}, which only "
            "those do whose answers differ enough (under half of them with a policy as poor as "
            "that of `smoke`): pairs and steps on them are upper bounds; splits have their average "
            "size",
            f"tokens a row: the most there can be. A prompt has at most {prompt} tokens, a prompt "
            f"with its demonstration {demonstration}; every sampled answer is taken to run to "
            "max_new_tokens",
        ),
    )


@functools.cache
def _longest_rows() -> tuple[int, int]:
    """Most tokens of a prompt, and of a prompt with its demonstration; a word is a token."""
    rng = random.Random(0)
    prompts = [draw_prompt(task, rng) for task in FAMILIES.values() for _ in range(NUM_DRAWN)]
    prompt = max(len(text.split()) for text in prompts)
    answer = max(len(family_of(text).answer(request_of(text))) for text in prompts)
    return prompt, prompt + answer + MAX_ADDED + 1


def amounts_of_preferences(config: PreferencesConfig, max_length: int) -> Amounts:
    """What people's preferences come to; max_length: tokens at which SFT cuts a dialogue.

    Raises PlanError for a source that is here and cannot be read.
    """
    sources = [_count_pairs(source, config) for source in config.sources]
    counted = [source for source in sources if source is not None]
    is_known = len(counted) == len(sources)
    pairs, how = _total(sum(count.pairs for count in counted) if is_known else None, config)
    rankings, max_responses = pairs, 2
    if is_known:
        rankings = min(pairs, sum(count.rankings for count in counted))
        max_responses = max(count.max_responses for count in counted)
    shares = counts.split_shares(config)
    train = round(pairs * shares["train"])
    num_demonstrations, assumption = _demonstrations(config, train)
    evaluated = [
        counts.num_taken(round(pairs * shares[split]), config.num_eval_prompts)
        for split in ("validation", "test")
    ]
    if config.written_prompts:
        evaluated += [len(load_written(name)) for name in SETS]
    return Amounts(
        demonstrations=num_demonstrations,
        pairs=pairs,
        train_pairs=train,
        train_rankings=round(rankings * shares["train"]),
        max_responses=max_responses,
        policy_prompts=train,
        distinct_demonstrations=num_demonstrations,
        eval_prompts=sum(evaluated),
        eval_sets=len(evaluated),
        prompt_tokens=config.max_tokens,
        dialogue_tokens=min(config.max_tokens + 1, max_length),
        pair_tokens=2 * (config.max_tokens + 1),
        assumptions=(
            f"rows: {how}; every pair is taken to have a prompt of its own and to be within "
            "preferences.max_tokens; splits have their average size",
            f"tokens a row: the most there can be, from preferences.max_tokens = "
            f"{config.max_tokens} for a prompt with one answer, a pair twice that; every sampled "
            "answer is taken to run to max_new_tokens. Most real rows are far shorter",
            *assumption,
        ),
    )


def _demonstrations(config: PreferencesConfig, train_pairs: int) -> tuple[int, tuple[str, ...]]:
    """What SFT learns from, and how that is known if it is not the training pairs."""
    if not config.demonstrations:
        return train_pairs, ()
    paths = [Path(source).expanduser() for source in config.demonstrations]
    if not all(path.exists() for path in paths):
        return train_pairs, (
            "demonstrations: UNKNOWN, as not all of preferences.demonstrations are files here; "
            "taken to be as many as training pairs",
        )
    try:
        count = sum(
            raw.problem is None and not raw.is_blank
            for path in paths
            for raw in read_source(Source(str(path)), [])
        )
    except SourceError as error:
        raise PlanError(f"preferences.demonstrations: {error}") from error
    return count, (f"demonstrations: {count:,} rows counted in preferences.demonstrations",)


def _total(counted: int | None, config: PreferencesConfig) -> tuple[int, str]:
    """The number of pairs and how it is known; counted: those of all sources, if all are here."""
    max_pairs = config.max_pairs
    if counted is None and max_pairs is not None:
        return max_pairs, f"{max_pairs:,} pairs, from preferences.max_pairs"
    if counted is None:
        return ASSUMED_PAIRS, (
            "UNKNOWN, as not all of preferences.sources are files here; taken as "
            f"{ASSUMED_PAIRS:,} pairs (the training split of Anthropic's HH-RLHF); give files or "
            "preferences.max_pairs"
        )
    how, taken = f"{counted:,} pairs counted in preferences.sources", counted
    if max_pairs is not None and max_pairs < counted:
        taken = max_pairs
        how += f", of which preferences.max_pairs keeps {taken:,}"
    return taken, how


class _Counted(NamedTuple):
    """Pairs of a source, of how many prompts (and groups), and the most responses of one."""

    pairs: int
    rankings: int
    max_responses: int


def _count_pairs(name: str, config: PreferencesConfig) -> _Counted | None:
    """What a file or folder holds, a ranking of K giving K(K-1)/2; None for what is not here."""
    path = Path(name).expanduser()
    if not path.exists():
        return None
    source = Source(str(path), format=config.format, columns=config.columns)
    count = 0
    responses: dict[int, set[int]] = {}  # by hashes: the texts themselves may be gigabytes
    try:
        reader = RowReader(source)
        for raw in read_source(source, []):
            if raw.problem is None and not raw.is_blank:
                row = reader.parse(raw)
                if not row.problems and not row.is_tie:
                    count += len(row.better_worse)
                    ranking = responses.setdefault(hash((row.group, row.prompt)), set())
                    ranking.update(map(hash, row.answers))
    except (SourceError, ColumnsError) as error:
        raise PlanError(f"preferences.sources: {error}") from error
    return _Counted(count, len(responses), max(map(len, responses.values()), default=2))
