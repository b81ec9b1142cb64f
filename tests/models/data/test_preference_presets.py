"""Every preset: a row of the data set's true shape, to pairs written out by hand.

A case holds rows (one where nothing else is said), the pairs as (prompt, better, worse), and what
else each pair carries.
"""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.models.data.test_preference_mutations import mutate_value
from trimtab.models.data.loading import PreferenceOptionError, load_preferences, look_through
from trimtab.models.data.presets import BY_NAME, FORMATS
from trimtab.models.data.problems import PreferenceDataError
from trimtab.models.data.readers import Source
from trimtab.models.data.records import Opinion, PreferencePair, Votes

WriteRows = Callable[..., str]
Text = tuple[str, str, str]

USER = {"role": "user", "content": "What is 1+1?"}
TWO = {"role": "assistant", "content": "2"}
THREE = {"role": "assistant", "content": "3"}
HH = "\n\nHuman: What is 1+1?\n\nAssistant:"
PAIR = (HH, " 2", " 3")
PLAIN = ("What is 1+1?", "2", "3")
GOOD: dict[str, Any] = {"prompt": "What is 1+1?", "chosen": "2", "rejected": "3"}


def opinion(preferred: str, annotator: str) -> dict[str, Any]:
    return {"evaluator": annotator, "overall_pref": preferred, "helpful_pref": preferred}


@dataclass
class Case:
    """preset: the format that the report counts. carries: fields of every pair."""

    preset: str
    rows: list[dict[str, Any]]
    pairs: list[Text] = field(default_factory=lambda: [PLAIN])
    carries: dict[str, Any] = field(default_factory=dict)
    asked: str = "auto"


HELPSTEER2 = {
    "split": "train",
    "prompt": "What is 1+1?",
    "response_1": "3",
    "response_2": "2",
    "preference_strength": 2,
    "preference_statement": "@Response 2 is better than @Response 1 as it is right.",
    "preference_elaboration": "1+1 is 2.",
    "three_most_similar_preferences": [{"statement": "s", "elaboration": "e", "strength": 2}],
    "all_preferences_unprocessed": [
        {"strength": 2, "justification": "right"},
        {"strength": 3, "justification": "right"},
        {"strength": -1, "justification": "more"},
        {"strength": 0, "justification": "same"},
    ],
}
HELPSTEER3 = {
    "domain": "stem",
    "language": "english",
    "context": [USER],
    "response1": "2",
    "response2": "3",
    "overall_preference": -3,
    "individual_preference": [
        {"score": -3, "reasoning": "r", "feedback1": "f", "feedback2": "f"},
        {"score": -2, "reasoning": "r", "feedback1": "f", "feedback2": "f"},
        {"score": 1, "reasoning": "r", "feedback1": "f", "feedback2": "f"},
    ],
}
PKU = {
    "prompt": "What is 1+1?",
    "response_0": "3",
    "response_1": "2",
    "prompt_source": "Alpaca3-70B",
    "response_0_source": "a",
    "response_1_source": "b",
    "is_response_0_safe": True,
    "is_response_1_safe": True,
    "response_0_harm_category": {"Privacy Violation": False},
    "response_1_harm_category": {"Privacy Violation": False},
    "response_0_severity_level": 0,
    "response_1_severity_level": 0,
    "better_response_id": 1,
    "safer_response_id": 0,
}
SHP = {
    "post_id": "himc90",
    "domain": "askacademia_train",
    "upvote_ratio": 0.99,
    "history": "What is 1+1?",
    "c_root_id_A": "a",
    "c_root_id_B": "b",
    "human_ref_A": "3",
    "human_ref_B": "2",
    "labels": 0,
    "seconds_difference": 10.0,
    "score_A": 4,
    "score_B": 9,
    "score_ratio": 2.25,
}
ARENA_55K = {
    "id": 30192,
    "model_a": "m",
    "model_b": "n",
    "prompt": '["What is 1+1?"]',
    "response_a": '["3"]',
    "response_b": '["2"]',
    "winner_model_a": 0,
    "winner_model_b": 1,
    "winner_tie": 0,
}
ARENA_100K = {
    "question_id": "58210e39b3fd4441a2bd4a518bb44c2d",
    "model_a": "m",
    "model_b": "n",
    "winner": "model_b",
    "conversation_a": [USER, THREE],
    "conversation_b": [USER, TWO],
    "turn": 1,
    "language": "English",
    "is_code": False,
}


def in_parts(message: dict[str, str]) -> dict[str, Any]:
    part = {"type": "text", "text": message["content"], "image": None, "mimeType": None}
    return {"role": message["role"], "content": [part], "num_tokens": 3}


ARENA_140K = ARENA_100K | {
    "id": "c4b9710c-8d64-4bee-a0b0-94637ae4cc65",
    "conversation_a": [in_parts(USER), in_parts(THREE)],
    "conversation_b": [in_parts(USER), in_parts(TWO)],
    "full_conversation": [],
    "category_tag": {"math_v0.1": {"math": True}},
}
ULTRAFEEDBACK = {
    "source": "evol_instruct",
    "instruction": "What is 1+1?",
    "models": ["a", "b", "c"],
    "completions": [
        {
            "model": model,
            "principle": "helpfulness",
            "custom_system_prompt": "s",
            "response": text,
            "annotations": {"helpfulness": {"Rating": "4", "Rationale": "r"}},
            "overall_score": score,
            "fine-grained_score": 4.25,
            "critique": "c",
        }
        for model, text, score in (("a", "3", 6.0), ("b", "2", 8.5), ("c", "three", 6.0))
    ],
    "correct_answers": ["None"],
    "incorrect_answers": ["None"],
}
BINARIZED = {
    "prompt": "What is 1+1?",
    "prompt_id": "f0e3",
    "chosen": [USER, TWO],
    "rejected": [USER, THREE],
    "messages": [USER, TWO],
    "score_chosen": 8.5,
    "score_rejected": 6.0,
}
TULU3 = {
    "id": "sft_wildchat_1",
    "source": "ai2-adapt-dev/wildchat-prefs",
    "prompt": "What is 1+1?",
    "chosen": [USER, TWO],
    "rejected": [USER, THREE],
    "chosen_model": "m",
    "rejected_model": "n",
    "chosen_rating": 4.75,
    "rejected_rating": 3.0,
}
NEMO = {
    "context": [USER],
    "completions": [
        {"rank": 1, "completion": [THREE]},
        {"rank": 0, "completion": [TWO]},
    ],
    "task_name": "x",
}
REWARDBENCH = GOOD | {
    "id": 31,
    "subset": "math-prm",
    "chosen_model": "human",
    "rejected_model": "gpt4",
}
REWARDBENCH2 = {
    "id": "7",
    "prompt": "What is 1+1?",
    "chosen": ["2"],
    "rejected": ["3", "4", "5"],
    "num_correct": 1,
    "num_incorrect": 3,
    "total_completions": 4,
    "models": ["m"] * 4,
    "subset": "Factuality",
    "additional_metadata": {"category": None},
}
RM_BENCH = {
    "id": "chat/0",
    "prompt": "What is 1+1?",
    "chosen": ["2", "It is 2", "**2**"],
    "rejected": ["3", "It is 3", "**3**"],
    "domain": "chat",
}
MULTIPREF = {
    "comparison_id": "d0be61f1",
    "prompt_id": "00d2",
    "text": "What is 1+1?",
    "model_a": "m",
    "completion_a": "3",
    "model_b": "n",
    "completion_b": "2",
    "source": "wildchat",
    "category": "Open QA",
    "subject_study": "Maths",
    "highest_level_degree": "BA",
    "normal_worker_annotations": [
        opinion("B-is-clearly-better", "w1"),
        opinion("A-is-slightly-better", "w2"),
    ],
    "expert_worker_annotations": [
        opinion("B-is-slightly-better", "e1"),
        opinion("Tie", "e2"),
    ],
}
FNLP = {
    "chosen": ["Hi", "Hello!", "What is 1+1?", "2"],
    "rejected": ["Hi", "Hello!", "What is 1+1?", "3"],
    "GPT4 label": 1,
    "mean preference difference": 1.3,
    "std preference difference": 0.6,
    "chosen score list": [1.0, 2.0],
    "rejected score list": [0.1, 0.2],
}
FNLP_PROMPT = "\n\nHuman: Hi\n\nAssistant: Hello!" + HH
SHAREGPT = {
    "conversations": [{"from": "human", "value": "What is 1+1?"}],
    "chosen": {"from": "gpt", "value": "2"},
    "rejected": {"from": "gpt", "value": "3"},
}
OPENAI = {
    "input": {"messages": [USER], "tools": [], "parallel_tool_calls": True},
    "preferred_output": [TWO],
    "non_preferred_output": [THREE],
}
NECTAR = {
    "prompt": "\n\nHuman: What is 1+1?\n\nAssistant: ",
    "answers": [
        {"answer": "4", "model": "a", "rank": 3.0},
        {"answer": "2", "model": "b", "rank": 1.0},
        {"answer": "3", "model": "c", "rank": 2.0},
    ],
    "turns": 1,
    "num_responses": 3,
    "source": ["anthropic-hh"],
    "good_natured": True,
}
KTO_ROWS = [
    {"prompt": "What is 1+1?", "completion": "3", "label": False},
    {"prompt": "Another", "completion": "x", "label": True},
    {"prompt": "What is 1+1?", "completion": "2", "label": True},
]
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 1}}}
    ],
}
CALLED = ' <tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 1}}\n</tool_call>'
RESULT = {"role": "tool", "name": "add", "content": "2"}
PANDALM = {
    "idx": 0,
    "cmp_key": "m_n",
    "instruction": "What is",
    "input": "1+1?",
    "response1": "3",
    "response2": "2",
    "annotator1": 2,
    "annotator2": 0,
    "annotator3": 2,
}
AUTO_J = {
    "scenario": "counting",
    "label": 1,
    "prompt": "What is 1+1?",
    "response 1": "3",
    "response 2": "2",
}
LABEL_STUDIO = {
    "id": 12,
    "data": {"prompt": "What is 1+1?", "answer1": "3", "answer2": "2"},
    "annotations": [
        {"completed_by": who, "was_cancelled": who == 4, "result": [
            {"from_name": "pw", "type": "pairwise", "value": {"selected": side}}
        ]}
        for who, side in ((1, "right"), (2, "left"), (3, "right"), (4, "left"))
    ],
}  # fmt: skip
POST, TITLE = "I was hit at a crossing.\nHe sped.", "Dutch law?"
TLDR = {
    "info": {"id": "t3_2v", "post": POST, "title": TITLE, "subreddit": "legaladvice"},
    "summaries": [
        {"text": " Hit by a car.", "policy": "sup4_ppo_rm3_kl10", "note": "Unclear."},
        {"text": " How do I prove it?", "policy": "ref", "note": None},
    ],
    "choice": 1,
    "worker": "ikNmucwunMnYJC",
    "batch": "batch9",
    "split": "train",
    "extra": {"confidence": 8},
}
CNNDM = TLDR | {
    "info": {"id": "167f", "site": "cnn", "title": "Out", "article": "He was sent off."}
    | {"post": None, "subreddit": None},
    "choice": 0,
    "batch": "cnndm0",
}
TLDR_TRL = {
    "prompt": f"SUBREDDIT: r/legaladvice\n\nTITLE: {TITLE}\n\nPOST: {POST}\n\nTL;DR:",
    "chosen": " How do I prove it?",
    "rejected": " Hit by a car.",
}
RANKED = {"prompt": "What is 1+1?", "responses": ["3", "2", "4"], "scores": [2.0, 9.5, 2.0]}
NO_PROMPT_TWICE = {"question": "What is 1+1?", "chosen": "2", "rejected": "3"}
VOTES_OF_3 = {"rating": 4, "votes": Votes(2, 1, 0), "category": "stem"}

CASES = [
    Case("hh", [{"chosen": HH + " 2", "rejected": HH + " 3"}], [PAIR]),
    Case("explicit", [GOOD]),
    Case("messages", [{"chosen": [USER, TWO], "rejected": [USER, THREE]}], [PAIR]),
    Case("messages", [{"prompt": [USER], "chosen": [TWO], "rejected": [THREE]}], [PAIR]),
    Case("kwise", [{"prompt": "What is 1+1?", "responses": ["2", "3"]}]),
    Case("helpsteer2", [HELPSTEER2], carries={"rating": 3, "votes": Votes(2, 1, 1)}),
    Case("helpsteer3", [HELPSTEER3], [PAIR], VOTES_OF_3),
    Case("pku", [PKU]),
    Case("pku-safer", [PKU], [("What is 1+1?", "3", "2")], asked="pku-safer"),
    Case("shp", [SHP], carries={"votes": Votes(9, 4), "category": "askacademia_train"}),
    Case("arena-55k", [ARENA_55K], carries={"id": "30192"}),
    Case(
        "arena-55k",
        [
            ARENA_55K
            | {
                "prompt": '["Hi", "What is 1+1?"]',
                "response_a": '["Hello!", "3"]',
                "response_b": '["Hey!", "2"]',
            }
        ],
        [
            (
                "\n\nHuman: Hi\n\nAssistant:",
                " Hey!" + HH + " 2",
                " Hello!" + HH + " 3",
            )
        ],
    ),
    Case("arena", [ARENA_100K], [PAIR]),
    Case("arena", [ARENA_140K], [PAIR], {"id": ARENA_140K["id"]}),
    Case(
        "labelled",
        [{"prompt": "What is 1+1?", "response_a": "2", "response_b": "3", "winner": "A"}],
    ),
    Case(
        "ultrafeedback",
        [ULTRAFEEDBACK],
        [PLAIN, ("What is 1+1?", "2", "three")],
        {"category": "evol_instruct"},
    ),
    Case("ultrafeedback-binarized", [BINARIZED], [PAIR]),
    Case(
        "tulu3",
        [TULU3],
        [PAIR],
        {"category": "ai2-adapt-dev/wildchat-prefs", "id": "sft_wildchat_1"},
    ),
    Case("nemo-rl", [NEMO], [PAIR]),
    Case("rewardbench", [REWARDBENCH], carries={"category": "math-prm", "id": "31"}),
    Case(
        "lists",
        [REWARDBENCH2],
        [("What is 1+1?", "2", wrong) for wrong in ("3", "4", "5")],
        {"category": "Factuality", "group": "7"},
    ),
    Case(
        "lists",
        [RM_BENCH],
        [
            ("What is 1+1?", right, wrong)
            for right in ("2", "It is 2", "**2**")
            for wrong in ("3", "It is 3", "**3**")
        ],
        {"category": "chat", "group": "chat/0"},
    ),
    Case(
        "multipref",
        [MULTIPREF],
        carries={
            "id": "d0be61f1",
            "category": "Open QA",
            "votes": Votes(2, 1, 1),
            "opinions": (
                Opinion("w1", "chosen"),
                Opinion("w2", "rejected"),
                Opinion("e1", "chosen"),
                Opinion("e2", "equal"),
            ),
        },
    ),
    Case("turns", [FNLP], [(FNLP_PROMPT, " 2", " 3")]),
    Case(
        "turns",
        [
            {
                "chosen": ["\n\nHuman: What is 1+1?", "\n\nAssistant: 2"],
                "rejected": ["\n\nHuman: What is 1+1?", "\n\nAssistant: 3"],
            }
        ],
        [PAIR],
    ),
    Case("sharegpt", [SHAREGPT], [PAIR]),
    Case("openai", [OPENAI], [PAIR]),
    Case(
        "nectar",
        [NECTAR],
        [
            ("\n\nHuman: What is 1+1?\n\nAssistant: ", better, worse)
            for better, worse in (("2", "3"), ("2", "4"), ("3", "4"))
        ],
    ),
    Case("instruction", [NO_PROMPT_TWICE]),
    Case(
        "instruction",
        [NO_PROMPT_TWICE | {"system": "Be brief."}],
        [("\n\nSystem: Be brief." + HH, " 2", " 3")],
    ),
    Case(
        "alpaca-ranking",
        [{"instruction": "What is", "input": "1+1?", "output": ["2", "3"]}],
        [("What is\n1+1?", "2", "3")],
    ),
    Case("kto", KTO_ROWS, carries={"source": "rows.jsonl:1,3"}),
    Case(
        "kto-messages",
        [{"messages": [USER, TWO], "label": True}, {"messages": [USER, THREE], "label": False}],
        [PAIR],
        {"source": "rows.jsonl:1,2"},
    ),
    Case(
        "kto-messages",
        [
            {"conversations": [{"from": "human", "value": "What is 1+1?"}, TWO], "kto_tag": True},
            {"conversations": [USER, {"from": "gpt", "value": "3"}], "kto_tag": False},
        ],
        [PAIR],
    ),
    Case(
        "kto",
        [
            {"instruction": "What is", "input": "1+1?", "output": text, "kto_tag": is_good}
            for text, is_good in (("3", False), ("2", True))
        ],
        [("What is\n1+1?", "2", "3")],
    ),
    Case(
        "pandalm",
        [PANDALM],
        [("What is\n1+1?", "2", "3")],
        {
            "votes": Votes(2, 0, 1),
            "opinions": (
                Opinion("annotator1", "chosen"),
                Opinion("annotator2", "equal"),
                Opinion("annotator3", "chosen"),
            ),
        },
    ),
    Case(
        "voted",
        [
            {"prompt": "What is 1+1?", "response_a": "2", "response_b": "3"}
            | {"annotator_1": "A", "annotator_2": "tie", "annotator_3": "a"}
        ],
        [("What is 1+1?", "2", "3")],
        {"votes": Votes(2, 0, 1)},
    ),
    Case("auto-j", [AUTO_J], carries={"category": "counting"}),
    Case(
        "label-studio",
        [LABEL_STUDIO],
        carries={
            "id": "12",
            "votes": Votes(2, 1, 0),
            "opinions": (
                Opinion("1", "chosen"),
                Opinion("2", "rejected"),
                Opinion("3", "chosen"),
            ),
        },
    ),
    Case(
        "tldr",
        [TLDR],
        [tuple(TLDR_TRL.values())],
        {"id": "t3_2v", "category": "legaladvice"}
        | {"opinions": (Opinion("ikNmucwunMnYJC", "chosen"),), "votes": None, "rating": None},
    ),
    Case(
        "tldr",
        [CNNDM],
        [("Article:\nHe was sent off.\n\nTL;DR:", " Hit by a car.", " How do I prove it?")],
        {"id": "167f", "category": "cnn"},
    ),
    Case("explicit", [TLDR_TRL], [tuple(TLDR_TRL.values())]),  # trl-lib/tldr-preference
    Case("ranked", [RANKED], [PLAIN, ("What is 1+1?", "2", "4")]),
    Case(
        "kwise",
        [RANKED | {"responses": ["2", "3"], "scores": [1, 9]}],
        asked="best-first",
    ),
    # an answer that calls a tool
    Case(
        "messages",
        [{"prompt": [USER], "chosen": [CALL], "rejected": [THREE]}],
        [(HH, CALLED, " 3")],
    ),
    # a dialogue in which a tool has answered
    Case(
        "messages",
        [{"chosen": [USER, CALL, RESULT, TWO], "rejected": [USER, CALL, RESULT, THREE]}],
        [(f"{HH}{CALLED}\n\nTool: 2\n\nAssistant:", " 2", " 3")],
    ),
    # dialogues that part before the last turn
    Case(
        "messages",
        [
            {
                "chosen": [USER, TWO, {"role": "user", "content": "Sure?"}, TWO],
                "rejected": [USER, THREE],
            }
        ],
        [(HH, " 2\n\nHuman: Sure?\n\nAssistant: 2", " 3")],
    ),
]  # fmt: skip


def load(path: str, **form: Any) -> tuple[Sequence[PreferencePair], Any]:
    pairs, _, report = load_preferences([Source(path, **form)])
    return pairs, report


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.preset)
def test_a_preset_reads_rows_of_its_shape(write_rows: WriteRows, case: Case) -> None:
    pairs, report = load(write_rows(case.rows), format=case.asked)
    assert [(pair.prompt, pair.chosen, pair.rejected) for pair in pairs] == case.pairs
    assert set(report.rows_by_format) == {case.preset}
    for pair in pairs:
        assert {name: getattr(pair, name) for name in case.carries} == case.carries


def test_every_preset_has_a_case() -> None:
    native = {"hh", "explicit", "messages", "kwise"}
    elsewhere = {"native", "best-first", "named"}
    assert {case.preset for case in CASES} - native == set(BY_NAME) - elsewhere
    assert set(FORMATS) == {"auto", *BY_NAME}


TIED = opinion("Tie", "e")
TIES = [
    PANDALM | {"annotator1": 1},
    AUTO_J | {"label": 2},
    RANKED | {"scores": [2, 2, 2]},
    HELPSTEER2 | {"preference_strength": 0},
    HELPSTEER3 | {"overall_preference": 0},
    ARENA_55K | {"winner_model_b": 0, "winner_tie": 1},
    ARENA_100K | {"winner": "tie"},
    ARENA_100K | {"winner": "tie (bothbad)"},
    ARENA_140K | {"winner": "both_bad"},
    BINARIZED | {"score_chosen": 6.0},
    TULU3 | {"chosen_rating": 3.0},
    NEMO | {"completions": [{"rank": 1, "completion": [each]} for each in (TWO, THREE)]},
    MULTIPREF | {"normal_worker_annotations": [], "expert_worker_annotations": [TIED]},
]  # fmt: skip


@pytest.mark.parametrize("row", TIES, ids=lambda row: next(iter(row)))
def test_ties_follow_on_ties(write_rows: WriteRows, row: dict[str, Any]) -> None:
    path = write_rows([row, GOOD])
    with pytest.raises(PreferenceDataError, match="on_ties to 'drop'") as caught:
        load(path)
    assert caught.value.by_reason == {"tie": 1}
    _, _, report = load_preferences([Source(path)], on_ties="drop")
    assert (report.total.ties_dropped, report.total.used) == (1, 1)


BAD = [
    ("wrong_type", "preference_strength", HELPSTEER2 | {"preference_strength": "much"}),
    ("out_of_range", "overall_preference", HELPSTEER3 | {"overall_preference": 4}),
    ("missing_field", "overall_preference", HELPSTEER3 | {"overall_preference": None}),
    ("wrong_type", "individual_preference", HELPSTEER3 | {"individual_preference": 3}),
    ("empty_field", "response2", HELPSTEER3 | {"response2": " "}),
    ("wrong_type", "context[0]", HELPSTEER3 | {"context": ["Hi"]}),
    ("identical_responses", "response_0", PKU | {"response_0": "2"}),
    ("out_of_range", "better_response_id", PKU | {"better_response_id": 2}),
    ("out_of_range", "labels", SHP | {"labels": -1}),
    ("wrong_type", "score_A", SHP | {"score_A": "many"}),
    ("out_of_range", "winner", ARENA_100K | {"winner": "nobody"}),
    ("wrong_type", "conversation_b", ARENA_100K | {"conversation_b": "2"}),
    ("out_of_range", "winner_model_a", ARENA_55K | {"winner_model_a": 1}),
    ("wrong_type", "prompt", ARENA_55K | {"response_a": '["3", "4"]'}),
    ("wrong_type", "completions", ULTRAFEEDBACK | {"completions": []}),
    ("wrong_type", "completions[0].rank", NEMO | {"completions": [{"rank": "x"}, {"rank": 1}]}),
    ("out_of_range", "rejected", REWARDBENCH2 | {"rejected": ["x"] * 65}),
    ("wrong_type", "chosen[2].content", FNLP | {"chosen": ["Hi", "Hello!", 3, "2"]}),
    ("out_of_range", "expert_worker_annotations[0].overall_pref",
     MULTIPREF | {"expert_worker_annotations": [opinion("C", "e")]}),
    ("wrong_type", "info", TLDR | {"info": "a post"}),
    ("missing_field", "info.post", TLDR | {"info": TLDR["info"] | {"post": None}}),
    ("wrong_type", "summaries", TLDR | {"summaries": TLDR["summaries"][:1]}),
    ("empty_field", "summaries[0].text", TLDR | {"summaries": [{"text": ""}, {"text": "x"}]}),
    ("out_of_range", "choice", TLDR | {"choice": 2}),
    ("wrong_type", "label", KTO_ROWS[0] | {"label": "maybe"}),
    ("empty_field", "completion", KTO_ROWS[0] | {"completion": ""}),
    ("missing_field", "prompt", KTO_ROWS[0] | {"prompt": None}),
    ("wrong_type", "chosen[1].content[0]",
     {"chosen": [USER, TWO | {"content": [{"type": "image"}]}], "rejected": [USER, THREE]}),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "column", "row"), BAD)
def test_what_is_wrong_is_told_by_the_rows_own_columns(
    write_rows: WriteRows, reason: str, column: str, row: dict[str, Any]
) -> None:
    path = write_rows([GOOD, row, GOOD | {"prompt": "R"}])
    pairs, bad_rows, report = load_preferences([Source(path)], on_bad_rows="quarantine")
    assert [pair.source for pair in pairs] == ["rows.jsonl:1", "rows.jsonl:3"]
    (bad,) = bad_rows
    assert (bad.line, bad.reason, bad.problems[0].field) == (2, reason, column)
    assert json.loads(bad.row) == row
    assert (report.total.read, report.total.quarantined) == (3, 1)


@pytest.mark.parametrize("reason", ["wrong_type", "too_long"])
def test_a_refused_row_waits_for_no_other_half(write_rows: WriteRows, reason: str) -> None:
    """It is refused, and neither unpaired nor half of a pair."""
    bad = "\"[{'role': 'user', 'content': 'x'}]\"" if reason == "wrong_type" else "hi " * 40
    rows = ["hi,yes,true", "hi,no,false", f"{bad},fine,true", f"{bad},wrong,false"]
    path = write_rows([line.encode() for line in ("prompt,completion,label", *rows)], "kto.csv")
    pairs, bad_rows, report = load_preferences(
        [Source(path)], on_bad_rows="quarantine", max_characters=50
    )
    assert [(pair.chosen, pair.rejected) for pair in pairs] == [("yes", "no")]
    assert [(row.line, row.reason) for row in bad_rows] == [(4, reason), (5, reason)]
    total = report.total
    assert (total.read, total.used, total.quarantined, total.unpaired) == (4, 2, 2, 0)
    assert look_through([Source(path)]).report.total.read == 4


def test_kto_rows_pair_up_and_those_that_do_not_are_counted(write_rows: WriteRows) -> None:
    rows = [
        {"prompt": [USER], "completion": [TWO], "label": True},
        {"prompt": "Q", "completion": "good", "label": True},
        {"prompt": "Q", "completion": "good too", "label": True},
        {"prompt": "Q", "completion": "good", "label": False},
        {"prompt": "Q", "completion": "bad", "label": False},
        {"prompt": "alone", "completion": "x", "label": 1},
        {"prompt": [USER], "completion": [THREE], "label": False},
        {"prompt": "Q", "completion": 5, "label": True},
    ]
    path = write_rows(rows)
    pairs, bad_rows, report = load_preferences([Source(path)], on_bad_rows="quarantine")
    found = [(pair.prompt, pair.chosen, pair.rejected, pair.source) for pair in pairs]
    assert found == [
        ("Q", "good", "bad", "rows.jsonl:2,5"),
        (*PAIR, "rows.jsonl:1,7"),
    ]
    # the same text is good in line 2 and bad in line 4
    reasons = [(bad.line, bad.reason) for bad in bad_rows]
    assert reasons == [(4, "identical_responses"), (8, "wrong_type")]
    total = report.total
    assert (total.read, total.used, total.quarantined, total.unpaired) == (8, 4, 2, 2)
    account = report.account(pairs, pairs[:1], 1, {})
    assert (account.rows.used, account.rows.over_limit, account.rows.unpaired) == (2, 2, 2)
    assert "2 without an answer of the other kind" in account.sentence()


def test_columns_name_what_no_preset_knows(write_rows: WriteRows) -> None:
    row = {"q": "What is 1+1?", "better": "2", "worse": "", "topic": "maths", "n": 1}
    columns = {"prompt": "q", "chosen": "better", "rejected": "worse", "category": "topic"}
    path = write_rows([row | {"worse": "3"}, row])
    pairs, bad_rows, report = load_preferences(
        [Source(path, columns=columns)], on_bad_rows="quarantine"
    )
    assert [(p.prompt, p.chosen, p.rejected, p.category) for p in pairs] == [(*PLAIN, "maths")]
    assert [(bad.line, bad.reason, bad.problems[0].field) for bad in bad_rows] == [
        (2, "empty_field", "worse")
    ]
    assert report.ignored_fields == {"n": 1}


def test_columns_may_name_a_presets_columns_and_add_to_one(write_rows: WriteRows) -> None:
    row = {"prompt": "What is 1+1?", "one": "3", "two": "2", "preferred": "b"}
    columns = {"response_a": "one", "response_b": "two", "winner": "preferred"}
    pairs, _ = load(write_rows([row]), columns=columns)
    assert [(p.prompt, p.chosen, p.rejected) for p in pairs] == [PLAIN]
    pairs, _ = load(write_rows([HELPSTEER3]), columns={"category": "language"})
    assert pairs[0].category == "english"


def test_who_labelled_a_row_is_told_in_any_form(write_rows: WriteRows) -> None:
    """In a column of its own, or of another name; of unpaired data an answer, which is no pair."""
    arena = ARENA_100K | {"judge": "arena_user_973"}
    for row, columns, who in (
        (arena, {"annotator": "judge"}, "arena_user_973"),
        (HELPSTEER3 | {"worker_id": 12}, {}, "12"),
    ):
        (pair, *_), _ = load(write_rows([row]), columns=columns)
        assert pair.opinions == (Opinion(who, "chosen"),)
    kto = [
        {"prompt": "Q", "completion": text, "label": label, "annotator": "ann"}
        for text, label in (("good", True), ("bad", False))
    ]
    (pair,), _ = load(write_rows(kto))
    assert pair.opinions is None


def refusal(path: str, **form: Any) -> str:
    """The one problem of a file whose columns are unknown; it stops a quarantining run too."""
    with pytest.raises(PreferenceDataError) as caught:
        load_preferences([Source(path, **form)], on_bad_rows="quarantine")
    assert caught.value.by_reason == {"unknown_columns": 1}
    (bad,) = caught.value.bad_rows
    assert (bad.file, bad.line) == (path, 0)
    return str(caught.value)


def test_an_unknown_file_is_one_error_that_shows_the_setting(write_rows: WriteRows) -> None:
    rows = [{"question": f"Q{n}", "better": "2", "worse": "3", "score": 0.5} for n in range(3000)]
    told = refusal(write_rows(rows))
    assert "columns question: str 'Q0', better: str '2', worse: str '3', score: float 0.5" in told
    setting = '{"prompt": "question", "chosen": "better", "rejected": "worse"}'
    assert f"preferences.columns={setting}" in told
    pairs, _ = load(write_rows(rows), columns=json.loads(setting))
    assert len(pairs) == 3000


def test_an_unknown_file_is_told_the_nearest_preset(write_rows: WriteRows) -> None:
    row = {name: value for name, value in HELPSTEER3.items() if name != "response2"}
    told = refusal(write_rows([row | {"response3": "x"}]))
    assert "nearest is helpsteer3" in told and told.count("which lacks response2\n") == 1
    told = refusal(write_rows([row | {"Respnse 2": "x"}]))
    assert 'preferences.columns={"response2": "Respnse 2"}' in told


def test_a_column_that_is_not_there_is_one_error(write_rows: WriteRows) -> None:
    path = write_rows([GOOD, GOOD | {"prompt": "R"}])
    told = refusal(path, columns={"category": "topic"})
    assert "preferences.columns names 'topic'" in told and "['chosen', 'prompt'" in told
    assert "preferences.columns names 'answer'" in refusal(path, columns={"chosen": "answer"})


def test_a_format_that_is_asked_for_is_not_guessed(write_rows: WriteRows) -> None:
    assert "the nearest is pku " in refusal(write_rows([GOOD]), format="pku")


def test_other_files_of_a_source_are_read_past_an_unknown_one(
    write_rows: WriteRows, tmp_path: Path
) -> None:
    write_rows([{"text": "x"}] * 3, "data/a.jsonl")
    write_rows([b"{", GOOD], "data/b.jsonl")
    with pytest.raises(PreferenceDataError) as caught:
        load_preferences([Source(str(tmp_path / "data"))])
    assert caught.value.by_reason == {"not_json": 1, "unknown_columns": 1}


def test_what_columns_and_format_may_be() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"format": "helpster3"}, "found 'helpster3', allowed: auto, .*did you mean 'helpsteer3'"),
        ({"columns": {"choosen": "a"}}, "found 'choosen'.*did you mean 'chosen'"),
        ({"columns": {"chosen": "a", "rejected": "a"}}, "a column of its own for each"),
    ]
    for form, told in cases:
        with pytest.raises(PreferenceOptionError, match=told):
            load_preferences([Source("rows.jsonl", **form)])


def test_the_documented_table_has_every_preset_in_its_order() -> None:
    page = Path(__file__).parents[3] / "docs/how-to/own-preferences.md"
    table = page.read_text(encoding="utf-8").partition("| `preferences.format` |")[2]
    rows = table.partition("\n\n")[0].splitlines()
    assert [row.split("`")[1] for row in rows if row.startswith("| `")] == list(BY_NAME)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.preset)
def test_damaged_rows_of_every_preset_are_pairs_or_reported(
    write_rows: WriteRows, case: Case
) -> None:
    rng = random.Random(0)
    rows = []
    for number in range(150):
        row = json.loads(json.dumps(rng.choice(case.rows)))
        row |= {name: f"r{number}" for name in ("id", "comparison_id") if name in row}
        for _ in range(rng.randint(0, 2)):
            mutate_value(rng, row)
        rows.append(row)
    source = Source(write_rows([*rows, *case.rows]), format=case.asked)
    look = look_through([source], on_ties="drop")
    # Damage may leave a file that can be read in more ways than one: one more problem, at line 0.
    pairs, bad, report = look.pairs, [each for each in look.bad_rows if each.line], look.report
    report.check()
    assert report.total.read == len(rows) + len(case.rows)
    assert pairs and bad
    assert report.bad_rows_by_reason.total() == report.total.quarantined
    for pair in pairs:
        json.dumps(pair.to_json()).encode()
        assert pair.prompt.strip() and pair.chosen.strip() != pair.rejected.strip()
