"""Presets: columns of public preference data, brought into Trimtab's own.

PRESETS is the table, in the order in which rows ask it: the first whose columns a row has reads it.
`chosen` and `rejected` come before all other columns, as they say the label outright. A preset is
data where it can be, and a small function where it cannot. Column names and what their values mean
are those of the data sets' own cards.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, product
from typing import Any, Final

from trimtab.models.data.columns import Mapped, Row, list_of, number_of, words
from trimtab.models.data.formats import ANNOTATORS
from trimtab.models.data.messages import ASSISTANT_MARK
from trimtab.models.data.ranked_answers import (
    MAX_ANSWERS,
    ScoredList,
    answers_in,
    has_order,
    order_by_scores,
)
from trimtab.models.data.two_answers import (
    MULTIPREF_PEOPLE,
    STEMS,
    TwoAnswers,
    answers_of,
    choice,
    columns_of_two,
    columns_voted,
    flags,
    majority,
    multipref,
    names_answers,
    place_of,
    prompt_in,
    score_from,
    scores_of,
    sides_in,
    voters,
    winner,
)

METADATA: Final = ("id", "category", "group", *ANNOTATORS)

Convert = Callable[[Row, Mapped], None]
Find = Callable[[Sequence[str]], dict[str, str] | None]
"""From a row's columns to what it calls those of a preset; None where it is not of that form."""


@dataclass(frozen=True, slots=True)
class Preset:
    """One form of rows.

    tells: columns that a row must have. reads: optional columns. convert: fills `Mapped`; None: the
    row is already in our columns. matches: a further test on the row's values. is_automatic: tried
    without being named. find: replaces the test on `tells`, for columns with other names.
    """

    name: str
    data: str
    tells: tuple[str, ...]
    convert: Convert | None = None
    reads: tuple[str, ...] = ()
    matches: Callable[[Row], bool] | None = None
    is_automatic: bool = True
    find: Find | None = None

    def columns_in(self, keys: Sequence[str]) -> dict[str, str] | None:
        """What a row with these columns calls the preset's; None: it is not of this form."""
        if self.find is not None:
            return self.find(keys)
        return {name: name for name in self.tells} if set(self.tells) <= set(keys) else None


def _arena_turns(row: Row, mapped: Mapped) -> None:
    """Prompt and answers are JSON lists of turns; one turn is text, more are a dialogue."""
    ARENA(row, mapped)
    columns = {name: list_of(row.get(name)) for name in ("prompt", "response_a", "response_b")}
    if not all(isinstance(turns, list) and turns for turns in columns.values()):
        return
    counts = [len(turns) for turns in columns.values()]
    if len(set(counts)) > 1:
        mapped.refuse("wrong_type", "prompt", counts, "as many turns as either response has")
    elif counts[0] == 1:
        mapped.values |= {column: columns[name][0] for column, name in mapped.names.items()}
    else:
        for side in ("chosen", "rejected"):
            answers = columns[mapped.names[side]]
            turns = zip(columns["prompt"], answers, strict=True)
            mapped.values[side] = [message for turn in turns for message in _turn_messages(turn)]
        del mapped.values["prompt"]


def _turn_messages(turn: Sequence[Any]) -> list[dict[str, Any]]:
    """What the user said and the assistant answered, as messages."""
    roles = zip(("user", "assistant"), turn, strict=True)
    return [{"role": role, "content": text} for role, text in roles]


ARENA = TwoAnswers(
    "prompt", "response_a", "response_b", flags("winner_model_a", "winner_model_b", "winner_tie")
)


def _native(*, scores: Sequence[str] = (), category: Sequence[str] = ()) -> Convert:
    """Trimtab's columns beside others.

    scores: of either answer; nobody won where they are equal. category: columns of which the first
    that is not empty holds it.
    """

    def convert(row: Row, mapped: Mapped) -> None:
        mapped.values = row
        numbers = [number_of(row.get(name)) for name in scores]
        is_scored = bool(numbers) and all(isinstance(score, int | float) for score in numbers)
        if is_scored and numbers[0] == numbers[1] and row.get("tie") is None:
            mapped.values = row | {"tie": True}
        column = next((name for name in category if row.get(name)), None)
        if row.get("category") is None and column is not None:
            mapped.values = mapped.values | {"category": row[column]}
            mapped.names["category"] = column

    return convert


def _named(row: Row, mapped: Mapped) -> None:
    """Two answers in columns of their own, of which `chosen` names one."""
    sides = sides_in(tuple(row))
    assert sides is not None
    index, _ = place_of(row["chosen"], answers_of(row, *sides))
    prompt = prompt_in(tuple(row))
    TwoAnswers(prompt, *sides, lambda *_: -1 if index else 1)(row, mapped)
    mapped.reads |= {*mapped.names.values()}


def _lists(row: Row, mapped: Mapped) -> None:
    """Right answers and wrong ones: each right one is better than each wrong one."""
    _native(category=("subset", "domain"))(row, mapped)
    right, wrong = row["chosen"], row["rejected"]
    sizes = [("chosen", len(right)), ("rejected", len(wrong))]
    for name, count in sizes:
        if not 1 <= count <= MAX_ANSWERS:
            mapped.refuse("out_of_range", name, count, f"1 to {MAX_ANSWERS} answers")
    names = [f"{name}[{index}]" for name, count in sizes for index in range(count)]
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
        roles = zip(cycle(("assistant", "user")), reversed(turns), strict=False)
        mapped.values[name] = [
            {"role": role, "content": _strip_speaker(text, role)} for role, text in roles
        ][::-1]


def _strip_speaker(text: Any, role: str) -> Any:
    """A turn without the mark of who speaks."""
    mark = {"user": "Human:", "assistant": "Assistant:"}[role]
    if isinstance(text, str) and text.lstrip().startswith(mark):
        return text.lstrip().removeprefix(mark).strip()
    return text


def _answers_named(keys: Sequence[str]) -> dict[str, str] | None:
    """What a row calls `chosen` and `rejected`, and the prompt where that has another name."""
    if {"chosen", "rejected"} <= set(keys):
        return {"chosen": "chosen", "rejected": "rejected"}
    columns = {}
    for side, synonym in (("chosen", "preferred"), ("rejected", "dispreferred")):
        names = {side, synonym}
        same = [
            key
            for key in keys
            if sum(word in names for word in words(key)) == 1 and set(words(key)) <= STEMS | names
        ]
        if len(same) != 1:
            return None
        columns[side] = same[0]
    prompt = prompt_in(keys)
    if prompt is None:
        return None
    return columns if prompt in INSTRUCTIONS else {"prompt": prompt} | columns


def _has_whole_texts(row: Row) -> bool:
    """Whether a row has a prompt, or nothing beside its answers that may be one."""
    read = ("response_a", "response_b", "winner")
    others = (row[name] for name in row if name not in read and "model" not in words(name))
    return "prompt" in row or not any(isinstance(text, str) and " " in text for text in others)


def _instruction(row: Row, mapped: Mapped) -> None:
    """A question or an instruction (with its input) as the prompt, behind system and history."""
    name = next(name for name in INSTRUCTIONS if row.get(name) is not None)
    prompt = row[name]
    if isinstance(prompt, str) and name != "input":
        prompt = _joined_input(prompt, row)
    before = _turns_before(row, mapped)
    if isinstance(prompt, str) and before:
        prompt = [*before, {"role": "user", "content": prompt}]
    mapped.values = row | {"prompt": prompt}
    mapped.names = {"prompt": name}
    if "chosen" not in row and "rejected" not in row:
        mapped.values["responses"] = row.get("output")
        mapped.names["responses"] = "output"


def _turns_before(row: Row, mapped: Mapped) -> list[Any]:
    """A system's text, and a history: messages, or pairs of what user and assistant said."""
    system, history = row.get("system"), list_of(row.get("history")) or []
    is_text = isinstance(system, str) and bool(system.strip())
    before: list[Any] = [{"role": "system", "content": system}] if is_text else []
    for turn in history if isinstance(history, list) else [history]:
        if isinstance(turn, dict):
            before.append(turn)
        elif isinstance(turn, list | tuple) and len(turn) == 2:
            before += _turn_messages(turn)
        else:
            allowed = "a list of turns, each of two texts: the user's and the assistant's"
            mapped.refuse("wrong_type", "history", turn, allowed)
    return before


def _asks_in_another_column(row: Row) -> bool:
    chosen = row.get("chosen")
    return (
        any(row.get(name) is not None for name in INSTRUCTIONS)
        and row.get("prompt") is None
        and isinstance(chosen, str)
        and ASSISTANT_MARK not in chosen
    )


def _sharegpt(row: Row, mapped: Mapped) -> None:
    mapped.values = row | {"prompt": list_of(row.get("conversations"))}
    if isinstance(row.get("system"), str) and isinstance(mapped.values["prompt"], list):
        system = {"role": "system", "content": row["system"]}
        mapped.values["prompt"] = [system, *mapped.values["prompt"]]
    mapped.names = {"prompt": "conversations"}


def _openai(row: Row, mapped: Mapped) -> None:
    prompt = list_of(row.get("input"))
    columns = {"chosen": "preferred_output", "rejected": "non_preferred_output"}
    mapped.values |= {column: row.get(name) for column, name in columns.items()}
    mapped.values["prompt"] = prompt.get("messages") if isinstance(prompt, dict) else prompt
    mapped.names = columns | {"prompt": "input.messages"}


def _pandalm(row: Row, mapped: Mapped) -> list[tuple[str | None, float]]:
    """Votes in columns, whatever the answers' columns are called: 1 or 2 is the better, 0 a tie."""
    people = [name for name in VOTERS if row.get(name) not in (None, "")]
    votes = [(name, choice(name, {1: 1, 2: -1, 0: 0})(row, mapped)) for name in people]
    return [(name, vote) for name, vote in votes if vote is not None]


def _pandalm_columns(keys: Sequence[str]) -> dict[str, str] | None:
    columns = {name: name for name in ("response1", "response2", "annotator1")}
    columns["prompt"] = "instruction"
    return columns if set(columns.values()) <= set(keys) else None


def _add_input(row: Row, mapped: Mapped) -> Row:
    """A row whose prompt is an instruction, with the input behind it."""
    prompt = row.get("prompt")
    joined = _joined_input(prompt, row)
    if mapped.columns.get("prompt") != "instruction" or joined == prompt:
        return row
    mapped.reads.add("input")
    return row | {"prompt": joined}


def _joined_input(instruction: Any, row: Row) -> Any:
    """An instruction, and behind it the input where the row has one."""
    text = row.get("input")
    is_text = isinstance(text, str) and bool(text.strip())
    return f"{instruction}\n{text}" if is_text else instruction


def _with_input(convert: Convert) -> Convert:
    return lambda row, mapped: convert(_add_input(row, mapped), mapped)


def _one_answer(row: Row, mapped: Mapped) -> None:
    """One answer of unpaired data: of a dialogue its last turn."""
    row = _add_input(row, mapped)
    prompt, answer = row.get("prompt"), row.get("completion")
    mapped.names = {"responses[0]": "completion"}
    if "messages" in row:
        turns = list_of(row["messages"])
        mapped.names = {"prompt": "messages", "responses[0]": "messages"}
        if not isinstance(turns, list) or len(turns) < 2:
            mapped.refuse("wrong_type", "messages", turns, "a list of messages, the answer last")
            turns = []
        prompt, answer = turns[:-1], turns[-1:]
    mapped.values |= {"prompt": prompt, "responses": [answer]}
    mapped.pairs = ()


def _label_studio(row: Row, mapped: Mapped) -> None:
    """An exported task: its data, and of each annotation which side was selected."""
    data, annotations = list_of(row["data"]), list_of(row["annotations"])
    keys = tuple(data) if isinstance(data, dict) else ()
    sides, prompt = sides_in(keys), prompt_in(keys)
    if sides is None or not isinstance(annotations, list):
        mapped.refuse("wrong_type", "data", data, "an object with two answers: answer1, answer2")
        return
    votes: list[tuple[str | None, float]] = []
    for annotation in annotations:
        if not isinstance(annotation, dict) or annotation.get("was_cancelled"):
            continue
        person = annotation.get("completed_by")
        person = person.get("email", person.get("id")) if isinstance(person, dict) else person
        results = annotation.get("result")
        for result in results if isinstance(results, list) else []:
            value = result.get("value") if isinstance(result, dict) else None
            selected = value.get("selected") if isinstance(value, dict) else None
            if selected in ("left", "right"):
                name = None if person is None else str(person)
                votes.append((name, 1 if selected == "left" else -1))
    if not votes:
        allowed = "annotations with a result of type pairwise, left or right"
        mapped.refuse("missing_field", "annotations", None, allowed)
    convert = TwoAnswers(prompt, *sides, lambda *_: sum(n for _, n in votes), lambda *_: votes)
    convert(data, mapped)
    mapped.names = {column: f"data.{name}" for column, name in mapped.names.items()}


def _tldr(row: Row, mapped: Mapped) -> None:
    """Two summaries of a post or of an article, and the number of the better one.

    The prompt is that of the paper's reward models (Stiennon et al. 2020), and of TRL;
    `extra.confidence` stays unread, as the data's card does not say what its numbers mean.
    """
    info, summaries = list_of(row["info"]), list_of(row["summaries"])
    if not isinstance(info, dict):
        mapped.refuse("wrong_type", "info", info, "an object with post, title and subreddit")
        return
    is_two = isinstance(summaries, list) and len(summaries) == 2
    if not is_two or not all(isinstance(summary, dict) for summary in summaries):
        mapped.refuse("wrong_type", "summaries", summaries, "a list of 2 objects with text")
        return
    post = "article" if info.get("post") is None and info.get("article") is not None else "post"
    category = "site" if post == "article" else "subreddit"
    flat = {f"info.{name}": info.get(name) for name in (post, category, "id")}
    flat |= {f"summaries[{n}].text": summary.get("text") for n, summary in enumerate(summaries)}
    first, second, text = "summaries[0].text", "summaries[1].text", flat[f"info.{post}"]
    if text is None:
        mapped.refuse("missing_field", "info.post", None, "a post, or an article")
    elif isinstance(text, str) and text.strip():
        before = f"Article:\n{text}" if post == "article" else _reddit_post(info)
        flat[f"info.{post}"] = f"{before}\n\nTL;DR:"
    convert = TwoAnswers(
        f"info.{post}", first, second, choice("choice", {0: 1, 1: -1}),
        category=f"info.{category}", identity="info.id",
    )  # fmt: skip
    convert(flat | {"choice": row["choice"]}, mapped)
    if row.get("worker") is not None:
        mapped.values["annotator"] = row["worker"]


def _reddit_post(info: Row) -> str:
    head = f"SUBREDDIT: r/{info.get('subreddit')}\n\nTITLE: {info.get('title')}"
    return f"{head}\n\nPOST: {info['post']}"


def _has_key(answers: str, key: str) -> Callable[[Row], bool]:
    """Whether a row's answers are objects with this key, or no answers at all."""

    def matches(row: Row) -> bool:
        values = list_of(row.get(answers))
        is_list = isinstance(values, list) and bool(values)
        return not is_list or any(isinstance(value, dict) and key in value for value in values)

    return matches


def _answer_and_tag(keys: Sequence[str]) -> dict[str, str] | None:
    for names in (("prompt", "completion", "label"), ("instruction", "output", "kto_tag")):
        if set(names) <= set(keys):
            return dict(zip(("prompt", "completion", "label"), names, strict=True))
    return None


def _unpaired(keys: Sequence[str]) -> dict[str, str] | None:
    """Columns of LLaMA-Factory's unpaired data, whose dialogues and labels have two names each."""
    if {"chosen", "rejected"} & set(keys):
        return None
    messages = [name for name in ("messages", "conversations") if name in keys]
    labels = [name for name in ("label", "kto_tag") if name in keys]
    if len(messages) != 1 or len(labels) != 1:
        return None
    return {"messages": messages[0], "label": labels[0]}


INSTRUCTIONS: Final = ("instruction", "question", "query", "input")
NATIVE: Final = Preset(
    "native", "Trimtab's own columns, TRL's, HH-RLHF, Tulu's and UltraFeedback's binarized sets",
    tells=(),
    reads=("prompt", "chosen", "rejected", "responses", "rating", "tie", "votes", "opinions",
           "votes_chosen", "votes_rejected", "votes_equal"),
    matches=lambda row: (
        "chosen" in row or "rejected" in row or ("responses" in row and not has_order(row))
    ),
    find=lambda keys: _answers_named(keys) or {},
)  # fmt: skip
KTO: Final = Preset(
    "kto", "TRL's unpaired data (KTO), LLaMA-Factory's", ("prompt", "completion", "label"),
    convert=_one_answer, reads=("category",), find=_answer_and_tag,
)  # fmt: skip
KTO_MESSAGES: Final = Preset(
    "kto-messages", "LLaMA-Factory's unpaired data", ("messages", "label"), convert=_one_answer,
    reads=("category",), find=_unpaired,
)  # fmt: skip
SIDE_COLUMNS: Final = ("response_a", "response_b")
PEOPLE_VOTED: Final = voters(*SIDE_COLUMNS)
VOTERS: Final = tuple(f"annotator{number}" for number in range(1, 10))
PRESETS: Final = (
    Preset(
        "named", "two answers, of which chosen and rejected are the names", ("chosen", "rejected"),
        convert=_named, matches=names_answers,
        find=lambda keys: (
            {"chosen": "chosen", "rejected": "rejected"}
            if {"chosen", "rejected"} <= set(keys) and sides_in(keys) is not None
            else None
        ),
    ),
    Preset(
        "sharegpt", "LLaMA-Factory's ShareGPT form",
        ("conversations", "chosen", "rejected"), convert=_sharegpt, reads=("system",),
    ),
    Preset(
        "lists", "RewardBench 2, RM-Bench", ("prompt", "chosen", "rejected"), convert=_lists,
        reads=("subset", "domain"), matches=_are_lists_of_text,
    ),
    Preset(
        "turns", "fnlp/hh-rlhf-strength-cleaned", ("chosen", "rejected"),
        convert=_turns, matches=_are_lists_of_text,
    ),
    Preset(
        "ultrafeedback-binarized", "HuggingFaceH4/ultrafeedback_binarized",
        ("chosen", "rejected", "score_chosen", "score_rejected"),
        convert=_native(scores=("score_chosen", "score_rejected")), reads=NATIVE.reads,
    ),
    Preset(
        "tulu3", "allenai's Tulu 3 preference mixtures",
        ("chosen", "rejected", "chosen_rating", "rejected_rating"),
        convert=_native(scores=("chosen_rating", "rejected_rating"), category=("source",)),
        reads=(*NATIVE.reads, "source"),
    ),
    Preset(
        "rewardbench", "RewardBench 1", ("prompt", "chosen", "rejected", "subset"),
        convert=_native(category=("subset",)), reads=NATIVE.reads,
    ),
    Preset(
        "instruction", "Orca DPO pairs, Alpaca's form", ("chosen", "rejected"),
        convert=_instruction, reads=(*INSTRUCTIONS, "system", "history", *NATIVE.reads),
        matches=_asks_in_another_column, find=_answers_named,
    ),
    NATIVE,
    Preset(
        "helpsteer3", "nvidia/HelpSteer3, preference",
        ("context", "response1", "response2", "overall_preference"),
        convert=TwoAnswers(
            "context", "response1", "response2", score_from("overall_preference", 3),
            scores_of("individual_preference", "score"), is_rated=True, category="domain",
        ),
        reads=("individual_preference", "domain"),
    ),
    Preset(
        "helpsteer2", "nvidia/HelpSteer2, preference",
        ("prompt", "response_1", "response_2", "preference_strength"),
        convert=TwoAnswers(
            "prompt", "response_1", "response_2", score_from("preference_strength", 3),
            scores_of("all_preferences_unprocessed", "strength"), is_rated=True,
        ),
        reads=("all_preferences_unprocessed",),
    ),
    Preset(
        "pku", "PKU-SafeRLHF by helpfulness",
        ("prompt", "response_0", "response_1", "better_response_id"),
        convert=TwoAnswers(
            "prompt", "response_0", "response_1", choice("better_response_id", {0: 1, 1: -1})
        ),
    ),
    Preset(
        "pku-safer", "PKU-SafeRLHF by harmlessness",
        ("prompt", "response_0", "response_1", "safer_response_id"),
        convert=TwoAnswers(
            "prompt", "response_0", "response_1", choice("safer_response_id", {0: 1, 1: -1})
        ),
        is_automatic=False,
    ),
    Preset(
        "shp", "stanfordnlp/SHP", ("history", "human_ref_A", "human_ref_B", "labels"),
        convert=TwoAnswers(
            "history", "human_ref_A", "human_ref_B", choice("labels", {1: 1, 0: -1}),
            counts=("score_A", "score_B"), category="domain",
        ),
        reads=("score_A", "score_B", "domain"),
    ),
    Preset(
        "multipref", "allenai/multipref",
        ("text", "completion_a", "completion_b", MULTIPREF_PEOPLE[0]),
        convert=TwoAnswers(
            "text", "completion_a", "completion_b", majority(multipref), multipref,
            category="category", identity="comparison_id",
        ),
        reads=(MULTIPREF_PEOPLE[1], "comparison_id"),
    ),
    Preset(
        "arena-55k", "lmsys/lmsys-arena-human-preference-55k",
        ("prompt", "response_a", "response_b", "winner_model_a", "winner_model_b", "winner_tie"),
        convert=_arena_turns,
    ),
    Preset(
        "arena", "arena-human-preference-100k and -140k, chatbot_arena_conversations",
        ("conversation_a", "conversation_b", "winner"),
        convert=TwoAnswers(
            None, "conversation_a", "conversation_b", winner("conversation_a", "conversation_b")
        ),
    ),
    Preset(
        "pandalm", "PandaLM's test set", ("instruction", "response1", "response2", "annotator1"),
        convert=_with_input(
            TwoAnswers("prompt", "response1", "response2", majority(_pandalm), _pandalm)
        ),
        reads=("input", *VOTERS), find=_pandalm_columns,
    ),
    Preset(
        "auto-j", "Auto-J's test set", ("scenario", "prompt", "response 1", "response 2", "label"),
        convert=TwoAnswers(
            "prompt", "response 1", "response 2", choice("label", {0: 1, 1: -1, 2: 0}),
            category="scenario",
        ),
    ),
    Preset(
        "tldr", "openai/summarize_from_feedback, comparisons", ("info", "summaries", "choice"),
        convert=_tldr, reads=("worker",),
    ),
    Preset("label-studio", "Label Studio's export", ("data", "annotations"), convert=_label_studio),
    Preset(
        "voted", "two answers, and which each annotator chose",
        ("prompt", "response_a", "response_b", "annotator_1"), find=columns_voted,
        convert=_with_input(
            TwoAnswers("prompt", *SIDE_COLUMNS, majority(PEOPLE_VOTED), PEOPLE_VOTED)
        ),
    ),
    Preset(
        "labelled", "two answers, and which won", ("prompt", "response_a", "response_b", "winner"),
        convert=_with_input(TwoAnswers("prompt", *SIDE_COLUMNS, winner(*SIDE_COLUMNS))),
        matches=_has_whole_texts, find=columns_of_two,
    ),
    Preset(
        "ultrafeedback", "openbmb/UltraFeedback, by overall_score", ("instruction", "completions"),
        convert=ScoredList(
            "instruction", "completions", "response", "overall_score", category="source"
        ),
        reads=("source",), matches=_has_key("completions", "overall_score"),
    ),
    Preset(
        "nemo-rl", "NeMo-RL", ("context", "completions"),
        convert=ScoredList("context", "completions", "completion", "rank", is_rank=True),
        matches=_has_key("completions", "rank"),
    ),
    Preset(
        "nectar", "berkeley-nest/Nectar", ("prompt", "answers"),
        convert=ScoredList("prompt", "answers", "answer", "rank", is_rank=True),
        matches=_has_key("answers", "rank"),
    ),
    Preset(
        "ranked", "answers with scores or ranks", ("prompt", "responses", "scores"),
        convert=order_by_scores, reads=("ranks", "tie"), matches=has_order, find=answers_in,
    ),
    Preset(
        "best-first", "answers in their order, whatever other columns say", ("prompt", "responses"),
        reads=("tie",), is_automatic=False, find=answers_in,
    ),
    Preset(
        "openai", "OpenAI's preference fine-tuning",
        ("input", "preferred_output", "non_preferred_output"), convert=_openai,
    ),
    Preset(
        "alpaca-ranking", "LLaMA-Factory's older form: `output` is a list, best first",
        ("instruction", "output"), convert=_instruction, reads=("input", "system"),
        matches=lambda row: isinstance(row.get("output"), list),
    ),
    KTO,
    KTO_MESSAGES,
)  # fmt: skip
BY_NAME: Final = {preset.name: preset for preset in PRESETS}
FORMATS: Final = ("auto", *BY_NAME)
COLUMNS: Final = frozenset(
    name for preset in PRESETS for name in (*preset.tells, *preset.reads, *METADATA)
)
"""All columns that some preset reads: what `columns` may name."""
