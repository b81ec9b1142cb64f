"""The real files: every row is read, and what is refused is truly bad."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from trimtab.models.data.loading import load_preferences
from trimtab.models.data.problems import PreferenceDataError
from trimtab.models.data.readers import Source
from trimtab.models.data.splits import LeakageError, check_leakage, split_pairs

FOLDER = Path(__file__).parents[4] / "shared" / "data"


def file_of(name: str) -> str:
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"real data not found at {path}: it is not part of the project")
    return str(path)


def rows_of(name: str) -> list[dict[str, Any]]:
    with gzip.open(file_of(name), "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


@pytest.mark.parametrize(
    ("name", "num_rows", "share_longer"),
    # counts and shares are those that the data's own description gives
    [("hh-helpful.jsonl.gz", 2048, 0.59), ("hh-harmless.jsonl.gz", 1966, 0.44)],
)
def test_hh_is_read_whole(name: str, num_rows: int, share_longer: float) -> None:
    pairs, bad_rows, report = load_preferences([Source(file_of(name), category="hh")])
    assert (len(pairs), bad_rows) == (num_rows, [])
    assert report.rows_by_format == {"hh": num_rows}
    assert report.share_chosen_longer == pytest.approx(share_longer, abs=0.006)
    for pair, row in zip(pairs, rows_of(name), strict=True):
        assert pair.prompt + pair.chosen == row["chosen"]
        assert pair.prompt + pair.rejected == row["rejected"]
        assert pair.prompt.startswith("\n\nHuman: ") and pair.prompt.endswith("\n\nAssistant:")
        # the last common mark: a later one would have to be in both answers, at the same place
        assert pair.chosen[0] == pair.rejected[0] == " "
        assert "\n\nHuman:" not in pair.chosen + pair.rejected


@pytest.mark.slow
def test_ukp_ties_are_the_only_bad_rows() -> None:
    source = Source(file_of("ukp-arguments.jsonl.gz"))
    rows = rows_of("ukp-arguments.jsonl.gz")
    ties = {number for number, row in enumerate(rows, start=1) if row["tie"]}
    with pytest.raises(PreferenceDataError) as caught:
        load_preferences([source])
    assert caught.value.by_reason == {"tie": len(ties)}
    assert {bad.line for bad in caught.value.bad_rows} == ties
    assert all(
        rows[n - 1]["votes_chosen"] == rows[n - 1]["votes_rejected"] for n in ties
    )  # five people could not decide: truly no pair
    pairs, bad_rows, report = load_preferences([source], on_ties="drop")
    assert (len(pairs), bad_rows) == (len(rows) - len(ties), [])
    assert (report.total.read, report.total.ties_dropped) == (14_492, len(ties))
    assert len({pair.category for pair in pairs}) == 27 and report.num_against_votes == 0
    kept = [row for row in rows if not row["tie"]]
    for pair, row in zip(pairs, kept, strict=True):
        assert pair.votes is not None
        assert (pair.id, pair.votes.chosen) == (row["id"], row["votes_chosen"])
    parts = split_pairs(pairs, {"train": 0.7, "test": 0.3}, seed=0, split_by="category")
    assert abs(len(parts["test"]) / len(pairs) - 0.3) < 0.05


def test_hh_splits_share_no_prompt_and_no_dialogue() -> None:
    sources = [Source(file_of("hh-helpful.jsonl.gz")), Source(file_of("hh-harmless.jsonl.gz"))]
    pairs, _, _ = load_preferences(sources)
    parts = split_pairs(pairs, {"train": 0.9, "test": 0.1}, seed=0)
    train, test = ([p.prompt for p in parts[name]] for name in ("train", "test"))
    assert len(train) > len(test) > 300
    for first, second in ((train, test), (test, train)):
        starts = tuple(set(second))
        assert not [prompt for prompt in first if prompt.startswith(starts)]
    # by row instead: a harmless prompt that occurs twice is torn apart
    counts = Counter(pair.prompt for pair in pairs)
    prompt, count = counts.most_common(1)[0]
    first_pair, second_pair = [pair for pair in pairs if pair.prompt == prompt]
    assert count == 2
    with pytest.raises(LeakageError, match=first_pair.id):
        check_leakage({"train": [first_pair], "test": [second_pair]})


def test_prompts_without_an_answer_are_refused_at_once() -> None:
    with pytest.raises(PreferenceDataError) as caught:
        load_preferences([Source(file_of("alpaca-20k.jsonl.gz"))], on_bad_rows="quarantine")
    assert caught.value.by_reason == {"unknown_columns": 1}
