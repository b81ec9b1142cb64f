"""The work of what PPO-max is compared with; a function a stage, mirroring its trainer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from models.config.policy import (
    CPLConfig,
    DPOConfig,
    HIRConfig,
    PolicyConfig,
    RejectionSamplingConfig,
    RestConfig,
    SampleResponsesConfig,
)
from models.estimates.supervised import Examples, loading_and_training, num_steps, pair_row
from models.estimates.work import (
    Setting,
    Work,
    sampling_phase,
    scoring_phase,
    trained_parameters,
)

TOKENS_A_WORD = 2  # of an instruction, at most


def sample_responses(config: SampleResponsesConfig, setting: Setting) -> Work:
    """Several answers a prompt; to be scored, each prompt passes once."""
    prompts = _num_prompts(config, setting)
    count = prompts * config.num_responses
    prompt, row = setting.capped(setting.amounts.prompt_tokens, config.max_new_tokens)
    packed = prompt + config.num_responses * (row - prompt)
    return Work(
        examples=prompts,
        sampled_tokens=count * config.max_new_tokens,
        forward_tokens=count * prompt + prompts * packed,
        phases={
            "sampling": sampling_phase(setting, setting.policy, count, prompt, row),
            "scoring": scoring_phase(setting, setting.scorers[0], prompts, packed),
        },
    )


def dpo(config: DPOConfig, setting: Setting) -> Work:
    """Pairs pass under the reference once; then the policy alone learns from them."""
    work, row = _on_pairs(config, setting), pair_row(setting)
    likelihoods = scoring_phase(setting, 2 * setting.policy, work.examples, row, row)
    return replace(
        work,
        forward_tokens=work.examples * row,
        phases={**work.phases, "reference": likelihoods},
    )


def cpl(config: CPLConfig, setting: Setting) -> Work:
    """The policy alone learns from pairs."""
    return _on_pairs(config, setting)


def rejection_sampling(config: RejectionSamplingConfig, setting: Setting) -> Work:
    """One answer to every prompt that was sampled so far."""
    prompts = sum(_num_prompts(each, setting) for each in setting.sampled)
    kept = min(prompts, setting.amounts.policy_prompts)
    return _on_answers(config, setting, [kept])


def rest(config: RestConfig, setting: Setting) -> Work:
    """All answers above each threshold; those above a value are taken to be all."""
    count = _num_answers(setting)
    if config.threshold_kind == "value":
        return _on_answers(config, setting, [count for _ in config.thresholds])
    return _on_answers(config, setting, [ceil((1 - q) * count) for q in config.thresholds])


def hir(config: HIRConfig, setting: Setting) -> Work:
    """Every answer behind every instruction, in one row with its prompt."""
    prompt, row = _answer_row(setting)
    words = max(len(instruction.split()) for instruction in config.instructions)
    response, others = row - prompt + TOKENS_A_WORD * words, len(config.instructions) - 1
    return _policy_work(
        config,
        setting,
        [_num_answers(setting)],
        row=prompt + (1 + others) * response,
        responses=(1 + others) * response,
        repeated=others * (prompt + response),
    )


def _num_prompts(config: SampleResponsesConfig, setting: Setting) -> int:
    return min(config.num_prompts, setting.amounts.policy_prompts)


def _num_answers(setting: Setting) -> int:
    return sum(_num_prompts(each, setting) * each.num_responses for each in setting.sampled)


def _answer_row(setting: Setting) -> tuple[int, int]:
    """Tokens of a prompt, and of the row it makes with its longest answer."""
    longest = max(each.max_new_tokens for each in setting.sampled)
    return setting.capped(setting.amounts.prompt_tokens, longest)


def _on_pairs(config: PolicyConfig, setting: Setting) -> Work:
    """At most all of a pair is its two responses, or its prompt and second one."""
    row = pair_row(setting)
    return _policy_work(config, setting, [setting.amounts.train_pairs], row, row, row)


def _on_answers(config: PolicyConfig, setting: Setting, parts: Sequence[int]) -> Work:
    prompt, row = _answer_row(setting)
    return _policy_work(config, setting, parts, row, row - prompt)


def _policy_work(
    config: PolicyConfig,
    setting: Setting,
    parts: Sequence[int],
    row: int,
    responses: int,
    repeated: int = 0,
) -> Work:
    """Training a policy on so many rows, part after part; the rest as for `training_phase`.

    Each update passes what it rehearses as well, as long as any dialogue can be.
    """
    train, parameters, count = config.train, setting.shape.policy_parameters, max(parts)
    steps = sum(num_steps(train, count) for count in parts)
    examples = Examples(count, row, count * row, responses, repeated)
    phases = loading_and_training(train, setting, parameters, examples)
    replayed = 0
    if setting.has_rehearsal and config.rehearsal_coef > 0:
        drawn, longest = config.rehearsal_batch, setting.amounts.dialogue_tokens
        replayed = drawn * longest
        again = train.model_copy(update={"batch_size": drawn})
        rehearsed = Examples(drawn, longest, replayed, longest)
        rehearsing = loading_and_training(again, setting, parameters, rehearsed)["training"]
        phases["training"] = max(phases["training"], rehearsing, key=lambda phase: phase.total)
    return Work(
        examples=count,
        num_ranks=train.ranks,
        optimiser_steps=steps,
        trained_tokens=train.num_epochs * sum(parts) * row + steps * replayed,
        parameters=trained_parameters(setting.shape, train, parameters),
        phases=phases,
    )
