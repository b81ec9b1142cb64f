"""What the rows of one file show together: columns that none has, and labels that cannot be told.

A row by itself is read; whether its 1 is the first answer or a mark of a scale, or whether the best
answer comes first, only the other rows of its file say.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from trimtab.models.data.files import RawRow
from trimtab.models.data.formats import ParsedRow
from trimtab.models.data.mapped import Mapped, Row
from trimtab.models.data.presets import KTO, KTO_MESSAGES, Preset
from trimtab.models.data.problems import Problem, shorten
from trimtab.models.data.ranked_answers import PLACED
from trimtab.models.data.two_answers import (
    NUMBERED,
    code_of_choice,
    is_told_by_number,
    other_choice,
)

MAX_UNKNOWN: Final = 1000
NUM_EXAMPLES: Final = 5
UNPAIRED: Final = frozenset({KTO.name, KTO_MESSAGES.name})
_IN_ORDER: Final = ("native", "alpaca-ranking")
_BY_PLACE: Final = "by place"


@dataclass(slots=True)
class FileNotes:
    """What was seen of a file: whether a row's form was known, columns, and rows that were not.

    examples: rows that were not read. lacking: columns that no row of a known form has, though that
    needs them. forms: of good rows. ambiguous: the first problem of a row whose answers could be
    ordered in several ways, and its form. codes: numbers in a column of winners, and which column;
    told: those that named one; is_numbered: the answers' columns have numbers. scores: the columns
    that ordered the answers of a row. choices: codes in columns that say which answer is better,
    beside chosen and rejected. implicit, apart: rows of two texts that start with one prompt, and
    that do not.
    """

    is_known: bool = False
    num_unknown: int = 0
    columns: set[str] = field(default_factory=set)
    examples: list[RawRow] = field(default_factory=list)
    lacking: set[str] | None = None
    forms: set[str] = field(default_factory=set)
    ambiguous: tuple[str, Problem] | None = None
    codes: dict[float, str] = field(default_factory=dict)
    told: set[float] = field(default_factory=set)
    is_numbered: bool = False
    choices: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    scores: str = ""
    implicit: int = 0
    apart: int = 0

    def note(self, preset: Preset, parsed: ParsedRow, mapped: Mapped, scores: str) -> None:
        """Keep of a row what can be judged over its file only.

        scores: the columns that ordered its answers, as the file calls them.
        """
        problems = parsed.problems
        unclear = next((p for p in problems if p.reason == "ambiguous_label"), None)
        is_placed = parsed.is_ranking and preset.name in _IN_ORDER
        form = _BY_PLACE if is_placed or (unclear and preset.name == "ranked") else preset.name
        if unclear is not None:
            self.ambiguous = self.ambiguous or (form, unclear)
        elif is_placed and self.scores:
            allowed = f"{self.scores}, as earlier rows of the file have, or {PLACED}"
            parsed.problems.append(Problem("ambiguous_label", None, "no scores", allowed))
        if not parsed.problems:
            self.forms.add(form)
            if preset.name == "ranked":
                self.scores = self.scores or scores
        if mapped.code is not None and len(self.codes) < MAX_UNKNOWN:
            column = "label" if preset.name in UNPAIRED else "winner"
            self.codes[mapped.code] = mapped.columns.get(column, column)
            self.told |= {mapped.code} if mapped.is_told else set()
            self.is_numbered |= column == "label"
            self.is_numbered |= is_told_by_number([*parsed.answer_fields, ""])
        if parsed.format == "implicit":
            is_apart = any(problem.reason == "no_common_prompt" for problem in problems)
            self.apart += is_apart
            self.implicit += not is_apart

    def note_choices(self, row: Row, parsed: ParsedRow, is_winner_named: bool) -> None:
        """Keep what columns that are not read say of which answer is better.

        is_winner_named: the source says which column names the winner.
        """
        if not parsed.ignored:
            return
        if not is_winner_named and not parsed.problems:
            other = other_choice(row, parsed.ignored, parsed.answer_fields, parsed.is_tie)
            if other is not None and self.ambiguous is None:
                self.ambiguous = parsed.format, other
        if parsed.answer_fields == ("chosen", "rejected"):
            codes = ((name, code_of_choice(name, row.get(name))) for name in parsed.ignored)
            for name, code in codes:
                if code is not None:
                    self.choices[name].add(code)

    def note_lacking(self, raw: RawRow, row: Row, parsed: ParsedRow, needed: Sequence[str]) -> None:
        """Keep which of a form's columns no row so far has."""
        absent = {each.field or "" for each in parsed.problems if each.reason == "missing_field"}
        absent &= {*needed} - {*row}
        self.lacking = absent if self.lacking is None else self.lacking & absent
        if self.lacking:
            self.keep(raw)

    def keep(self, raw: RawRow) -> None:
        """Keep a row that was not read, as an example."""
        if len(self.examples) < NUM_EXAMPLES:
            self.examples.append(raw)

    def problem(self, *, is_whole: bool) -> Problem | None:
        """What only all rows show: their answers could be ordered in more ways than one."""
        if self.ambiguous is not None:
            form, problem = self.ambiguous
            if form in self.forms or not self.forms:
                return dataclasses.replace(problem, reason="ambiguous_columns")
        column = next(iter(self.codes.values()), None)
        if self.told and len(self.codes) > len(self.told):
            found = f"numbers that may be of a scale: {shorten(sorted(self.codes))}"
            allowed = NUMBERED if self.forms - UNPAIRED else "true and false, or 1 and 0"
            return Problem("ambiguous_columns", column, found, allowed)
        if is_whole and len(self.told) == 1 and not self.is_numbered:
            found = f"{min(self.told):g} in every row that names the winner by a number"
            return Problem("ambiguous_columns", column, found, NUMBERED)
        if unclear := [name for name, codes in self.choices.items() if len(codes) > 1]:
            codes = " and ".join(map(str, sorted(self.choices[unclear[0]])))
            allowed = (
                "chosen and rejected alone to say which answer is better; "
                "preferences.format=native if they do, whatever this column says"
            )
            return Problem(
                "ambiguous_columns", unclear[0], f"{codes} beside chosen and rejected", allowed
            )
        if self.scores and _BY_PLACE in self.forms:
            found = f"rows with {self.scores}, and before them rows without"
            allowed = f"{self.scores} in every row, or {PLACED}"
            return Problem("ambiguous_columns", self.scores, found, allowed)
        if self.implicit and self.apart > self.implicit:
            rows = self.apart + self.implicit
            found = f"no prompt; {self.apart:,} of {rows:,} rows start differently"
            allowed = 'a column with the prompt: preferences.columns={"prompt": "..."}'
            return Problem("unknown_columns", "prompt", found, allowed)
        return None
