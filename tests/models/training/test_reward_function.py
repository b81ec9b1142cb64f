"""A reward model as a Python object: forms of input, errors, and as TRL's reward function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.models.training.test_external_scorer import save_scorer
from trimtab.models.training.reward_function import RewardModel

USER, YES, NO = "Name a fruit.", "A pear", "An apple, and a plum"
PROMPT = [{"role": "user", "content": USER}]


def _answer(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_scorer(tmp_path_factory.mktemp("scorer") / "my-reward")


@pytest.fixture(scope="module")
def reward(folder: Path) -> RewardModel:
    return RewardModel.load(folder)


def _expected(folder: Path, *answers: str) -> list[float]:
    """By transformers alone, a dialogue at a time."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    scores = []
    for answer in answers:
        tokens = tokenizer.apply_chat_template(
            [*PROMPT, *_answer(answer)], return_dict=True, return_tensors="pt"
        )
        with torch.no_grad():
            scores.append(float(model(**tokens).logits[0, 0]))
    return scores


def test_every_form_of_a_dialogue_has_the_same_score(folder: Path, reward: RewardModel) -> None:
    expected = pytest.approx(_expected(folder, YES, NO, YES), abs=1e-5)
    template = AutoTokenizer.from_pretrained(folder).apply_chat_template
    dialogues = [[*PROMPT, *_answer(answer)] for answer in (YES, NO, YES)]
    forms: list[list[Any]] = [
        [(USER, YES), (USER, NO), (USER, YES)],
        dialogues,
        [(PROMPT, _answer(answer)) for answer in (YES, NO, YES)],
        [(PROMPT, YES), (USER, _answer(NO)), (USER, YES)],
        [template(dialogue, tokenize=False) for dialogue in dialogues],
        [[*PROMPT, {"role": "assistant", "content": [{"type": "text", "text": answer}]}]
         for answer in (YES, NO, YES)],
        [np.array([*PROMPT, *_answer(answer)]) for answer in (YES, NO, YES)],
        [(np.array(PROMPT), np.array(_answer(answer))) for answer in (YES, NO, YES)],
    ]  # fmt: skip
    for inputs in forms:
        scores = reward.score(inputs)
        assert (scores.dtype, scores.shape) == (np.float32, (3,))
        assert scores.tolist() == expected, inputs
    assert reward.score([USER] * 3, [YES, NO, YES]).tolist() == expected
    assert reward([PROMPT] * 3, [_answer(text) for text in (YES, NO, YES)], ids=[0]) == expected
    assert reward.score([]).shape == (0,)


def test_a_policy_may_answer_nothing(folder: Path, reward: RewardModel) -> None:
    """TRL asks for the rewards of what was sampled, whatever that is."""
    (expected,) = _expected(folder, "")
    for empty in ("", None, []):
        assert reward([PROMPT], [[{"role": "assistant", "content": empty}]]) == [
            pytest.approx(expected, abs=1e-5)
        ]
    assert reward([USER], [""]) == [pytest.approx(expected, abs=1e-5)]


@pytest.mark.parametrize(
    ("inputs", "answers", "words"),
    [
        ((USER, YES), None, "inputs: found a tuple of two texts; allowed: a list of such tuples"),
        ("one text", None, "inputs: found 'one text'; allowed: a list, each text, messages"),
        ([USER], "an answer", "answers: found 'an answer'; allowed: a list"),
        ([USER], [YES, NO], "answers: found 2 for 1 prompts; allowed: one each"),
        ([(USER, YES), 3], None, r"inputs\[1\]: found 3; allowed: text, messages"),
        ([(USER, 3)], None, r"inputs\[0\], answer: found 3; allowed: text, or messages"),
        ([PROMPT], None, r"inputs\[0\]: found messages that end with the user's; allowed: an"),
        ([[{"role": "judge", "content": "x"}]], None, r"inputs\[0\]\[0\].role: found 'judge'"),
        ([[{"role": "user", "content": 3}, *_answer("x")]], None, r"inputs\[0\]\[0\].content"),
    ],
)
def test_what_is_no_dialogue_is_refused_by_its_place(
    reward: RewardModel, inputs: Any, answers: Any, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        reward.score(inputs, answers)


def test_a_dialogue_that_the_template_refuses_is_named(tmp_path: Path) -> None:
    folder = save_scorer(tmp_path / "strict")
    refusing = "{%- if messages|length > 2 -%}{{ raise_exception('two turns') }}{%- endif -%}x"
    (folder / "chat_template.jinja").write_text(refusing)
    with pytest.raises(ValueError, match=r"inputs\[1\]: two turns; allowed: messages"):
        RewardModel.load(folder).score([[*PROMPT, *_answer(YES)], [*PROMPT * 2, *_answer(YES)]])


def test_a_score_that_is_no_number_is_refused(folder: Path) -> None:
    broken = RewardModel.load(folder)
    with torch.no_grad():
        broken._scorer.model.score.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="found the score nan of my-reward; allowed: finite"):
        broken.score([(USER, YES)])


@pytest.mark.slow
@pytest.mark.parametrize("is_conversational", [True, False])
def test_trl_optimises_against_it(
    folder: Path, reward: RewardModel, tmp_path: Path, is_conversational: bool
) -> None:
    """GRPO's logged reward is that of the answers that it sampled, by transformers alone."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from tests.models.judge.tiny import save_tiny

    asked: list[tuple[Any, Any]] = []

    class Noting(RewardModel):
        def __call__(self, prompts: Any, completions: Any, **more: object) -> list[float]:
            asked.extend(zip(prompts, completions, strict=True))
            return super().__call__(prompts, completions, **more)

    trainer = GRPOTrainer(
        model=str(save_tiny(tmp_path / "policy")),
        reward_funcs=Noting(reward._scorer, reward.__name__, reward._device),
        args=GRPOConfig(
            output_dir=str(tmp_path / "trl"), use_cpu=True, bf16=False, report_to="none",
            num_generations=2, per_device_train_batch_size=2, max_completion_length=4,
            max_steps=2, logging_steps=1, save_strategy="no", disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list([{"prompt": PROMPT if is_conversational else USER}] * 4),
    )  # fmt: skip
    trainer.train()
    logged = [row["rewards/my-reward/mean"] for row in trainer.state.log_history[:2]]
    assert len(asked) == 4
    texts = [
        completion[0]["content"] if is_conversational else completion for _, completion in asked
    ]
    expected = _expected(folder, *texts)
    assert logged == pytest.approx([np.mean(expected[:2]), np.mean(expected[2:])], abs=1e-4)
