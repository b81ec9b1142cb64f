"""The work of stages that sample a policy and train nothing."""

from __future__ import annotations

from trimtab.models import counts
from trimtab.models.config.data import ComparisonsConfig
from trimtab.models.config.policy import RehearsalConfig, ReviseConfig, SampleResponsesConfig
from trimtab.models.config.reporting import EvaluateConfig
from trimtab.models.estimates.memory import Memory
from trimtab.models.estimates.stages.judging import (
    answering_work,
    judge_work,
    local_inputs,
    text_tokens,
)
from trimtab.models.estimates.work import (
    Answers,
    Rows,
    StageInputs,
    Work,
    passing_work,
    sampling_work,
)
from trimtab.models.judge.constitutions import MAX_CHARACTERS
from trimtab.models.judge.rubrics import load_questions

_Sampled = (
    ComparisonsConfig | RehearsalConfig | SampleResponsesConfig | EvaluateConfig | ReviseConfig
)


def comparisons(config: ComparisonsConfig, inputs: StageInputs) -> Work:
    """Sampling the answers that simulated annotators compare."""
    prompts = inputs.amounts.pair_prompts
    return _sampled(config, inputs, prompts, config.num_responses)


def rehearsal(config: RehearsalConfig, inputs: StageInputs) -> Work:
    """Answers of the SFT policy, scored; the sentence encoder is not counted."""
    amounts = inputs.amounts
    is_shown = config.prompts == "demonstrations"
    available = amounts.distinct_demonstrations if is_shown else amounts.policy_prompts
    prompts = counts.num_taken(available, config.max_prompts)
    return _scored(config, inputs, prompts, 1, sum(inputs.scorer_bytes))


def sample_responses(config: SampleResponsesConfig, inputs: StageInputs) -> Work:
    """Several answers a prompt; to be scored, each prompt passes once."""
    prompts, scorer = num_answered(config, inputs), inputs.scorer_bytes[0]
    return _scored(config, inputs, prompts, config.num_responses, scorer)


def num_answered(config: SampleResponsesConfig, inputs: StageInputs) -> int:
    """Prompts that several answers are sampled to."""
    return counts.num_taken(inputs.amounts.policy_prompts, config.num_prompts)


def evaluate(config: EvaluateConfig, inputs: StageInputs) -> Work:
    """Answers to the evaluation prompts, their scores, and likelihoods of the best.

    One after another, scorer, held-out reward models and reference are loaded beside the policy. A
    judge of harm is taken to see all answers.
    """
    prompts, frozen = inputs.amounts.eval_prompts, 2 * inputs.policy_bytes
    packed = _packed(inputs, prompts, config.num_candidates, config.max_new_tokens)
    _, row = inputs.prompt_and_row(config.max_new_tokens)
    best = Rows(prompts, row, logit_tokens=config.max_new_tokens + 1)
    num_scorers = 1 + inputs.num_heldout_models
    work = _sampled(config, inputs, prompts, config.num_candidates)
    work += passing_work(inputs, frozen, packed, times=num_scorers)
    work += passing_work(inputs, frozen, best, phase="likelihoods", times=2)
    if config.harmless is None:
        return work
    field = "evaluate.harmless.judge.local_model"
    judging = judge_work(config.harmless.judge, inputs, "score", best, field)
    return work + judging.beside(Memory(frozen=inputs.policy_bytes))


def revise(config: ReviseConfig, inputs: StageInputs) -> Work:
    """An answer to each prompt; of each revision its critique first, then both read again.

    A judge behind an endpoint works elsewhere. How many prompts are of a category is not known
    before: they are taken to be all.
    """
    count, judge = num_revised(config, inputs), config.judge
    work = _sampled(config, inputs, count, 1)
    if judge.local_model is None:
        return work
    local = local_inputs(inputs, judge.local_model, "constitution.revise.judge.local_model")
    questions = load_questions()
    told = sum(len(questions[name]) for name in ("principle", "revise", "revise answer"))
    prompt, _ = inputs.prompt_and_row(config.max_new_tokens)
    asked = prompt + revision_tokens(config, inputs) + text_tokens(told + MAX_CHARACTERS)
    revision = Work()
    if config.critique:
        asked += text_tokens(len(questions["revise critique"]))
        critique = config.max_critique_tokens
        revision += answering_work(local, "revising", count, asked, critique)
        asked += critique
    revision += answering_work(local, "revising", count, asked, config.max_revision_tokens)
    return work + revision.times(config.num_revisions)


def num_revised(config: ReviseConfig, inputs: StageInputs) -> int:
    """Prompts that are answered and revised, at most."""
    return counts.num_taken(inputs.amounts.policy_prompts, config.max_prompts)


def revision_tokens(config: ReviseConfig, inputs: StageInputs) -> int:
    """The longest answer or revision; the gold scorer's are as long as demonstrations."""
    if config.judge.gold_accuracy is not None:
        return max(config.max_new_tokens, inputs.amounts.dialogue_tokens)
    return max(config.max_new_tokens, config.max_revision_tokens)


def _sampled(config: _Sampled, inputs: StageInputs, prompts: int, num_responses: int) -> Work:
    """Several answers of a policy to each prompt."""
    ranks = 1 if isinstance(config, ReviseConfig) else config.ranks
    count, prompt = prompts * num_responses, inputs.amounts.prompt_tokens
    answers = Answers(count, prompt, config.max_new_tokens)
    return Work(examples=prompts, num_ranks=ranks) + sampling_work(
        inputs, inputs.policy_bytes, answers, num_ranks=ranks, vllm=config.vllm
    )


def _packed(inputs: StageInputs, prompts: int, num_responses: int, max_new_tokens: int) -> Rows:
    """Each prompt with all its answers, in one row."""
    prompt, row = inputs.prompt_and_row(max_new_tokens)
    return Rows(prompts, prompt + num_responses * (row - prompt))


def _scored(
    config: _Sampled, inputs: StageInputs, prompts: int, num_responses: int, frozen: int
) -> Work:
    """Several answers to each prompt, and their scores by scorers of `frozen` bytes."""
    packed = _packed(inputs, prompts, num_responses, config.max_new_tokens)
    scoring = passing_work(inputs, frozen, packed)
    return _sampled(config, inputs, prompts, num_responses) + scoring
