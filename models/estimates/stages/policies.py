"""The work of stages that train a policy by the supervised loop: on demonstrations, revisions,
pairs and its own answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
from trimtab.models.estimates.memory import Memory
from trimtab.models.estimates.stages.sampling import num_answered, num_revised, revision_tokens
from trimtab.models.estimates.work import (
    Rows,
    Setting,
    Work,
    scoring_phase,
    supervised_phases,
    supervised_work,
)

TOKENS_A_WORD = 2  # of an instruction, at most


def sft(config: SFTConfig, setting: Setting) -> Work:
    """Supervised fine-tuning; the loss is on response tokens, of which a row may consist."""
    if not config.fine_tune:
        return Work(examples=0, phases={"loading": Memory(frozen=setting.policy)})
    count, row = setting.amounts.demonstrations, setting.amounts.dialogue_tokens
    rows = Rows(count, row, responses=row)
    return supervised_work(setting, config.train, setting.shape.policy_parameters, rows)


def constitutional_sft(config: ConstitutionalSFTConfig, setting: Setting) -> Work:
    """Supervised fine-tuning on revisions and on the demonstrations beside them."""
    assert config.train is not None and setting.revised is not None
    revisions = num_revised(setting.revised, setting)
    helpful = counts.num_helpful(config, revisions, setting.amounts.demonstrations)
    _, revised = setting.prompt_and_row(revision_tokens(setting.revised, setting))
    row = max(revised, setting.amounts.dialogue_tokens)
    rows = Rows(revisions + helpful, row, responses=row)
    return supervised_work(setting, config.train, setting.shape.policy_parameters, rows)


def dpo(config: DPOConfig, setting: Setting) -> Work:
    """Pairs pass under the reference once; then the policy alone learns from them."""
    work, pairs = cpl(config, setting), _pairs(setting)
    likelihoods = scoring_phase(setting, 2 * setting.policy, pairs)
    return replace(
        work, forward_tokens=pairs.tokens, phases={**work.phases, "reference": likelihoods}
    )


def cpl(config: CPLConfig | DPOConfig, setting: Setting) -> Work:
    """The policy alone learns from pairs."""
    return _policy(config, setting, _pairs(setting))


def rejection_sampling(config: RejectionSamplingConfig, setting: Setting) -> Work:
    """One answer to every prompt that was sampled so far."""
    prompts = sum(num_answered(each, setting) for each in setting.sampled)
    return _on_answers(config, setting, [min(prompts, setting.amounts.policy_prompts)])


def rest(config: RestConfig, setting: Setting) -> Work:
    """All answers above each threshold, no two of which are taken to score the same; those above a
    value are taken to be all.
    """
    count = _num_answers(setting)
    if config.threshold_kind == "value":
        return _on_answers(config, setting, [count for _ in config.thresholds])
    return _on_answers(config, setting, [ceil((1 - q) * count) for q in config.thresholds])


def hir(config: HIRConfig, setting: Setting) -> Work:
    """Every answer behind every instruction, in one row with its prompt."""
    prompt, row = _answer_row(setting)
    words = max(len(instruction.split()) for instruction in config.instructions)
    response, num_instructions = row - prompt + TOKENS_A_WORD * words, len(config.instructions)
    responses = num_instructions * response
    rows = Rows(
        _num_answers(setting),
        prompt + responses,
        responses,
        repeated=(num_instructions - 1) * (prompt + response),
    )
    return _policy(config, setting, rows)


def _num_answers(setting: Setting) -> int:
    return sum(num_answered(each, setting) * each.num_responses for each in setting.sampled)


def _answer_row(setting: Setting) -> tuple[int, int]:
    """Tokens of a prompt, and of the row it makes with its longest answer."""
    return setting.prompt_and_row(max(each.max_new_tokens for each in setting.sampled))


def _pairs(setting: Setting) -> Rows:
    """At most all of a pair is its two responses, or its prompt and second one."""
    row = setting.pair_row
    return Rows(setting.amounts.train_pairs, row, responses=row, repeated=row)


def _on_answers(config: PolicyConfig, setting: Setting, parts: Sequence[int]) -> Work:
    prompt, row = _answer_row(setting)
    rows = Rows(max(parts), row, responses=row - prompt, all_tokens=sum(parts) * row)
    return _policy(config, setting, rows, parts)


def _policy(
    config: PolicyConfig, setting: Setting, rows: Rows, parts: Sequence[int] | None = None
) -> Work:
    """Training a policy on rows; the last two as in `supervised_work`.

    Each update passes what it rehearses as well, as long as any dialogue can be.
    """
    train, parameters = config.train, setting.shape.policy_parameters
    work = supervised_work(setting, train, parameters, rows, parts)
    longest = setting.amounts.dialogue_tokens
    for count in counts.replayed_rows(config, setting.has_rehearsal).values():
        drawn = Rows(count, longest, responses=longest)
        rehearsing = supervised_phases(setting, train, parameters, drawn)["training"]
        training = max(work.phases["training"], rehearsing, key=lambda phase: phase.total)
        work = replace(
            work,
            trained_tokens=work.trained_tokens + work.optimiser_steps * drawn.tokens,
            phases={**work.phases, "training": training},
        )
    return work
