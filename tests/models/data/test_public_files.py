"""Nineteen public files of preferences, as they are published: their shapes, in other words.

What each is read as without being told its columns, or why it is refused and what to type.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from trimtab.models.data.loading import Look, look_through
from trimtab.models.data.readers import Source

Rows = list[dict[str, Any]]
ASKED, GOOD, POOR = "How is dough left to rise?", "Warm, covered, for an hour.", "Wait a bit."
HH = f"\n\nHuman: {ASKED}\n\nAssistant:"
TASK = f"Human: {ASKED} Assistant: "


def _parts(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "value": text}], "loss_weight": 0.0}


def _turns(*texts: str) -> list[dict[str, str]]:
    return [{"from": ["human", "gpt"][n % 2], "value": text} for n, text in enumerate(texts)]


CALL = [
    {"from": "human", "value": "Is it warm?"},
    {"from": "function_call", "value": '{"name": "thermometer"}'},
    {"from": "observation", "value": "31"},
]
JUDGED = {"data": {"prompt": ASKED, "answer1": POOR, "answer2": GOOD}}
# Rows, and the prompts of their pairs: in each the better answer is GOOD, or begins with it.
READ: dict[str, tuple[Rows, list[str]]] = {
    "LLMBar": (
        [{"input": ASKED, "output_1": GOOD, "output_2": POOR, "label": 1},
         {"input": "And rye?", "output_1": POOR, "output_2": GOOD, "label": 2}],
        [ASKED, "And rye?"],
    ),
    "MedicalGPT, Chinese": (
        [{"conversations": _turns("面团怎么发酵？"), "chosen": {"from": "gpt", "value": GOOD},
          "rejected": {"from": "gpt", "value": "[71, 269]"}}],
        ["\n\nHuman: 面团怎么发酵？\n\nAssistant:"],
    ),
    "MedicalGPT, tools": (
        [{"conversations": CALL, "chosen": {"from": "gpt", "value": GOOD}, "tools": "[]",
          "rejected": {"from": "gpt", "value": '{"name": "oven"}'}}],
        ['\n\nHuman: Is it warm?\n\nAssistant: {"name": "thermometer"}\n\nTool: 31\n\nAssistant:'],
    ),
    "PandaLM": (
        [{"idx": 1, "instruction": ASKED, "input": "", "response1": POOR, "response2": GOOD,
          "annotator1": 2, "annotator2": 0, "annotator3": 2}],
        [ASKED],
    ),
    "Label Studio, one annotator": (
        [JUDGED | {"annotations": [{"completed_by": 1, "result": [
            {"type": "pairwise", "value": {"selected": "right"}}]}]}],
        [ASKED],
    ),
    "Label Studio, two annotators": (
        [JUDGED | {"id": 7, "annotations": [
            {"completed_by": who, "result": [{"type": "pairwise", "value": {"selected": "right"}}]}
            for who in (1, 2)]}],
        [ASKED],
    ),
    "LLaMA-Factory, DPO": (
        [{"conversations": _turns(ASKED, "White or rye?", "White."),
          "chosen": {"from": "gpt", "value": GOOD}, "rejected": {"from": "gpt", "value": POOR}}],
        [f"{HH} White or rye?\n\nHuman: White.\n\nAssistant:"],
    ),
    "JudgeBench": (
        [{"pair_id": "p", "original_id": 4, "source": "s", "question": ASKED, "label": "B>A",
          "response_model": "m", "response_A": POOR, "response_B": GOOD}],
        [ASKED],
    ),
    "Auto-J": (
        [{"scenario": "baking", "label": label, "prompt": f"{label}", "response 1": first,
          "response 2": second} for label, first, second in ((0, GOOD, POOR), (1, POOR, GOOD))],
        ["0", "1"],
    ),
    "ICAI, one": (
        [{"text_a": TASK + GOOD, "text_b": TASK + POOR, "preferred_text": "text_a"}],
        [TASK.rstrip()],
    ),
    "ICAI, two": (
        [{"text_a": TASK + POOR, "text_b": TASK + GOOD, "preferred_text": "text_b", "fold": 2}],
        [TASK.rstrip()],
    ),
    "LLaMA-Factory, KTO": (
        [{"messages": [{"role": "user", "content": ASKED}, {"role": "assistant", "content": text}],
          "label": text == GOOD} for text in (POOR, GOOD)],
        [HH],
    ),
}  # fmt: skip
# Rows, what is said of them, and the columns to name, if these make them readable.
REFUSED: dict[str, tuple[Rows | str, str, dict[str, str]]] = {
    "transformers_tasks, ranking": (
        f"{GOOD}\t{GOOD} 2\t{POOR}\n{GOOD} 3\t{GOOD} 4\t{POOR}\n",
        "a first row with the names of the columns", {},
    ),
    "Prometheus, HHH": (
        [{"chosen_instruction": TASK + GOOD, "rejected_instruction": TASK + POOR}],
        "name the columns: ",
        {"chosen": "chosen_instruction", "rejected": "rejected_instruction"},
    ),
    "LLaMA-Factory, v1": (
        [{"chosen_messages": [_parts(ASKED), _parts(GOOD, "assistant")],
          "rejected_messages": [_parts(ASKED), _parts(POOR, "assistant")]}],
        "name the columns: ",
        {"chosen": "chosen_messages", "rejected": "rejected_messages"},
    ),
    "prompts alone": ([{"prompt": ASKED}], "these rows have no label", {}),
    "demonstrations": ([{"instruction": ASKED, "output": GOOD}], "these rows have no label", {}),
    "two answers, no label": (
        [{"prompt": ASKED, "response_a": GOOD, "response_b": POOR}],
        "no column that says which is better", {},
    ),
    "ICAI, annotated pairs": (
        [{"metadata": {}, "annotators": [{"id": "x"}], "comparisons": [{"id": "c"}]}],
        "unknown_columns: found columns metadata", {},
    ),
}  # fmt: skip


def _look(folder: Path, rows: Rows | str, columns: dict[str, str]) -> Look:
    path = folder / ("file.tsv" if isinstance(rows, str) else "file.jsonl")
    text = rows if isinstance(rows, str) else "\n".join(map(json.dumps, rows))
    path.write_text(text, encoding="utf-8")
    return look_through([Source(str(path), columns=columns)])


def test_there_are_nineteen() -> None:
    assert len(READ) + len(REFUSED) == 19


@pytest.mark.parametrize("name", READ)
def test_public_files_are_read_without_being_told_their_columns(name: str, tmp_path: Path) -> None:
    rows, prompts = READ[name]
    look = _look(tmp_path, rows, {})
    assert not look.bad_rows
    assert [pair.prompt for pair in look.pairs] == prompts
    assert all(pair.chosen.strip() == GOOD != pair.rejected.strip() for pair in look.pairs)


@pytest.mark.parametrize("name", REFUSED)
def test_public_files_that_are_refused_say_why_and_what_to_type(name: str, tmp_path: Path) -> None:
    rows, told, columns = REFUSED[name]
    (bad,) = _look(tmp_path, rows, {}).bad_rows
    assert told in bad.describe()
    assert dict(bad.problems[0].columns) == columns
    if columns:
        look = _look(tmp_path, rows, columns)
        assert [pair.chosen.strip() for pair in look.pairs] == [GOOD] and not look.bad_rows
