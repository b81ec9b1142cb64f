"""The work of PPO-max: policy and critic train, reference and scorers run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from trimtab.models import counts
from trimtab.models.config.policy import PPOConfig
from trimtab.models.estimates.memory import FLOAT_BYTES, PRODUCT_BYTES, Memory
from trimtab.models.estimates.stages.judging import judge_work
from trimtab.models.estimates.work import (
    Rows,
    StageInputs,
    Work,
    has_narrow_weights,
    narrow_layers,
    sampling_memory,
    sampling_steps,
    scoring_memory,
    trained_parameters,
    training_memory,
    untrained_parameters,
    vllm_memory,
)


def ppo_max(config: PPOConfig, inputs: StageInputs) -> Work:
    """All steps: answers sampled and scored, then updates of critic and, later, policy.

    Without a scorer the first rank has the judge beside all else, which rates each answer, as if
    it were another than those before.
    """
    prompt, row = inputs.prompt_and_row(config.max_new_tokens)
    planned = counts.ppo_counts(config, inputs.amounts.prompts_of(config.prompts))
    answers = Rows(planned.steps * planned.rollout, row)
    passes_learned = config.num_epochs * planned.rollout
    learned = passes_learned * (planned.steps + planned.policy_steps)
    nll = _nll_rows(config, inputs)
    updates, response = planned.policy_updates(planned.steps), config.max_new_tokens + 1
    nll_logits = sum(rows.count * rows.logit_tokens for rows in nll)
    at_least = counts.least_sampling_batches(config.ranks)
    steps = sampling_steps(planned.rollout, prompt, config.max_new_tokens, at_least=at_least)
    judging = Work(examples=answers.count)
    if config.scoring.judge is not None and not inputs.scorer_bytes:
        field = "ppo.scoring.judge.local_model"
        judging = judge_work(config.scoring.judge, inputs, "score", answers, field)
    # Reference, critic and scorers; of narrow products, and of what vLLM samples, the policy too.
    passes = 2 + len(inputs.scorer_bytes)
    passes += PRODUCT_BYTES[config.precision] < FLOAT_BYTES or config.vllm is not None
    return Work(
        examples=answers.count,
        num_ranks=config.ranks,
        optimiser_steps=planned.steps * planned.updates,
        sampled_tokens=answers.count * config.max_new_tokens + judging.sampled_tokens,
        sampling_steps=planned.steps * steps + judging.sampling_steps,
        passed_logits=(passes - 1 - len(inputs.scorer_bytes)) * answers.count * response,
        forward_tokens=answers.count * prompt + passes * answers.tokens + judging.forward_tokens,
        trained_tokens=learned * row + updates * sum(rows.tokens for rows in nll),
        trained_logits=passes_learned * planned.policy_steps * response + updates * nll_logits,
        parameters=sum(
            trained_parameters(inputs.shape, config, parameters)
            for parameters in (inputs.shape.policy_parameters, _critic_parameters(config, inputs))
        ),
        phases=_with_judge(_phases(config, inputs, planned), judging.phases),
    )


def _with_judge(phases: dict[str, Memory], judging: Mapping[str, Memory]) -> dict[str, Memory]:
    """Phases with a judge's weights in each, and those in which it works."""
    weights = max((phase.frozen for phase in judging.values()), default=0)
    others = {
        name: replace(phases["sampling"], activations=phase.activations, cache=phase.cache)
        for name, phase in judging.items()
    }
    return {
        name: replace(phase, frozen=phase.frozen + weights)
        for name, phase in (phases | others).items()
    }


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


def _phases(config: PPOConfig, inputs: StageInputs, planned: counts.PPOCounts) -> dict[str, Memory]:
    """Both optimisers stay in memory throughout; gradients are of one model at a time, but under
    stage 3 of ZeRO room for those of both is kept.

    What policy and critic do not train, reference and first scorer share where they are their
    starts. Of a rank: with ZeRO it holds its part, and the whole of a model that samples or scores.
    """
    if config.zero is not None and config.zero.stage == 3:
        # Models that only run are narrow there as a whole, which `Memory.partitioned` counts.
        inputs = replace(inputs, is_narrow=False)
    num_policy, num_critic = inputs.shape.policy_parameters, _critic_parameters(config, inputs)
    _, row = inputs.prompt_and_row(config.max_new_tokens)
    response = config.max_new_tokens + 1
    batch = counts.num_taken(planned.rollout, config.train_batch)

    def own(rows: Rows) -> Rows:
        return replace(rows, count=counts.rows_of_rank(rows.count, config.ranks))

    learned = [Rows(batch, row, response), *_nll_rows(config, inputs)]
    policy = [training_memory(inputs, num_policy, config, own(rows)) for rows in learned]
    critic = training_memory(inputs, num_critic, config, own(Rows(batch, row)))
    others = inputs.policy_bytes + sum(inputs.scorer_bytes)
    stages = _loading_and_saving(config, policy[0], critic, others)
    if narrow_layers(inputs, config):
        # The critic is, before it has adapters; where lower layers are shared the policy is, too.
        wide = [num_critic, num_policy][: 1 if config.trainable_layers is None else 2]
        frozen = sum(untrained_parameters(inputs.shape, config, number) for number in wide)
        kept = critic.frozen + (policy[0].frozen if len(wide) == 2 else 0)
        loading = stages["loading"]
        loading = replace(loading, frozen=loading.frozen + FLOAT_BYTES * frozen - kept)
        stages["loading"] = loading
    working = {
        "sampling": _sampling(config, inputs, planned.rollout),
        "scoring": scoring_memory(inputs, 0, own(Rows(planned.rollout, row, response))),
        "critic update": critic,
        "policy update": max(policy, key=lambda phase: phase.total),
    }
    resident = _resident(config, inputs, policy[0], critic)
    held = {
        name: replace(
            resident,
            gradients=phase.gradients,
            frozen=resident.frozen + (phase.frozen if name == "sampling" else 0),
            activations=phase.activations,
            cache=phase.cache,
        )
        for name, phase in working.items()
    }
    beside = 0
    if config.vllm is not None:  # on a GPU only while it samples: then this is a bound
        beside = vllm_memory(config.vllm, inputs.shape, PRODUCT_BYTES[config.precision])
    later = {**_partitioned(config, inputs, held), "saving": stages["saving"]}
    working = {name: replace(phase, frozen=phase.frozen + beside) for name, phase in later.items()}
    return {"loading": stages["loading"], **working}


def _sampling(config: PPOConfig, inputs: StageInputs, num_prompts: int) -> Memory:
    """What sampling takes beside the models; with float32 weights on a GPU their narrow copies."""
    if config.vllm is not None:
        return Memory()
    copies = 0
    if inputs.is_narrow and config.zero is None and config.lora is None:
        copies = PRODUCT_BYTES["bfloat16"] * inputs.shape.num_layers * inputs.shape.map_numbers
    prompt, _ = inputs.prompt_and_row(config.max_new_tokens)
    at_least = counts.least_sampling_batches(config.ranks)
    return sampling_memory(
        inputs, copies, num_prompts, prompt, config.max_new_tokens, at_least=at_least
    )


def _resident(config: PPOConfig, inputs: StageInputs, policy: Memory, critic: Memory) -> Memory:
    """What is there in every phase but loading and saving."""
    frozen = inputs.policy_bytes + sum(inputs.scorer_bytes) + policy.frozen + critic.frozen
    if config.zero is None or config.zero.stage < 3:
        if inputs.starts_as_reference:
            frozen -= _in_common(config, inputs, inputs.shape.policy_parameters)
        if config.critic_init == "scorer":
            frozen -= _in_common(config, inputs, _critic_parameters(config, inputs))
    return Memory(
        weights=policy.weights + critic.weights,
        optimiser=policy.optimiser + critic.optimiser,
        frozen=frozen,
    )


def _in_common(config: PPOConfig, inputs: StageInputs, num_parameters: int) -> int:
    """Bytes that a frozen model does not hold, as the one that started as it has these weights."""
    shape = inputs.shape
    upper = shape.upper(config.trainable_layers).num_layers
    shared, layers = untrained_parameters(shape, config, num_parameters), shape.num_layers
    if config.lora is None:
        layers -= upper
    elif inputs.is_narrow and config.zero is not None:  # adapters are added to float32 weights
        shared, layers = shared - upper * shape.map_numbers, layers - upper
    return inputs.frozen_bytes(shared, layers)


def _loading_and_saving(
    config: PPOConfig, policy: Memory, critic: Memory, others: int
) -> dict[str, Memory]:
    """Reference and scorers (`others`, bytes) come first, then the policy, then the critic.

    In the end the first rank has policy and critic whole.
    """
    zero, ranks = config.zero, config.ranks
    if zero is None:
        weights, frozen = policy.weights + critic.weights, policy.frozen + critic.frozen + others
        both = Memory(weights=weights, frozen=frozen)
        optimiser = policy.optimiser + critic.optimiser  # whose state is kept to the end
        return {"loading": both, "saving": replace(both, optimiser=optimiser)}
    is_narrow = has_narrow_weights(config)
    held = _frozen_parts(config, others)
    prepared = policy.partitioned(zero.stage, ranks, zero.offload, is_narrow=is_narrow)
    apart = Memory(optimiser=ceil(policy.weights / ranks))  # its copy of weights; no moments yet
    loaded = policy.weights // (1 + is_narrow)
    if zero.stage == 3:
        apart = replace(apart, weights=ceil(loaded / ranks))
    if zero.offload:
        apart = apart.offloaded(zero.stage)
    loading = critic.loading(zero.stage, ranks, zero.offload, is_narrow=is_narrow)
    return {
        "loading": Memory(
            weights=loading.weights + (apart.weights if zero.stage == 3 else loaded),
            gradients=loading.gradients + (prepared.gradients if zero.stage == 3 else 0),
            optimiser=loading.optimiser + apart.optimiser,
            frozen=loading.frozen + prepared.frozen + held.frozen,
            host=loading.host + apart.host + held.host,
        ),
        "saving": Memory(
            weights=policy.weights + critic.weights,
            frozen=policy.frozen + critic.frozen + held.frozen,
            host=held.host,
        ),
    }


def _frozen_parts(config: PPOConfig, weights: int) -> Memory:
    """What a rank holds of models that only run; under stage 3 in parts, and narrow as the rest."""
    assert config.zero is not None
    is_narrow = has_narrow_weights(config) and config.zero.stage == 3
    held = Memory(frozen=weights)
    found = held.partitioned(
        config.zero.stage, config.ranks, config.zero.offload, is_narrow=is_narrow
    )
    return replace(found, gradients=0)


def _partitioned(
    config: PPOConfig, inputs: StageInputs, held: dict[str, Memory]
) -> dict[str, Memory]:
    """With ZeRO: a rank's parts, and the whole of one model where it samples or scores."""
    zero, ranks, is_narrow = config.zero, config.ranks, has_narrow_weights(config)
    if zero is None:
        return held
    others = inputs.policy_bytes + sum(inputs.scorer_bytes)
    parts = {}
    for name, phase in held.items():
        own = replace(phase, frozen=max(0, phase.frozen - others))
        part = own.partitioned(zero.stage, ranks, zero.offload, is_narrow=is_narrow)
        beside = _frozen_parts(config, phase.frozen - own.frozen)
        parts[name] = replace(
            part, frozen=part.frozen + beside.frozen, host=part.host + beside.host
        )
    if zero.stage < 3:
        return parts
    gradients = Memory(gradients=held["policy update"].weights)  # of policy and critic
    both = gradients.partitioned(3, ranks, is_narrow=is_narrow).gradients
    bucket = Memory().partitioned(3, ranks, is_narrow=is_narrow).gradients
    scored = (inputs.policy_bytes, *inputs.scorer_bytes)
    largest = max(*scored, FLOAT_BYTES * _critic_parameters(config, inputs))
    gathered = {"sampling": inputs.policy_bytes, "scoring": largest}
    width = 2 if is_narrow else 1
    return {
        name: replace(
            phase,
            gradients=both + bucket,
            frozen=phase.frozen + gathered.get(name, 0) // width,
        )
        for name, phase in parts.items()
    }
