"""The work of stages that sample a policy and train nothing."""

from __future__ import annotations

from dataclasses import replace

from trimtab.models import counts
from trimtab.models.config.data import ComparisonsConfig
from trimtab.models.config.policy import RehearsalConfig, ReviseConfig, SampleResponsesConfig
from trimtab.models.config.reporting import EvaluateConfig
from trimtab.models.config.training import ModelConfig
from trimtab.models.estimates.shapes import shape_of
from trimtab.models.estimates.stages.judging import judge_sampling_phase, judge_work, text_tokens
from trimtab.models.estimates.work import Rows, Setting, Work, sampling_phase, scoring_phase
from trimtab.models.judge.constitutions import MAX_CHARACTERS
from trimtab.models.judge.rubrics import load_questions


def comparisons(config: ComparisonsConfig, setting: Setting) -> Work:
    """Sampling the answers that simulated annotators compare."""
    prompts = setting.amounts.pair_prompts
    return _sampled(setting, prompts, config.num_responses, config.max_new_tokens)


def rehearsal(config: RehearsalConfig, setting: Setting) -> Work:
    """Answers of the SFT policy, scored; the sentence encoder is not counted."""
    prompts = counts.num_taken(setting.amounts.policy_prompts, config.max_prompts)
    return _scored(setting, prompts, 1, config.max_new_tokens, sum(setting.scorers))


def sample_responses(config: SampleResponsesConfig, setting: Setting) -> Work:
    """Several answers a prompt; to be scored, each prompt passes once."""
    prompts, scorer = num_answered(config, setting), setting.scorers[0]
    return _scored(setting, prompts, config.num_responses, config.max_new_tokens, scorer)


def num_answered(config: SampleResponsesConfig, setting: Setting) -> int:
    """Prompts that several answers are sampled to."""
    return counts.num_taken(setting.amounts.policy_prompts, config.num_prompts)


def evaluate(config: EvaluateConfig, setting: Setting) -> Work:
    """Answers to the evaluation prompts, scores by scorer and judges, likelihoods of the best.

    One after another, scorer, judges and reference are loaded beside the policy. A judge of harm
    is taken to see all answers.
    """
    prompts = setting.amounts.eval_prompts
    work = _sampled(setting, prompts, config.num_candidates, config.max_new_tokens)
    packed = _packed(setting, prompts, config.num_candidates, config.max_new_tokens)
    _, row = setting.prompt_and_row(config.max_new_tokens)
    best, both = Rows(prompts, row, responses=config.max_new_tokens + 1), 2 * setting.policy
    passed = (1 + setting.num_judges) * packed.tokens + 2 * best.tokens
    work = replace(
        work,
        forward_tokens=work.forward_tokens + passed,
        phases={
            **work.phases,
            "scoring": scoring_phase(setting, both, packed),
            "likelihoods": scoring_phase(setting, both, best),
        },
    )
    if config.harmless is None:
        return work
    field = "evaluate.harmless.judge.local_model"
    asked = judge_work(config.harmless.judge, setting, "score", best, field)
    judging = {
        name: replace(phase, frozen=phase.frozen + setting.policy)
        for name, phase in asked.phases.items()
    }
    return replace(
        work,
        sampled_tokens=work.sampled_tokens + asked.sampled_tokens,
        forward_tokens=work.forward_tokens + asked.forward_tokens,
        phases={**work.phases, **judging},
    )


def revise(config: ReviseConfig, setting: Setting) -> Work:
    """An answer to each prompt; of each revision its critique first, then both read again.

    A judge behind an endpoint works elsewhere. How many prompts are of a category is not known
    before: they are taken to be all.
    """
    count = num_revised(config, setting)
    work = _sampled(setting, count, 1, config.max_new_tokens)
    judge = config.judge
    if judge.local_model is None:
        return work
    shape = shape_of(ModelConfig(base=judge.local_model), "constitution.revise.judge.local_model")
    theirs = replace(setting, shape=shape)
    questions = load_questions()
    told = sum(len(questions[name]) for name in ("principle", "revise", "revise answer"))
    prompt, _ = setting.prompt_and_row(config.max_new_tokens)
    asked = prompt + revision_tokens(config, setting) + text_tokens(told + MAX_CHARACTERS)
    critique = config.max_critique_tokens if config.critique else 0
    first = asked + (text_tokens(len(questions["revise critique"])) if config.critique else 0)
    room = counts.prompt_room(shape.context, config.max_revision_tokens)
    second = min(first + critique, room)
    steps = count * config.num_revisions
    revising = judge_sampling_phase(theirs, count, second, config.max_revision_tokens)
    return replace(
        work,
        sampled_tokens=work.sampled_tokens + steps * (critique + config.max_revision_tokens),
        forward_tokens=work.forward_tokens + steps * (second + (first if config.critique else 0)),
        phases={**work.phases, "revising": revising},
    )


def num_revised(config: ReviseConfig, setting: Setting) -> int:
    """Prompts that are answered and revised, at most."""
    return counts.num_taken(setting.amounts.policy_prompts, config.max_prompts)


def revision_tokens(config: ReviseConfig, setting: Setting) -> int:
    """The longest answer or revision; the gold scorer's are as long as demonstrations."""
    if config.judge.gold_accuracy is not None:
        return max(config.max_new_tokens, setting.amounts.dialogue_tokens)
    return max(config.max_new_tokens, config.max_revision_tokens)


def _sampled(setting: Setting, prompts: int, num_responses: int, max_new_tokens: int) -> Work:
    """Several answers of a policy to each prompt."""
    samples = prompts * num_responses
    prompt, _ = setting.prompt_and_row(max_new_tokens)
    phase = sampling_phase(setting, setting.policy, samples, prompt, max_new_tokens)
    return Work(
        examples=prompts,
        sampled_tokens=samples * max_new_tokens,
        forward_tokens=samples * prompt,
        phases={"sampling": phase},
    )


def _packed(setting: Setting, prompts: int, num_responses: int, max_new_tokens: int) -> Rows:
    """Each prompt with all its answers, in one row."""
    prompt, row = setting.prompt_and_row(max_new_tokens)
    return Rows(prompts, prompt + num_responses * (row - prompt))


def _scored(
    setting: Setting, prompts: int, num_responses: int, max_new_tokens: int, frozen: int
) -> Work:
    """Several answers to each prompt, and their scores by scorers of `frozen` bytes."""
    work = _sampled(setting, prompts, num_responses, max_new_tokens)
    packed = _packed(setting, prompts, num_responses, max_new_tokens)
    return replace(
        work,
        forward_tokens=work.forward_tokens + packed.tokens,
        phases={**work.phases, "scoring": scoring_phase(setting, frozen, packed)},
    )
