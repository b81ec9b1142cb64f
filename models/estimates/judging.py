"""The work of stages that ask a judge; a function a stage, mirroring it.

A judge behind an endpoint works elsewhere: what is counted here is that of a local model. Of pairs
it is taken to make as many tokens as the policy does.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from models.config.judge import JudgeAnswersConfig, JudgeConfig, JudgePreferencesConfig
from models.config.training import ModelConfig
from models.estimates.shapes import shape_of
from models.estimates.work import Setting, Work, sampling_phase, scoring_phase
from models.judge.constitutions import MAX_CHARACTERS
from models.judge.rubrics import load_questions, load_rubric

# Fewer than English has in any common vocabulary, so that tokens are an upper bound.
CHARACTERS_PER_TOKEN = 3
# Sets of prompts beside `validation`: main, forget and held_out, or main, helpful and harmless.
MOST_SETS = 3


def judge_preferences(config: JudgePreferencesConfig, setting: Setting) -> Work:
    """Each pair in both orders: thoughts where they are wanted, then one token."""
    pairs = _num_pairs(config, setting)
    shown = setting.amounts.pair_tokens
    return answering(
        config.judge, setting, pairs, 2 * pairs, shown, "judge_preferences.judge.local_model"
    )


def judge_answers(config: JudgeAnswersConfig, setting: Setting) -> Work:
    """Every two policies' answers to each prompt, all taken to differ, in both orders."""
    prompts = setting.amounts.eval_prompts
    if config.max_prompts is not None:
        num_sets = MOST_SETS if config.sets is None else len(config.sets)
        prompts = min(prompts, num_sets * config.max_prompts)
    pairs = prompts * setting.num_policies * (setting.num_policies - 1) // 2
    shown, field = setting.amounts.pair_tokens, "judges.judge.local_model"
    return answering(config.judge, setting, pairs, 2 * pairs, shown, field)


def answering(
    judge: JudgeConfig, setting: Setting, examples: int, questions: int, shown: int, field: str
) -> Work:
    """So many questions about so many examples, each showing texts of so many tokens.

    `field`: what names the local model in the run's configuration.
    """
    if judge.local_model is None:
        return Work(examples=examples)
    theirs = replace(setting, shape=shape_of(ModelConfig(base=judge.local_model), field))
    requests = judge.num_samples * questions
    thoughts = judge.max_thought_tokens if judge.chain_of_thought else 0
    asked = shown + _told(judge)
    row = min(asked + thoughts + 1, theirs.shape.context)
    # A judge is a language model: its weights are those of a policy of its shape.
    phases = {"judging": scoring_phase(theirs, theirs.policy, requests, row, responses=1)}
    if thoughts:
        phases["thinking"] = sampling_phase(theirs, theirs.policy, requests, asked, row)
    return Work(
        examples=examples,
        sampled_tokens=requests * thoughts,
        forward_tokens=requests * (row + (asked if thoughts else 0)),
        phases=phases,
    )


def _num_pairs(config: JudgePreferencesConfig, setting: Setting) -> int:
    """Validation and test are not told apart here: each is taken to be all that is held out.

    Of some categories they are taken to be all: how many is not known before.
    """
    amounts = setting.amounts
    of_split = {"train": amounts.train_pairs}
    counts = [of_split.get(split, amounts.held_out_pairs) for split in config.splits]
    return sum(
        count if config.max_pairs is None else min(count, config.max_pairs) for count in counts
    )


def _told(judge: JudgeConfig) -> int:
    """Tokens of rubric, principle, questions and worked examples at most."""
    rubric = load_rubric(judge.rubric)
    texts = [rubric.criteria, *load_questions().values()]
    for example in rubric.examples[: judge.num_examples]:
        texts += [example.dialogue, example.first, example.second, example.thoughts]
    principle = 0 if judge.constitution is None else MAX_CHARACTERS
    return ceil((sum(map(len, texts)) + principle) / CHARACTERS_PER_TOKEN)
