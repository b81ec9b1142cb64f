"""What was read, used, refused and dropped, and what the pairs that are left look like."""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from trimtab.models.data.messages import MARKS
from trimtab.models.data.prompts import normalise_prompt
from trimtab.models.data.records import PreferencePair
from trimtab.models.data.row_account import RowAccount, RowCounts

NO_CATEGORY: Final = "(none)"


@dataclass(slots=True)
class SourceCounts:
    """Counts of rows; `pairs` is larger than `rows_used` where rankings were expanded.

    Always: rows_read = rows_used + quarantined + ties_dropped + unpaired. A blank line is no row.
    unpaired: rows with one answer, for which none of the other kind to the same prompt was read; a
    pair of two such rows uses both.
    """

    rows_read: int = 0
    rows_used: int = 0
    quarantined: int = 0
    ties_dropped: int = 0
    unpaired: int = 0
    blank_lines: int = 0
    pairs: int = 0

    def check(self) -> None:
        """Assert that no row was lost."""
        places = (self.rows_used, self.quarantined, self.ties_dropped, self.unpaired)
        assert self.rows_read == sum(places), self
        assert 2 * self.pairs >= self.rows_used, self


@dataclass(slots=True)
class PreferenceReport:
    """The account of one `load_preferences`.

    rows_by_format: used rows; bad_rows_by_reason: quarantined rows by their first reason;
    pairs_by_category, pairs_by_rating: used pairs. num_prompts: different prompts, after
    `normalise_prompt`. num_repeated_pairs: pairs whose three texts an earlier pair has;
    num_contradicting_pairs: pairs whose answers an earlier pair has the other way round.
    num_pairs_with_votes, num_against_votes: pairs with counts, and those where more annotators
    preferred the rejected answer. is_against_scores: by the ids of pairs whose rows have scores of
    both answers, or a margin, whether these prefer the rejected answer. num_dialogue_answers:
    pairs with an answer in which a further turn is marked. row_of: by a pair's id the key of its
    source and the numbers of its rows, from 1, of two rows first that of the chosen answer.
    ignored_fields: fields of used rows that mean nothing here, and in how many
    rows; ignored_files: files of folders that are no data, or of another split.
    Characters are Unicode code points.
    """

    total: SourceCounts = field(default_factory=SourceCounts)
    by_source: dict[str, SourceCounts] = field(default_factory=dict)
    rows_by_format: Counter[str] = field(default_factory=Counter)
    bad_rows_by_reason: Counter[str] = field(default_factory=Counter)
    pairs_by_category: Counter[str] = field(default_factory=Counter)
    pairs_by_rating: Counter[int] = field(default_factory=Counter)
    ignored_fields: Counter[str] = field(default_factory=Counter)
    ignored_files: list[str] = field(default_factory=list)
    num_prompts: int = 0
    num_repeated_pairs: int = 0
    num_contradicting_pairs: int = 0
    num_pairs_with_votes: int = 0
    num_against_votes: int = 0
    num_dialogue_answers: int = 0
    share_chosen_longer: float = 0.0
    share_same_length: float = 0.0
    mean_prompt_characters: float = 0.0
    mean_chosen_characters: float = 0.0
    mean_rejected_characters: float = 0.0
    max_pair_characters: int = 0
    row_of: dict[str, tuple[str | int, ...]] = field(default_factory=dict, repr=False)
    is_against_scores: dict[str, bool] = field(default_factory=dict, repr=False)

    def check(self) -> None:
        """Assert that all counts add up, in total and by source, format, reason, category."""
        self.total.check()
        for name in (item.name for item in dataclasses.fields(SourceCounts)):
            parts = sum(getattr(counts, name) for counts in self.by_source.values())
            assert parts == getattr(self.total, name), name
        for counts in self.by_source.values():
            counts.check()
        assert self.rows_by_format.total() == self.total.rows_used
        assert self.bad_rows_by_reason.total() == self.total.quarantined
        assert self.pairs_by_category.total() == self.total.pairs

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict that `json.dumps` takes; counters' keys are sorted.

        Without `row_of` and `is_against_scores`, which hold an entry for each pair.
        """
        values: dict[str, Any] = {}
        for name in (item.name for item in dataclasses.fields(self) if item.repr):
            value = getattr(self, name)
            if isinstance(value, Counter):  # which dataclasses.asdict would take apart wrongly
                value = {str(key): value[key] for key in sorted(value)}
            values[name] = value
        values["total"] = dataclasses.asdict(self.total)
        values["by_source"] = {k: dataclasses.asdict(v) for k, v in self.by_source.items()}
        return values

    def account(
        self,
        pairs: Sequence[PreferencePair],
        used: Sequence[PreferencePair],
        max_pairs: int | None,
        demonstrations: Mapping[str, int],
    ) -> RowAccount:
        """Return where the rows went once some of all `pairs` were taken to be `used`."""
        identities = {pair.id for pair in used}
        against = [found for name, found in self.is_against_scores.items() if name in identities]
        rows_used: Counter[str | int] = Counter()
        for key, *rows in {self.row_of[name] for name in identities}:
            rows_used[key] += len(rows)
        by_source = {
            key: RowCounts(
                read=counts.rows_read,
                used=rows_used[key],
                quarantined=counts.quarantined,
                ties_dropped=counts.ties_dropped,
                over_limit=counts.rows_used - rows_used[key],
                unpaired=counts.unpaired,
            )
            for key, counts in self.by_source.items()
        }
        sums = {
            item.name: sum(getattr(counts, item.name) for counts in by_source.values())
            for item in dataclasses.fields(RowCounts)
        }
        described = PreferenceReport()
        described.describe_pairs([pair for pair in pairs if pair.id in identities])
        return RowAccount(
            rows=RowCounts(**sums),
            by_source=by_source,
            quarantined_by_reason=dict(sorted(self.bad_rows_by_reason.items())),
            max_pairs=max_pairs,
            pairs_found=self.total.pairs,
            pairs_used=len(used),
            repeated=described.num_repeated_pairs,
            contradicting=described.num_contradicting_pairs,
            with_votes=described.num_pairs_with_votes,
            against_votes=described.num_against_votes,
            with_scores=len(against),
            against_scores=sum(against),
            ignored_fields={_printable(k): n for k, n in sorted(self.ignored_fields.items())},
            ignored_files=list(self.ignored_files),
            demonstrations=dict(demonstrations),
        )

    def describe_pairs(self, pairs: list[PreferencePair]) -> None:
        """Fill in what is counted over pairs rather than rows."""
        forward: set[bytes] = set()
        for pair in pairs:
            self.pairs_by_category[pair.category or NO_CATEGORY] += 1
            if pair.rating is not None:
                self.pairs_by_rating[pair.rating] += 1
            if pair.votes is not None:
                self.num_pairs_with_votes += 1
                self.num_against_votes += pair.votes.rejected > pair.votes.chosen
            answers = pair.chosen, pair.rejected
            self.num_dialogue_answers += any(m in text for m in MARKS for text in answers)
            prompt, chosen, rejected = map(_digest, (pair.prompt, *answers))
            digest = hashlib.sha256(prompt + chosen + rejected).digest()
            self.num_repeated_pairs += digest in forward
            reverse = hashlib.sha256(prompt + rejected + chosen).digest()
            self.num_contradicting_pairs += reverse in forward
            forward.add(digest)
        self.num_prompts = len({_digest(normalise_prompt(pair.prompt)) for pair in pairs})
        self._describe_lengths([(len(p.prompt), len(p.chosen), len(p.rejected)) for p in pairs])

    def _describe_lengths(self, lengths: list[tuple[int, int, int]]) -> None:
        """lengths: characters of prompt, chosen and rejected, a pair each."""
        count = max(1, len(lengths))
        self.share_chosen_longer = sum(c > r for _, c, r in lengths) / count
        self.share_same_length = sum(c == r for _, c, r in lengths) / count
        self.mean_prompt_characters = sum(p for p, _, _ in lengths) / count
        self.mean_chosen_characters = sum(c for _, c, _ in lengths) / count
        self.mean_rejected_characters = sum(r for _, _, r in lengths) / count
        self.max_pair_characters = max((p + max(c, r) for p, c, r in lengths), default=0)


def _printable(text: str) -> str:
    """A name that UTF-8 can hold."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def content_digest(*texts: str) -> bytes:
    """Return a sha256 over texts that tells apart where one ends and the next begins."""
    return hashlib.sha256(b"".join(map(_digest, texts))).digest()


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8")).digest()
