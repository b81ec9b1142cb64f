"""The work of Constitutional AI's stages; a function a stage, mirroring it.

How many prompts are of a category is not known before: they are taken to be all.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from models.config.policy import ConstitutionalSFTConfig, ReviseConfig
from models.config.training import ModelConfig
from models.estimates.judging import CHARACTERS_PER_TOKEN
from models.estimates.shapes import shape_of
from models.estimates.supervised import Examples, loading_and_training, num_steps
from models.estimates.work import Setting, Work, sampling_phase, trained_parameters
from models.judge.constitutions import MAX_CHARACTERS
from models.judge.rubrics import load_questions


def revise(config: ReviseConfig, setting: Setting) -> Work:
    """An answer to each prompt; of each revision its critique first, then both read again.

    A judge behind an endpoint works elsewhere.
    """
    count = num_revised(config, setting)
    prompt, row = setting.capped(setting.amounts.prompt_tokens, config.max_new_tokens)
    work = Work(
        examples=count,
        sampled_tokens=count * config.max_new_tokens,
        forward_tokens=count * prompt,
        phases={"sampling": sampling_phase(setting, setting.policy, count, prompt, row)},
    )
    judge = config.judge
    if judge.local_model is None:
        return work
    shape = shape_of(ModelConfig(base=judge.local_model), "constitution.revise.judge.local_model")
    theirs = replace(setting, shape=shape)
    questions = load_questions()
    told = sum(len(questions[name]) for name in ("principle", "revise", "revise answer"))
    asked = prompt + revision_tokens(config, setting) + _tokens(told + MAX_CHARACTERS)
    critique = config.max_critique_tokens if config.critique else 0
    first = asked + (_tokens(len(questions["revise critique"])) if config.critique else 0)
    second = min(first + critique, shape.context - config.max_revision_tokens)
    longest = second + config.max_revision_tokens
    steps = count * config.num_revisions
    return replace(
        work,
        sampled_tokens=work.sampled_tokens + steps * (critique + config.max_revision_tokens),
        forward_tokens=work.forward_tokens + steps * (second + (first if config.critique else 0)),
        phases={
            **work.phases,
            "revising": sampling_phase(theirs, theirs.policy, count, second, longest),
        },
    )


def constitutional_sft(config: ConstitutionalSFTConfig, setting: Setting) -> Work:
    """Supervised fine-tuning on revisions and on the demonstrations beside them."""
    assert config.train is not None and setting.revised is not None
    revisions = num_revised(setting.revised, setting)
    helpful = round(config.helpful_per_revision * revisions)
    count = revisions + min(helpful, setting.amounts.demonstrations)
    _, row = setting.capped(
        setting.amounts.prompt_tokens, revision_tokens(setting.revised, setting)
    )
    row = max(row, setting.amounts.dialogue_tokens)
    train, parameters = config.train, setting.shape.policy_parameters
    examples = Examples(count, row, count * row, responses=row)
    return Work(
        examples=count,
        num_ranks=train.ranks,
        optimiser_steps=num_steps(train, count),
        trained_tokens=train.num_epochs * count * row,
        parameters=trained_parameters(setting.shape, train, parameters),
        phases=loading_and_training(train, setting, parameters, examples),
    )


def num_revised(config: ReviseConfig, setting: Setting) -> int:
    """Prompts that are answered and revised, at most."""
    prompts = setting.amounts.policy_prompts
    return prompts if config.max_prompts is None else min(prompts, config.max_prompts)


def revision_tokens(config: ReviseConfig, setting: Setting) -> int:
    """The longest answer or revision; the gold scorer's are as long as demonstrations."""
    if config.judge.gold_accuracy is not None:
        return max(config.max_new_tokens, setting.amounts.dialogue_tokens)
    return max(config.max_new_tokens, config.max_revision_tokens)


def _tokens(characters: int) -> int:
    return ceil(characters / CHARACTERS_PER_TOKEN)
