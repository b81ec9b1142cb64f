"""The work of stages that train a policy: by the supervised loop, on demonstrations, revisions,
pairs and its own answers; and by PPO-max, whose policy and critic train while others run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from trimtab.models.config.policy import (
    ConstitutionalSFTConfig,
    CPLConfig,
    DPOConfig,
    HIRConfig,
    PolicyConfig,
    PPOConfig,
    RejectionSamplingConfig,
    RestConfig,
)
from trimtab.models.config.training import SFTConfig
from trimtab.models.estimates.memory import (
    FLOAT_BYTES,
    PRODUCT_BYTES,
    Memory,
    largest,
    partition_of,
)
from trimtab.models.estimates.stages.sampling import (
    judge_work,
    num_answered,
    num_revised,
    revision_tokens,
)
from trimtab.models.estimates.work import (
    Answers,
    Rows,
    StageInputs,
    Work,
    passing_work,
    sampling_work,
    supervised_work,
    trained_parameters,
    trainer_phases,
    training_memory,
    untrained_parameters,
    vllm_memory,
)
from trimtab.models.nets import counts

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


def ppo_max(config: PPOConfig, inputs: StageInputs) -> Work:
    """All steps: answers sampled and scored, then updates of critic and, later, policy.

    Without a scorer the first rank has the judge beside all else, which rates each answer, as if
    it were another than those before.
    """
    planned = counts.ppo_counts(config, inputs.amounts.prompts_of(config.prompts))
    _, row = inputs.prompt_and_row(config.max_new_tokens)
    response, num_scorers = config.max_new_tokens + 1, len(inputs.scorer_heads)
    answers = Rows(planned.steps * planned.rollout, row)
    judging = Work()
    if config.scoring.judge is not None and not num_scorers:
        field = "ppo.scoring.judge.local_model"
        judging = judge_work(config.scoring.judge, inputs, "score", answers, field)
    if config.zero is not None and config.zero.stage == 3:
        # Models that only run are narrow there as a whole, which their partition counts.
        inputs = replace(inputs, is_narrow=False)
    sampling = _sampling(config, inputs, planned.rollout).times(planned.steps)
    # What is sampled in narrow products, or by vLLM, the policy passes once more.
    num_policies = 1 + (PRODUCT_BYTES[config.precision] < FLOAT_BYTES or config.vllm is not None)
    learned = config.num_epochs * planned.rollout
    updates, nll = planned.policy_updates(planned.steps), _nll_rows(config, inputs)
    work = Work(
        examples=answers.count,
        num_ranks=config.ranks,
        optimiser_steps=planned.steps * planned.updates,
        passed_logits=num_policies * answers.count * response,
        forward_tokens=(num_policies + 1 + num_scorers) * answers.tokens,
        trained_tokens=learned * (planned.steps + planned.policy_steps) * row
        + updates * sum(rows.tokens for rows in nll),
        trained_logits=learned * planned.policy_steps * response
        + updates * sum(rows.count * rows.logit_tokens for rows in nll),
        parameters=sum(
            trained_parameters(inputs.shape, config, parameters)
            for parameters in (inputs.shape.policy_parameters, _critic_parameters(config, inputs))
        ),
    )
    phases = _phases(config, inputs, planned, sampling.phases["sampling"])
    judge = Memory(frozen=max((phase.frozen for phase in judging.phases.values()), default=0))
    held = replace(phases["sampling"], activations=0, cache=0)
    rating = {name: replace(phase, frozen=0) + held for name, phase in judging.phases.items()}
    total = work + sampling + judging
    return replace(total, phases=phases | rating).beside(judge)


def _critic_parameters(config: PPOConfig, inputs: StageInputs) -> int:
    """A critic that starts as the first scorer keeps its heads."""
    heads = inputs.scorer_heads[0] if config.critic_init == "scorer" else 1
    return inputs.shape.scorer_parameters(heads)


def _nll_rows(config: PPOConfig, inputs: StageInputs) -> list[Rows]:
    """The dialogues that a policy update draws of each source; rehearsed ones are answers that are
    taken to be as long as its own.
    """
    _, row = inputs.prompt_and_row(config.max_new_tokens)
    longest = {"rehearsal": row, "demonstrations": inputs.amounts.dialogue_tokens}
    drawn = counts.nll_batch_sizes(config, inputs.has_rehearsal)
    response = config.max_new_tokens + 1
    return [Rows(count, longest[source], response) for source, count in drawn.items()]


def _sampling(config: PPOConfig, inputs: StageInputs, num_prompts: int) -> Work:
    """What a step samples; with float32 weights on a GPU beside their narrow copies."""
    copies = 0
    if inputs.is_narrow and config.zero is None and config.lora is None:
        copies = PRODUCT_BYTES["bfloat16"] * inputs.shape.num_layers * inputs.shape.map_numbers
    answers = Answers(num_prompts, inputs.amounts.prompt_tokens, config.max_new_tokens)
    return sampling_work(inputs, copies, answers, num_ranks=config.ranks)


def _phases(
    config: PPOConfig, inputs: StageInputs, planned: counts.PPOCounts, sampling: Memory
) -> dict[str, Memory]:
    """Both optimisers stay in memory throughout; gradients are of one model at a time, but under
    stage 3 of ZeRO room for those of both is kept.

    Reference and scorers come first, then the policy, then the critic. In the end the first rank
    has policy and critic whole.
    """
    num_policy, num_critic = inputs.shape.policy_parameters, _critic_parameters(config, inputs)
    _, row = inputs.prompt_and_row(config.max_new_tokens)
    response = config.max_new_tokens + 1
    batch = counts.num_taken(planned.rollout, config.train_batch)
    rows = [Rows(batch, row, response), *_nll_rows(config, inputs)]
    policy = largest(*(training_memory(inputs, num_policy, config, each) for each in rows))
    critic = training_memory(inputs, num_critic, config, Rows(batch, row))
    answers = Rows(counts.rows_of_rank(planned.rollout, config.ranks), row, response)
    partition = partition_of(config)
    others = inputs.policy_bytes + sum(inputs.scorer_bytes)
    phases = trainer_phases(
        inputs,
        config,
        [policy, critic],
        {
            "sampling": sampling if config.vllm is None else Memory(),
            "scoring": passing_work(inputs, 0, answers).phases["scoring"],
            "critic update": critic.transient,
            "policy update": policy.transient,
        },
        others,
        _shared(config, inputs),
    )
    both = replace(policy.resident + critic.resident, optimiser=0)
    phases["saving"] = both + partition.running_part(others)
    if partition.stage == 0:  # its state is kept to the end
        phases["saving"] += Memory(optimiser=policy.optimiser + critic.optimiser)
    if partition.stage == 3:  # a model that samples or scores is whole
        scored = max(inputs.policy_bytes, *inputs.scorer_bytes, FLOAT_BYTES * num_critic)
        for name, whole in (("sampling", inputs.policy_bytes), ("scoring", scored)):
            phases[name] += Memory(frozen=whole // partition.width)
    if config.vllm is not None:  # on a GPU only while it samples: then this is a bound
        beside = vllm_memory(config.vllm, inputs.shape, PRODUCT_BYTES[config.precision])
        later = phases.keys() - {"loading"}
        phases = dict(Work(phases=phases).beside(Memory(frozen=beside), *later).phases)
    return phases


def _shared(config: PPOConfig, inputs: StageInputs) -> int:
    """Bytes of what policy and critic do not train that reference and first scorer share with
    them, where they are their starts; under stage 3 of ZeRO none."""
    if partition_of(config).stage == 3:
        return 0
    shared = 0
    if inputs.starts_as_reference:
        shared += _shared_bytes(config, inputs, inputs.shape.policy_parameters)
    if config.critic_init == "scorer":
        shared += _shared_bytes(config, inputs, _critic_parameters(config, inputs))
    return shared


def _shared_bytes(config: PPOConfig, inputs: StageInputs, num_parameters: int) -> int:
    """Bytes that a frozen model does not hold, as the one that started as it has these weights."""
    shape = inputs.shape
    upper, layers = shape.upper(config.trainable_layers).num_layers, shape.num_layers
    shared = untrained_parameters(shape, config, num_parameters)
    if config.lora is None:
        layers -= upper
    elif inputs.is_narrow and config.zero is not None:  # adapters are added to float32 weights
        shared, layers = shared - upper * shape.map_numbers, layers - upper
    return inputs.frozen_bytes(shared, layers)
