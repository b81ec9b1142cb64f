"""The work of stages that sample a policy and train nothing."""

from __future__ import annotations

from dataclasses import replace

from trimtab.models import counts
from trimtab.models.config.data import ComparisonsConfig
from trimtab.models.config.policy import RehearsalConfig, ReviseConfig, SampleResponsesConfig
from trimtab.models.config.reporting import EvaluateConfig
from trimtab.models.config.training import ModelConfig
from trimtab.models.estimates.shapes import shape_of
from trimtab.models.estimates.stages.judging import (
    judge_sampling_memory,
    judge_steps,
    judge_work,
    text_tokens,
)
from trimtab.models.estimates.work import (
    Rows,
    StageInputs,
    Work,
    sampling_memory,
    sampling_steps,
    scoring_memory,
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
    prompts = inputs.amounts.eval_prompts
    work = _sampled(config, inputs, prompts, config.num_candidates)
    packed = _packed(inputs, prompts, config.num_candidates, config.max_new_tokens)
    _, row = inputs.prompt_and_row(config.max_new_tokens)
    best, both = Rows(prompts, row, logit_tokens=config.max_new_tokens + 1), 2 * inputs.policy_bytes
    passed = (1 + inputs.num_heldout_models) * packed.tokens + 2 * best.tokens
    work = replace(
        work,
        forward_tokens=work.forward_tokens + passed,
        passed_logits=2 * best.count * best.logit_tokens,
        phases={
            **work.phases,
            "scoring": scoring_memory(inputs, both, packed),
            "likelihoods": scoring_memory(inputs, both, best),
        },
    )
    if config.harmless is None:
        return work
    field = "evaluate.harmless.judge.local_model"
    asked = judge_work(config.harmless.judge, inputs, "score", best, field)
    judging = {
        name: replace(phase, frozen=phase.frozen + inputs.policy_bytes)
        for name, phase in asked.phases.items()
    }
    return replace(
        work,
        sampled_tokens=work.sampled_tokens + asked.sampled_tokens,
        sampling_steps=work.sampling_steps + asked.sampling_steps,
        forward_tokens=work.forward_tokens + asked.forward_tokens,
        phases={**work.phases, **judging},
    )


def revise(config: ReviseConfig, inputs: StageInputs) -> Work:
    """An answer to each prompt; of each revision its critique first, then both read again.

    A judge behind an endpoint works elsewhere. How many prompts are of a category is not known
    before: they are taken to be all.
    """
    count = num_revised(config, inputs)
    work = _sampled(config, inputs, count, 1)
    judge = config.judge
    if judge.local_model is None:
        return work
    field = "constitution.revise.judge.local_model"
    shape = shape_of(ModelConfig(base=judge.local_model), field, is_trained=False)
    theirs = replace(inputs, shape=shape)
    questions = load_questions()
    told = sum(len(questions[name]) for name in ("principle", "revise", "revise answer"))
    prompt, _ = inputs.prompt_and_row(config.max_new_tokens)
    asked = prompt + revision_tokens(config, inputs) + text_tokens(told + MAX_CHARACTERS)
    critique = config.max_critique_tokens if config.critique else 0
    first = asked + (text_tokens(len(questions["revise critique"])) if config.critique else 0)
    room = counts.prompt_room(shape.context, config.max_revision_tokens)
    second = min(first + critique, room)
    steps = count * config.num_revisions
    revising = judge_sampling_memory(theirs, count, second, config.max_revision_tokens)
    return replace(
        work,
        sampled_tokens=work.sampled_tokens + steps * (critique + config.max_revision_tokens),
        sampling_steps=work.sampling_steps
        + config.num_revisions * judge_steps(count, second, critique + config.max_revision_tokens),
        forward_tokens=work.forward_tokens + steps * (second + (first if config.critique else 0)),
        phases={**work.phases, "revising": revising},
    )


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
    samples, max_new_tokens = prompts * num_responses, config.max_new_tokens
    prompt, _ = inputs.prompt_and_row(max_new_tokens)
    ranks = 1 if isinstance(config, ReviseConfig) else config.ranks
    phase = sampling_memory(
        inputs,
        inputs.policy_bytes,
        samples,
        prompt,
        max_new_tokens,
        at_least=counts.least_sampling_batches(ranks),
        vllm=config.vllm,
    )
    return Work(
        examples=prompts,
        num_ranks=ranks,
        sampled_tokens=samples * max_new_tokens,
        sampling_steps=sampling_steps(samples, prompt, max_new_tokens),
        forward_tokens=samples * prompt,
        phases={"sampling": phase},
    )


def _packed(inputs: StageInputs, prompts: int, num_responses: int, max_new_tokens: int) -> Rows:
    """Each prompt with all its answers, in one row."""
    prompt, row = inputs.prompt_and_row(max_new_tokens)
    return Rows(prompts, prompt + num_responses * (row - prompt))


def _scored(
    config: _Sampled, inputs: StageInputs, prompts: int, num_responses: int, frozen: int
) -> Work:
    """Several answers to each prompt, and their scores by scorers of `frozen` bytes."""
    work = _sampled(config, inputs, prompts, num_responses)
    packed = _packed(inputs, prompts, num_responses, config.max_new_tokens)
    return replace(
        work,
        forward_tokens=work.forward_tokens + packed.tokens,
        phases={**work.phases, "scoring": scoring_memory(inputs, frozen, packed)},
    )
