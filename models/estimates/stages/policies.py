"""The work of stages that train a policy by the supervised loop: on demonstrations, revisions,
pairs and its own answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from trimtab.models import counts
from trimtab.models.config.policy import (
    ConstitutionalSFTConfig,
    CPLConfig,
    DPOConfig,
    HIRConfig,
    PolicyConfig,
    RejectionSamplingConfig,
    RestConfig,
)
from trimtab.models.config.training import SFTConfig
from trimtab.models.estimates.memory import FLOAT_BYTES, Memory
from trimtab.models.estimates.stages.sampling import num_answered, num_revised, revision_tokens
from trimtab.models.estimates.work import (
    Rows,
    StageInputs,
    Work,
    passing_work,
    supervised_work,
)

TOKENS_A_WORD = 2  # of an instruction, at most


def sft(config: SFTConfig, inputs: StageInputs) -> Work:
    """Supervised fine-tuning; the loss is on response tokens, of which a row may consist."""
    weights = FLOAT_BYTES * inputs.shape.policy_parameters
    if not config.fine_tune:
        return Work(examples=0, phases={"loading": Memory(frozen=weights)})
    count, row = inputs.amounts.demonstrations, inputs.amounts.dialogue_tokens
    rows = Rows(count, row, logit_tokens=row)
    return supervised_work(inputs, config.train, inputs.shape.policy_parameters, rows)


def constitutional_sft(config: ConstitutionalSFTConfig, inputs: StageInputs) -> Work:
    """Supervised fine-tuning on revisions and on the demonstrations beside them."""
    assert config.train is not None and inputs.revised is not None
    revisions = num_revised(inputs.revised, inputs)
    helpful = counts.num_helpful(config, revisions, inputs.amounts.demonstrations)
    _, revised = inputs.prompt_and_row(revision_tokens(inputs.revised, inputs))
    row = max(revised, inputs.amounts.dialogue_tokens)
    rows = Rows(revisions + helpful, row, logit_tokens=row)
    return supervised_work(inputs, config.train, inputs.shape.policy_parameters, rows)


def dpo(config: DPOConfig, inputs: StageInputs) -> Work:
    """Pairs pass under the reference once; then the policy alone learns from them."""
    weights = FLOAT_BYTES * inputs.shape.policy_parameters + inputs.policy_bytes
    reference = passing_work(inputs, weights, _pairs(inputs), phase="reference")
    return cpl(config, inputs) + reference


def cpl(config: CPLConfig | DPOConfig, inputs: StageInputs) -> Work:
    """The policy alone learns from pairs."""
    return _policy(config, inputs, _pairs(inputs))


def rejection_sampling(config: RejectionSamplingConfig, inputs: StageInputs) -> Work:
    """One answer to every prompt that was sampled so far."""
    prompts = sum(num_answered(each, inputs) for each in inputs.sampled)
    return _on_answers(config, inputs, [min(prompts, inputs.amounts.policy_prompts)])


def rest(config: RestConfig, inputs: StageInputs) -> Work:
    """All answers above each threshold, no two of which are taken to score the same; those above a
    value are taken to be all.
    """
    count = _num_answers(inputs)
    if config.threshold_kind == "value":
        return _on_answers(config, inputs, [count for _ in config.thresholds])
    return _on_answers(config, inputs, [ceil((1 - q) * count) for q in config.thresholds])


def hir(config: HIRConfig, inputs: StageInputs) -> Work:
    """Every answer behind every instruction, in one row with its prompt."""
    prompt, row = _answer_row(inputs)
    words = max(len(instruction.split()) for instruction in config.instructions)
    response, num_instructions = row - prompt + TOKENS_A_WORD * words, len(config.instructions)
    responses = num_instructions * response
    rows = Rows(
        _num_answers(inputs),
        prompt + responses,
        responses,
        repeated_keys=(num_instructions - 1) * (prompt + response),
    )
    return _policy(config, inputs, rows)


def _num_answers(inputs: StageInputs) -> int:
    return sum(num_answered(each, inputs) * each.num_responses for each in inputs.sampled)


def _answer_row(inputs: StageInputs) -> tuple[int, int]:
    """Tokens of a prompt, and of the row it makes with its longest answer."""
    return inputs.prompt_and_row(max(each.max_new_tokens for each in inputs.sampled))


def _pairs(inputs: StageInputs) -> Rows:
    """At most all of a pair is its two responses, or its prompt and second one."""
    row = inputs.pair_tokens
    return Rows(inputs.amounts.train_pairs, row, logit_tokens=row, repeated_keys=row)


def _on_answers(config: PolicyConfig, inputs: StageInputs, parts: Sequence[int]) -> Work:
    prompt, row = _answer_row(inputs)
    rows = Rows(max(parts), row, logit_tokens=row - prompt, all_tokens=sum(parts) * row)
    return _policy(config, inputs, rows, parts)


def _policy(
    config: PolicyConfig, inputs: StageInputs, rows: Rows, parts: Sequence[int] | None = None
) -> Work:
    """Training a policy on rows; the last two as in `supervised_work`.

    Each update passes what it rehearses as well, as long as any dialogue can be.
    """
    longest = inputs.amounts.dialogue_tokens
    rehearsed = counts.nll_batch_sizes(config, inputs.has_rehearsal).values()
    return supervised_work(
        inputs,
        config.train,
        inputs.shape.policy_parameters,
        rows,
        parts=parts,
        further=[Rows(count, longest, logit_tokens=longest) for count in rehearsed],
    )
