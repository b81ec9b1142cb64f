"""The work of stages that pass rows, sample a policy or ask a judge, and train nothing.

A judge behind an endpoint works elsewhere: what is counted here is that of a local model. Of pairs
it is taken to make as many tokens as the policy does. Answers that are not understood, and asked
for once more, are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from trimtab.models.config import reward
from trimtab.models.config.data import ComparisonsConfig
from trimtab.models.config.external_reward import (
    ExternalRewardVotesConfig,
    RewardConfig,
    RewardMemberConfig,
)
from trimtab.models.config.judge import JudgeAnswersConfig, JudgeConfig, JudgePreferencesConfig
from trimtab.models.config.policy import RehearsalConfig, ReviseConfig, SampleResponsesConfig
from trimtab.models.config.reporting import EvaluateConfig
from trimtab.models.estimates.amounts import Amounts
from trimtab.models.estimates.memory import FLOAT_BYTES, Memory
from trimtab.models.estimates.shapes import PlanError
from trimtab.models.estimates.work import (
    Answers,
    Rows,
    StageInputs,
    Work,
    passing_work,
    policy_sampling,
    sampling_work,
)
from trimtab.models.judge.constitutions import MAX_CHARACTERS
from trimtab.models.judge.prompts import OPTIONS, Kind
from trimtab.models.judge.rubrics import load_questions, load_rubric
from trimtab.models.nets import counts

# Fewer than English has in any common vocabulary, so that tokens are an upper bound.
CHARACTERS_PER_TOKEN = 3


def trunk_cache(
    config: reward.TrunkCacheConfig | reward.EmbeddingsConfig, inputs: StageInputs
) -> Work:
    """One pass of the lower layers over all pairs; the head's parameters are loaded too."""
    pairs = inputs.pairs(inputs.amounts.pairs)
    weights = FLOAT_BYTES * inputs.shape.policy_parameters
    return Work(examples=pairs.count) + passing_work(inputs, weights, pairs, phase="lower layers")


def embeddings(config: reward.EmbeddingsConfig, inputs: StageInputs) -> Work:
    """Nothing of a sentence encoder; of a language model one pass, which the cached trunk of a
    policy may save."""
    if not config.is_language_model:
        return Work(examples=inputs.amounts.pairs)
    if config.encoder != reward.POLICY:
        inputs = inputs.with_model(config.encoder)
    return trunk_cache(config, inputs)


def external_reward_votes(config: ExternalRewardVotesConfig, inputs: StageInputs) -> Work:
    """One pass over all pairs of a reward model."""
    return _scored(config.members, inputs, inputs.amounts.pairs)


def external_reward(config: RewardConfig, inputs: StageInputs) -> Work:
    """One pass over the held-out pairs of each reward model."""
    return _scored(config.members, inputs, inputs.amounts.held_out_pairs)


def _scored(members: Sequence[RewardMemberConfig], inputs: StageInputs, count: int) -> Work:
    """Nothing is known of a reward model that is not here, nor of other rewards."""
    work = Work(examples=count)
    for name in filter(None, (member.model for member in members)):
        try:
            its = inputs.with_model(name, "reward.model")
        except PlanError:
            continue
        frozen = its.frozen_bytes(its.shape.scorer_parameters(1), its.shape.num_layers)
        work += passing_work(its, frozen, its.pairs(count))
    return work


def comparisons(config: ComparisonsConfig, inputs: StageInputs) -> Work:
    """Sampling the answers that simulated annotators compare."""
    work, _ = _answered(config, inputs, inputs.amounts.pair_prompts, config.num_responses)
    return work


def rehearsal(config: RehearsalConfig, inputs: StageInputs) -> Work:
    """Answers of the SFT policy, scored; the sentence encoder is not counted."""
    work, packed = _answered(config, inputs, _prompts_to_rehearse(config, inputs.amounts), 1)
    scorers = inputs.scorer_bytes
    scoring = passing_work(inputs.scorer_inputs, sum(scorers), packed, times=len(scorers))
    return work + inputs.scorer_work(scoring)


def num_rehearsed(config: RehearsalConfig, amounts: Amounts) -> int:
    """Answers that are kept, at most."""
    kept = config.num_clusters * config.per_cluster
    return counts.num_taken(_prompts_to_rehearse(config, amounts), kept)


def _prompts_to_rehearse(config: RehearsalConfig, amounts: Amounts) -> int:
    is_shown = config.prompts == "demonstrations"
    available = amounts.distinct_demonstrations if is_shown else amounts.policy_prompts
    return counts.num_taken(available, config.max_prompts)


def sample_responses(config: SampleResponsesConfig, inputs: StageInputs) -> Work:
    """Several answers a prompt; to be scored, each prompt passes once."""
    work, packed = _answered(config, inputs, num_answered(config, inputs), config.num_responses)
    scorers = inputs.scorer_bytes
    scoring = passing_work(inputs.scorer_inputs, sum(scorers), packed, times=len(scorers))
    return work + inputs.scorer_work(scoring)


def num_answered(config: SampleResponsesConfig, inputs: StageInputs) -> int:
    """Prompts that several answers are sampled to."""
    return counts.num_taken(inputs.amounts.policy_prompts, config.num_prompts)


def evaluate(config: EvaluateConfig, inputs: StageInputs) -> Work:
    """Answers to the evaluation prompts, their scores, and likelihoods of the best.

    One after another, scorer, held-out reward models and reference are loaded beside the policy. A
    judge of harm is taken to see all answers.
    """
    prompts, frozen = inputs.amounts.eval_prompts, 2 * inputs.policy_bytes
    scorers = inputs.scorer_inputs
    _, row = inputs.prompt_and_row(config.max_new_tokens)
    best = Rows(prompts, row, logit_tokens=config.max_new_tokens + 1)
    num_scorers = len(inputs.scorer_heads) + inputs.num_heldout_models
    work, packed = _answered(config, inputs, prompts, config.num_candidates)
    beside = inputs.policy_bytes + scorers.policy_bytes
    work += inputs.scorer_work(passing_work(scorers, beside, packed, times=num_scorers))
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
    work, _ = _answered(config, inputs, count, 1)
    if judge.local_model is None:
        return work
    local = inputs.with_model(judge.local_model, "constitution.revise.judge.local_model")
    questions = load_questions()
    text = sum(len(questions[name]) for name in ("principle", "revise", "revise answer"))
    prompt, _ = inputs.prompt_and_row(config.max_new_tokens)
    request = prompt + revision_tokens(config, inputs) + _text_tokens(text + MAX_CHARACTERS)
    revision = Work()
    if config.critique:
        request += _text_tokens(len(questions["revise critique"]))
        critique = config.max_critique_tokens
        revision += _answering_work(local, "revising", count, request, critique)
        request += critique
    revision += _answering_work(local, "revising", count, request, config.max_revision_tokens)
    return work + revision.times(config.num_revisions)


def num_revised(config: ReviseConfig, inputs: StageInputs) -> int:
    """Prompts that are answered and revised, at most."""
    return counts.num_taken(inputs.amounts.policy_prompts, config.max_prompts)


def revision_tokens(config: ReviseConfig, inputs: StageInputs) -> int:
    """The longest answer or revision; the gold scorer's are as long as demonstrations."""
    if config.judge.gold_accuracy is not None:
        return max(config.max_new_tokens, inputs.amounts.dialogue_tokens)
    return max(config.max_new_tokens, config.max_revision_tokens)


def _answered(
    config: Any, inputs: StageInputs, prompts: int, num_responses: int
) -> tuple[Work, Rows]:
    """Several answers of a policy to each prompt, and the rows of a prompt with its answers."""
    work = policy_sampling(config, inputs, prompts * num_responses, inputs.policy_bytes)
    prompt, row = inputs.prompt_and_row(config.max_new_tokens)
    rows = Rows(prompts, prompt + num_responses * (row - prompt))
    return replace(work, examples=prompts), rows


def judge_preferences(config: JudgePreferencesConfig, inputs: StageInputs) -> Work:
    """Each pair in both orders: thoughts where they are wanted, then the verdict.

    Validation and test are not told apart here: each is taken to be all that is held out. Of some
    categories they are taken to be all: how many is not known before.
    """
    train, held_out = inputs.amounts.train_pairs, inputs.amounts.held_out_pairs
    available = [train if split == "train" else held_out for split in config.splits]
    pairs = sum(counts.num_taken(count, config.max_pairs) for count in available)
    return _compared(config.judge, inputs, pairs, "judge_preferences.judge.local_model")


def judge_answers(config: JudgeAnswersConfig, inputs: StageInputs) -> Work:
    """Every two policies' answers to each prompt, all taken to differ, in both orders."""
    prompts, policies = inputs.amounts.eval_prompts, inputs.num_policies
    if config.max_prompts is not None:
        # All but that of validation are judged where none are named.
        num_sets = inputs.amounts.eval_sets - 1 if config.sets is None else len(config.sets)
        prompts = counts.num_taken(prompts, num_sets * config.max_prompts)
    pairs = prompts * policies * (policies - 1) // 2
    return _compared(config.judge, inputs, pairs, "judges.judge.local_model")


def _compared(judge: JudgeConfig, inputs: StageInputs, pairs: int, field: str) -> Work:
    shown = Rows(pairs, inputs.amounts.pair_tokens)
    return Work(examples=pairs) + judge_work(judge, inputs, "compare", shown, field)


def judge_work(
    judge: JudgeConfig, inputs: StageInputs, kind: Kind, shown: Rows, field: str
) -> Work:
    """A judge's verdicts on what it is shown: pairs, in both orders, or single answers.

    Of one token, whose probabilities are read, a verdict takes a single pass. Longer ones are
    sampled, and pass once more where probabilities are read. `field`: what names the local model in
    the run's configuration.
    """
    work = Work()
    if judge.local_model is None:
        return work
    local = inputs.with_model(judge.local_model, field)
    requests = shown.count * judge.num_samples * (counts.NUM_ORDERS if kind == "compare" else 1)
    request = shown.length + _instruction_tokens(judge, kind)
    if judge.chain_of_thought:
        work += _answering_work(local, "thinking", requests, request, judge.max_thought_tokens)
        request += judge.max_thought_tokens
    verdict = counts.verdict_tokens(judge, max(map(len, OPTIONS[kind])))
    if judge.top_logprobs:
        rows = Rows(requests, min(request + verdict, local.shape.context), logit_tokens=verdict)
        at_once = counts.REQUESTS_AT_ONCE
        work += passing_work(local, local.policy_bytes, rows, phase="judging", at_once=at_once)
    if verdict > 1 or not judge.top_logprobs:
        work += _answering_work(local, "judging", requests, request, verdict)
    return work


def _answering_work(
    local: StageInputs, phase: str, requests: int, request_tokens: int, max_new_tokens: int
) -> Work:
    """A local model's answers to requests of so many tokens."""
    answers = Answers(requests, request_tokens, max_new_tokens)
    at_once = counts.REQUESTS_AT_ONCE
    return sampling_work(local, local.policy_bytes, answers, phase=phase, at_once=at_once)


def asked_tokens(judge: JudgeConfig, pairs: int, tokens: int) -> int:
    """Most tokens of all requests and answers, where `pairs` of `tokens` in all are compared."""
    thoughts = judge.max_thought_tokens if judge.chain_of_thought else 0
    passes = 2 if judge.chain_of_thought else 1  # the second has the thoughts before it
    shown = passes * (tokens + pairs * _instruction_tokens(judge, "compare"))
    written = pairs * (2 * thoughts + counts.verdict_tokens(judge, 1))
    return counts.NUM_ORDERS * judge.num_samples * (shown + written)


def _text_tokens(characters: int) -> int:
    """Most tokens of a text of so many characters."""
    return ceil(characters / CHARACTERS_PER_TOKEN)


def _instruction_tokens(judge: JudgeConfig, kind: Kind) -> int:
    """Tokens of rubric, principle, questions and worked examples at most."""
    rubric = load_rubric(judge.rubric)
    questions = load_questions()
    texts = [rubric.criteria, *(text for name, text in questions.items() if name.startswith(kind))]
    for example in rubric.examples[: judge.num_examples]:
        texts += [example.dialogue, example.first, example.second, example.thoughts]
    principle = 0 if judge.constitution is None else len(questions["principle"]) + MAX_CHARACTERS
    return _text_tokens(sum(map(len, texts)) + principle)
