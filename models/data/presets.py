"""Presets: columns of public preference data, brought into Trimtab's own.

PRESETS is the table, in the order in which rows ask it: the first whose columns a row has reads it.
`chosen` and `rejected` come before all other columns, as they say the label outright. A preset is
data where it can be, and a small function where it cannot. Column names and what their values mean
are those of the data sets' own cards.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

from trimtab.models.data.formats import ANNOTATORS
from trimtab.models.data.messages import ASSISTANT_MARK
from trimtab.models.data.problems import Problem, shorten

Row = dict[str, Any]
METADATA: Final = ("id", "category", "group", *ANNOTATORS)
MAX_ANSWERS: Final = 64


@dataclass(slots=True)
class Mapped:
    """A row in Trimtab's columns.

    names: what the row itself calls these columns, for messages. pairs: of `responses`, which is
    better than which. problems: what the preset could not read.
    """

    values: Row
    names: dict[str, str] = field(default_factory=dict)
    pairs: tuple[tuple[int, int], ...] | None = None
    problems: list[Problem] = field(default_factory=list)

    def refuse(self, reason: str, column: str, found: Any, allowed: str) -> None:
        """Add a problem; a value is shown with its type."""
        if found is None:
            reason, shown = "missing_field", "nothing"
        else:
            shown = f"{type(found).__name__} {shorten(found)}"
        self.problems.append(Problem(reason, column, shown, allowed))


Convert = Callable[[Row, Mapped], None]
Preference = Callable[[Row, Mapped], float | None]
"""How much better the first answer is than the second: 0 a tie, below 0 worse, None a problem."""
People = Callable[[Row, Mapped], list[tuple[str | None, float]]]
"""Several people's opinions, each with who it is of where that is known."""


@dataclass(frozen=True, slots=True)
class Preset:
    """One form of rows.

    tells: columns that a row of it has. reads: further ones that are read where they are there.
    convert: into Trimtab's columns; None: they are these already. matches: whether a row with the
    columns is of the form after all. is_automatic: rows may be found to be of it without its name.
    """

    name: str
    data: str
    tells: tuple[str, ...]
    convert: Convert | None = None
    reads: tuple[str, ...] = ()
    matches: Callable[[Row], bool] | None = None
    is_automatic: bool = True


def number_of(value: Any) -> Any:
    """A number from text that holds one (as in CSV), else the value as it is."""
    for kind in (int, float) if isinstance(value, str) else ():
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def list_of(value: Any) -> Any:
    """A list or an object from text that is JSON of one, else the value as it is."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _score(column: str, limit: int) -> Preference:
    """From -limit (the first answer is much better) to limit (the second is)."""

    def opinion(row: Row, mapped: Mapped) -> float | None:
        value = number_of(row.get(column))
        allowed = f"a number from {-limit} to {limit}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            mapped.refuse("wrong_type", column, value, allowed)
        elif not -limit <= value <= limit:
            mapped.refuse("out_of_range", column, value, allowed)
        else:
            return -value
        return None

    return opinion


def _choice(column: str, meanings: dict[Any, int]) -> Preference:
    """One of some values, each with what it means."""

    def opinion(row: Row, mapped: Mapped) -> float | None:
        value = row.get(column)
        key = value.strip().lower() if isinstance(value, str) else value
        for known in (key, number_of(key)):
            if isinstance(known, str | int | float) and known in meanings:
                return meanings[known]
        mapped.refuse("out_of_range", column, value, " | ".join(map(str, meanings)))
        return None

    return opinion


def _flags(first: str, second: str, neither: str) -> Preference:
    """Three columns, of which one is 1 and the others are 0."""

    def opinion(row: Row, mapped: Mapped) -> float | None:
        values = [number_of(row.get(name)) for name in (first, second, neither)]
        if sorted(map(str, values)) == ["0", "0", "1"]:
            return {0: 1, 1: -1, 2: 0}[values.index(1)]
        allowed = f"1 in one of {first}, {second}, {neither}, and 0 in the others"
        mapped.refuse("out_of_range", first, values, allowed)
        return None

    return opinion


def _scores_of(column: str, key: str) -> People:
    """Several people's scores, as in `_score`; those without a number are left out."""

    def opinions(row: Row, mapped: Mapped) -> list[tuple[str | None, float]]:
        people = list_of(row.get(column))
        if people is not None and not isinstance(people, list):
            mapped.refuse("wrong_type", column, people, f"a list of objects with {key}")
            return []
        scores = [number_of(each.get(key)) for each in people or [] if isinstance(each, dict)]
        numbers = [score for score in scores if isinstance(score, int | float)]
        return [(None, -score) for score in numbers if not math.isnan(score)]

    return opinions


MULTIPREF: Final = {
    "A-is-clearly-better": 2,
    "A-is-slightly-better": 1,
    "Tie": 0,
    "B-is-slightly-better": -1,
    "B-is-clearly-better": -2,
}
MULTIPREF_PEOPLE: Final = ("normal_worker_annotations", "expert_worker_annotations")


def _multipref(row: Row, mapped: Mapped) -> list[tuple[str | None, float]]:
    found: list[tuple[str | None, float]] = []
    for column in MULTIPREF_PEOPLE:
        people = list_of(row.get(column))
        if people is not None and not isinstance(people, list):
            mapped.refuse("wrong_type", column, people, "a list of objects with overall_pref")
            continue
        for index, each in enumerate(people or []):
            said = each.get("overall_pref") if isinstance(each, dict) else None
            if isinstance(said, str) and said in MULTIPREF:
                who = each.get("evaluator")
                found.append((who if isinstance(who, str) else None, float(MULTIPREF[said])))
            else:
                place = f"{column}[{index}].overall_pref"
                mapped.refuse("out_of_range", place, said, " | ".join(MULTIPREF))
    return found


def _majority(people: People) -> Preference:
    """What more people prefer, however strongly."""

    def opinion(row: Row, mapped: Mapped) -> float | None:
        signs = [(each > 0) - (each < 0) for _, each in people(row, Mapped({}))]
        return sum(signs)

    return opinion


@dataclass(frozen=True, slots=True)
class TwoAnswers:
    """Two answers in columns of their own, and which is better.

    prompt: None where the answers are whole dialogues. people: several annotators' opinions, which
    become votes. counts: columns with how many people liked each answer, taken as votes. is_rated:
    the strength 1 to 3 of the opinion becomes rating 2 to 4. category, identity: columns.
    """

    prompt: str | None
    first: str
    second: str
    opinion: Preference
    people: People | None = None
    counts: tuple[str, str] | None = None
    is_rated: bool = False
    category: str | None = None
    identity: str | None = None

    def __call__(self, row: Row, mapped: Mapped) -> None:
        """Fill in `mapped`."""
        preference = self.opinion(row, mapped)
        is_first = (preference or 0) >= 0
        better, worse = (self.first, self.second) if is_first else (self.second, self.first)
        names = {"chosen": better, "rejected": worse}
        if self.prompt is not None:
            names["prompt"] = self.prompt
        if self.counts is not None:
            counts = self.counts if is_first else self.counts[::-1]
            names |= dict(zip(("votes_chosen", "votes_rejected"), counts, strict=True))
        if self.category is not None and row.get("category") is None:
            names["category"] = self.category
        if self.identity is not None:
            names["id"] = self.identity
        mapped.names = names
        mapped.values |= {own: _plain(own, row.get(name)) for own, name in names.items()}
        mapped.values["tie"] = preference == 0
        if self.is_rated and preference:
            mapped.values["rating"] = 1 + round(abs(preference))
        if self.people is not None and (said := self.people(row, mapped)):
            mapped.values |= _votes([(who, each if is_first else -each) for who, each in said])


def _votes(said: Sequence[tuple[str | None, float]]) -> Row:
    """People's opinions of the better answer over the worse, as Trimtab's columns."""
    prefers = ["equal" if each == 0 else "chosen" if each > 0 else "rejected" for _, each in said]
    counts = {name: prefers.count(name) for name in ("chosen", "rejected", "equal")}
    values: Row = {"votes": counts}
    if all(who is not None for who, _ in said):
        values["opinions"] = [
            {"annotator": who, "prefers": name}
            for (who, _), name in zip(said, prefers, strict=True)
        ]
    return values


def _plain(name: str, value: Any) -> Any:
    return number_of(value) if name.startswith("votes_") else list_of_messages(value)


def list_of_messages(value: Any) -> Any:
    """A message list from its JSON text, else the value as it is: an answer may be JSON itself."""
    found = list_of(value)
    is_list = isinstance(found, list) and bool(found)
    return found if is_list and all(isinstance(m, dict) and "role" in m for m in found) else value


def _arena_turns(row: Row, mapped: Mapped) -> None:
    """Prompt and answers are lists of turns (in JSON): one turn is text, more are a dialogue."""
    ARENA(row, mapped)
    turns = [list_of(row.get(name)) for name in ("prompt", "response_a", "response_b")]
    if not all(isinstance(each, list) and each for each in turns):
        return
    asked, first, second = turns
    if not len(asked) == len(first) == len(second):
        counts = [len(each) for each in turns]
        mapped.refuse("wrong_type", "prompt", counts, "as many turns as either response has")
    elif len(asked) == 1:
        texts = {"prompt": asked[0], "response_a": first[0], "response_b": second[0]}
        mapped.values |= {own: texts.get(name) for own, name in mapped.names.items()}
    else:
        for own in ("chosen", "rejected"):
            said = first if mapped.names[own] == "response_a" else second
            mapped.values[own] = [
                {"role": role, "content": text}
                for turn in zip(asked, said, strict=True)
                for role, text in zip(("user", "assistant"), turn, strict=True)
            ]
        del mapped.values["prompt"]


ARENA = TwoAnswers(
    "prompt",
    "response_a",
    "response_b",
    _flags("winner_model_a", "winner_model_b", "winner_tie"),
)
WINNERS: Final = {
    "model_a": 1, "response_a": 1, "a": 1, "model_b": -1, "response_b": -1, "b": -1,
    "tie": 0, "tie (bothbad)": 0, "both_bad": 0, "bothbad": 0,
}  # fmt: skip


def _equal_is_tie(first: str, second: str, category: str | None = None) -> Convert:
    """Trimtab's columns with a score of each answer: nobody won where they are equal."""

    def convert(row: Row, mapped: Mapped) -> None:
        scores = [number_of(row.get(name)) for name in (first, second)]
        mapped.values = row
        is_scored = all(isinstance(score, int | float) for score in scores)
        if is_scored and scores[0] == scores[1] and row.get("tie") is None:
            mapped.values = mapped.values | {"tie": True}
        if category is not None and row.get("category") is None and row.get(category):
            mapped.values = mapped.values | {"category": row[category]}
            mapped.names["category"] = category

    return convert


def _category(*columns: str) -> Convert:
    """Trimtab's columns, with the category in another one."""

    def convert(row: Row, mapped: Mapped) -> None:
        mapped.values = row
        column = next((name for name in columns if row.get(name)), None)
        if row.get("category") is None and column is not None:
            mapped.values = row | {"category": row[column]}
            mapped.names["category"] = column

    return convert


def _lists(row: Row, mapped: Mapped) -> None:
    """Right answers and wrong ones: each right one is better than each wrong one."""
    _category("subset", "domain")(row, mapped)
    right, wrong = row["chosen"], row["rejected"]
    places = [("chosen", len(right)), ("rejected", len(wrong))]
    for name, count in places:
        if not 1 <= count <= MAX_ANSWERS:
            mapped.refuse("out_of_range", name, count, f"1 to {MAX_ANSWERS} answers")
    names = [f"{name}[{index}]" for name, count in places for index in range(count)]
    mapped.values = {**mapped.values, "responses": [*right, *wrong]}
    del mapped.values["chosen"], mapped.values["rejected"]
    mapped.names |= {f"responses[{index}]": name for index, name in enumerate(names)}
    mapped.pairs = tuple(product(range(len(right)), range(len(right), len(names))))


def _are_lists_of_text(row: Row) -> bool:
    chosen, rejected = row["chosen"], row["rejected"]
    if type(chosen) is not list or type(rejected) is not list:
        return False
    return all(bool(texts) and type(texts[0]) is str for texts in (chosen, rejected))


def _turns(row: Row, mapped: Mapped) -> None:
    """Dialogues as lists of texts that take turns and end with the assistant's."""
    mapped.values = dict(row)
    for name in ("chosen", "rejected"):
        turns = row[name]
        roles = [
            ("assistant", "user")[(len(turns) - index) % 2 == 0] for index in range(len(turns))
        ]
        mapped.values[name] = [
            {"role": role, "content": _unmarked(text, role)}
            for role, text in zip(roles, turns, strict=True)
        ]


def _unmarked(text: Any, role: str) -> Any:
    """A turn without the mark of who speaks."""
    mark = {"user": "Human:", "assistant": "Assistant:"}[role]
    if isinstance(text, str) and text.lstrip().startswith(mark):
        return text.lstrip().removeprefix(mark).strip()
    return text


def _instruction(row: Row, mapped: Mapped) -> None:
    """A question or an instruction (with its input) in place of a prompt, and a system's text."""
    name = "instruction" if row.get("instruction") is not None else "question"
    asked = row.get(name)
    if isinstance(asked, str) and isinstance(row.get("input"), str) and row["input"].strip():
        asked = f"{asked}\n{row['input']}"
    if isinstance(asked, str) and isinstance(row.get("system"), str) and row["system"].strip():
        asked = [{"role": "system", "content": row["system"]}, {"role": "user", "content": asked}]
    mapped.values = row | {"prompt": asked}
    mapped.names = {"prompt": name}
    if "chosen" not in row and "rejected" not in row:
        mapped.values["responses"] = row.get("output")
        mapped.names["responses"] = "output"


def _asks_in_another_column(row: Row) -> bool:
    chosen = row.get("chosen")
    is_asked = row.get("instruction") is not None or row.get("question") is not None
    return (
        is_asked
        and row.get("prompt") is None
        and isinstance(chosen, str)
        and ASSISTANT_MARK not in chosen
    )


SHAREGPT_ROLES: Final = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
    "system": "system", "tool": "tool", "observation": "tool", "function_call": "assistant",
}  # fmt: skip


def _sharegpt(row: Row, mapped: Mapped) -> None:
    mapped.values = row | {
        "prompt": _from_value(list_of(row.get("conversations"))),
        "chosen": _from_value(_as_list(list_of(row.get("chosen")))),
        "rejected": _from_value(_as_list(list_of(row.get("rejected")))),
    }
    if isinstance(row.get("system"), str) and isinstance(mapped.values["prompt"], list):
        mapped.values["prompt"].insert(0, {"role": "system", "content": row["system"]})
    mapped.names = {"prompt": "conversations"}


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, dict) else value


def _from_value(turns: Any) -> Any:
    """Messages written as {"from": ..., "value": ...}; anything else as it is."""
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        return turns
    return [
        {"role": SHAREGPT_ROLES.get(turn["from"], turn["from"]), "content": turn.get("value")}
        if isinstance(turn.get("from"), str)
        else turn
        for turn in turns
    ]


def _openai(row: Row, mapped: Mapped) -> None:
    asked = list_of(row.get("input"))
    mapped.values |= {
        "prompt": asked.get("messages") if isinstance(asked, dict) else asked,
        "chosen": list_of(row.get("preferred_output")),
        "rejected": list_of(row.get("non_preferred_output")),
    }
    mapped.names = {
        "prompt": "input.messages",
        "chosen": "preferred_output",
        "rejected": "non_preferred_output",
    }


@dataclass(frozen=True, slots=True)
class ScoredList:
    """A list of answers, each with a score (or a rank, of which the lowest is the best).

    Two answers of one score make no pair; the row is a tie where all are equal.
    """

    prompt: str
    answers: str
    text: str
    score: str
    is_rank: bool = False
    category: str | None = None

    def __call__(self, row: Row, mapped: Mapped) -> None:
        """Fill in `mapped`."""
        mapped.names = {"prompt": self.prompt}
        if self.category is not None and row.get("category") is None:
            mapped.names["category"] = self.category
        mapped.values |= {own: row.get(name) for own, name in mapped.names.items()}
        given = list_of(row.get(self.answers))
        if not isinstance(given, list) or not 2 <= len(given) <= MAX_ANSWERS:
            allowed = f"a list of 2 to {MAX_ANSWERS} objects with {self.text} and {self.score}"
            mapped.refuse("wrong_type", self.answers, given, allowed)
            given = []
        scores = dict(self._scores(given, mapped))
        order = sorted(scores, key=lambda index: -scores[index])
        mapped.values["responses"] = [given[index].get(self.text) for index in order]
        mapped.names |= {
            f"responses[{place}]": f"{self.answers}[{index}].{self.text}"
            for place, index in enumerate(order)
        }
        ranked = [scores[index] for index in order]
        mapped.pairs = tuple(
            (better, worse)
            for better in range(len(ranked))
            for worse in range(better + 1, len(ranked))
            if ranked[better] > ranked[worse]
        )
        mapped.values["tie"] = bool(ranked) and not mapped.pairs

    def _scores(self, given: Sequence[Any], mapped: Mapped) -> Iterator[tuple[int, float]]:
        for index, each in enumerate(given):
            place = f"{self.answers}[{index}]"
            if not isinstance(each, dict):
                allowed = f"an object with {self.text} and {self.score}"
                mapped.refuse("wrong_type", place, each, allowed)
                continue
            value = number_of(each.get(self.score))
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or math.isnan(value):
                mapped.refuse("wrong_type", f"{place}.{self.score}", value, "a number")
            else:
                yield index, -value if self.is_rank else value


NATIVE: Final = Preset(
    "native",
    "Trimtab's own columns, TRL's, HH-RLHF, Tulu's and UltraFeedback's binarized sets",
    (),
    None,
    ("prompt", "chosen", "rejected", "responses", "rating", "tie", "votes", "opinions",
     "votes_chosen", "votes_rejected", "votes_equal"),
    lambda row: "chosen" in row or "rejected" in row or "responses" in row,
)  # fmt: skip
KTO: Final = Preset(
    "kto", "TRL's unpaired data (KTO)", ("prompt", "completion", "label"), reads=("category",)
)
PRESETS: Final = (
    Preset(
        "sharegpt", "LLaMA-Factory's ShareGPT form",
        ("conversations", "chosen", "rejected"), _sharegpt, ("system",),
    ),
    Preset(
        "lists", "RewardBench 2, RM-Bench", ("prompt", "chosen", "rejected"), _lists,
        ("subset", "domain"), _are_lists_of_text,
    ),
    Preset(
        "turns", "fnlp/hh-rlhf-strength-cleaned", ("chosen", "rejected"), _turns, (),
        _are_lists_of_text,
    ),
    Preset(
        "ultrafeedback-binarized", "HuggingFaceH4/ultrafeedback_binarized",
        ("chosen", "rejected", "score_chosen", "score_rejected"),
        _equal_is_tie("score_chosen", "score_rejected"), NATIVE.reads,
    ),
    Preset(
        "tulu3", "allenai's Tulu 3 preference mixtures",
        ("chosen", "rejected", "chosen_rating", "rejected_rating"),
        _equal_is_tie("chosen_rating", "rejected_rating", "source"), (*NATIVE.reads, "source"),
    ),
    Preset(
        "rewardbench", "RewardBench 1", ("prompt", "chosen", "rejected", "subset"),
        _category("subset"), NATIVE.reads,
    ),
    Preset(
        "instruction", "Orca DPO pairs, Alpaca's form", ("chosen", "rejected"), _instruction,
        ("instruction", "question", "input", "system", *NATIVE.reads), _asks_in_another_column,
    ),
    NATIVE,
    Preset(
        "helpsteer3", "nvidia/HelpSteer3, preference",
        ("context", "response1", "response2", "overall_preference"),
        TwoAnswers(
            "context", "response1", "response2", _score("overall_preference", 3),
            _scores_of("individual_preference", "score"), is_rated=True, category="domain",
        ),
        ("individual_preference", "domain"),
    ),
    Preset(
        "helpsteer2", "nvidia/HelpSteer2, preference",
        ("prompt", "response_1", "response_2", "preference_strength"),
        TwoAnswers(
            "prompt", "response_1", "response_2", _score("preference_strength", 3),
            _scores_of("all_preferences_unprocessed", "strength"), is_rated=True,
        ),
        ("all_preferences_unprocessed",),
    ),
    Preset(
        "pku", "PKU-SafeRLHF by helpfulness",
        ("prompt", "response_0", "response_1", "better_response_id"),
        TwoAnswers(
            "prompt", "response_0", "response_1", _choice("better_response_id", {0: 1, 1: -1})
        ),
    ),
    Preset(
        "pku-safer", "PKU-SafeRLHF by harmlessness",
        ("prompt", "response_0", "response_1", "safer_response_id"),
        TwoAnswers(
            "prompt", "response_0", "response_1", _choice("safer_response_id", {0: 1, 1: -1})
        ),
        is_automatic=False,
    ),
    Preset(
        "shp", "stanfordnlp/SHP", ("history", "human_ref_A", "human_ref_B", "labels"),
        TwoAnswers(
            "history", "human_ref_A", "human_ref_B", _choice("labels", {1: 1, 0: -1}),
            counts=("score_A", "score_B"), category="domain",
        ),
        ("score_A", "score_B", "domain"),
    ),
    Preset(
        "multipref", "allenai/multipref",
        ("text", "completion_a", "completion_b", MULTIPREF_PEOPLE[0]),
        TwoAnswers(
            "text", "completion_a", "completion_b", _majority(_multipref), _multipref,
            category="category", identity="comparison_id",
        ),
        (MULTIPREF_PEOPLE[1], "comparison_id"),
    ),
    Preset(
        "arena-55k", "lmsys/lmsys-arena-human-preference-55k",
        ("prompt", "response_a", "response_b", "winner_model_a", "winner_model_b", "winner_tie"),
        _arena_turns,
    ),
    Preset(
        "arena", "arena-human-preference-100k and -140k, chatbot_arena_conversations",
        ("conversation_a", "conversation_b", "winner"),
        TwoAnswers(None, "conversation_a", "conversation_b", _choice("winner", WINNERS)),
    ),
    Preset(
        "labelled", "two answers, and which won", ("prompt", "response_a", "response_b", "winner"),
        TwoAnswers("prompt", "response_a", "response_b", _choice("winner", WINNERS)),
    ),
    Preset(
        "ultrafeedback", "openbmb/UltraFeedback, by overall_score", ("instruction", "completions"),
        ScoredList("instruction", "completions", "response", "overall_score", category="source"),
        ("source",),
    ),
    Preset(
        "nemo-rl", "NeMo-RL", ("context", "completions"),
        ScoredList("context", "completions", "completion", "rank", is_rank=True),
    ),
    Preset(
        "nectar", "berkeley-nest/Nectar", ("prompt", "answers"),
        ScoredList("prompt", "answers", "answer", "rank", is_rank=True),
    ),
    Preset(
        "openai", "OpenAI's preference fine-tuning",
        ("input", "preferred_output", "non_preferred_output"), _openai,
    ),
    Preset(
        "alpaca-ranking", "LLaMA-Factory's older form: `output` is a list, best first",
        ("instruction", "output"), _instruction, ("input", "system"),
        lambda row: isinstance(list_of(row.get("output")), list),
    ),
    KTO,
)  # fmt: skip
BY_NAME: Final = {preset.name: preset for preset in PRESETS}
FORMATS: Final = ("auto", *BY_NAME)
COLUMNS: Final = frozenset(
    name for preset in PRESETS for name in (*preset.tells, *preset.reads, *METADATA)
)
"""All columns that some preset reads: what `columns` may name."""
